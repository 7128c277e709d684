"""How long and how fast to train: what any benchmark and any method share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from experiments.errors import SettingsError

Algorithm = Literal["adam", "adamw"]
Schedule = Literal["plateau", "steps", "cosine"]
Graph = Literal["auto", "on", "off", "twin", "compile"]


def require(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise a :class:`SettingsError` naming the setting, its value and what would work."""
    if not condition:
        raise SettingsError(f"{name} = {value!r} cannot work: {remedy}")


def require_seed(name: str, seed: int) -> None:
    """Raise a :class:`SettingsError` unless every generator of random numbers takes the seed."""
    require(0 <= seed < 2**31, name, seed, "give a whole number from 0 to 2147483647")


def require_words(options: Any) -> None:
    """Raise a :class:`SettingsError` unless all fields that are literals hold one of their words.

    Args:
        options: Of any dataclass.
    """
    kind: Any = type(options)
    for name, words in _words(kind).items():
        value = getattr(options, name)
        *others, last = words
        require(value in words, name, value, f"give {', '.join(others)} or {last}")


@cache
def _words(kind: type[Any]) -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(kind)
    names = [item.name for item in dataclasses.fields(kind)]
    return {name: get_args(hints[name]) for name in names if get_origin(hints[name]) is Literal}


def require_numbers(
    options: Any,
    *names: str,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    such_as: str = "",
) -> None:
    """Raise a :class:`SettingsError` unless fields hold finite numbers within bounds.

    None passes where it is the default.

    Args:
        options: Of any dataclass.
        names: Of its fields.
        least: They may be as small as that,
        above: must be larger than that,
        most: may be as large as that,
        below: and must be smaller than that.
        such_as: A value that works, for the message.
    """
    lower = (
        "a positive number" if above == 0 else "0 or more" if least == 0 else f"at least {least:g}"
    )
    upper = f", up to {most:g}" if most < math.inf else f", below {below:g}"
    wanted = f"give {lower}{upper if min(most, below) < math.inf else ''}"
    wanted += f", such as {such_as}" if such_as else ""
    for name in names:
        value = getattr(options, name)
        optional = type(options).__dataclass_fields__[name].default is None
        if not (optional and value is None):
            right = above < value < below and least <= value <= most
            require(right, name, value, f"{wanted}{', or leave it out' if optional else ''}")


@dataclass(frozen=True)
class Settings:
    """Settings of the trainer; the defaults are the ones of the QM9 benchmark in the paper.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Examples per step; the last batch of an epoch may be smaller.
        learning_rate: Adam's step size at the start.
        weight_decay: Adam's.
        optimizer: ``"adam"`` adds the decay to the gradients, so it is the weaker the longer a
            method's updates are; ``"adamw"`` (Loshchilov and Hutter, 2019,
            https://arxiv.org/abs/1711.05101) shrinks the weights apart from them, by the share
            ``learning_rate`` · ``weight_decay`` in every step, whatever the method.
        beta2: Adam's β₂. Its second moments remember 1 / (1 − β₂) steps: after larger gradients it
            takes that many until a step is of the size of the rate again.
        schedule: ``"plateau"``; ``"steps"``: the learning rate is divided by 10 after 60 % and
            again after 80 % of the epochs; or ``"cosine"``: it falls along half a cosine, from
            ``learning_rate`` in the first epoch to ``minimum_learning_rate`` in the last.
        plateau_factor: The learning rate is multiplied by this when the validation score stops
            falling, after ``plateau_patience`` epochs without a new best, down to
            ``minimum_learning_rate``.
        plateau_patience: See ``plateau_factor``.
        minimum_learning_rate: See ``plateau_factor`` and ``schedule``.
        score_smoothing: The plateau schedule looks at an exponential moving average of the
            validation score, in which the past weighs so much; 0 (the paper) looks at each epoch's
            own. The selection of the best epoch is never smoothed.
        clip_norm: Gradients of all parameters together are scaled down to this norm; None leaves
            them as they are.
        graph: Whether steps are captured in CUDA graphs, which takes batches of fixed shapes.
            ``"auto"`` does so on a GPU where benchmark and method allow it; ``"on"`` insists;
            ``"off"`` never does; ``"twin"`` goes the captured way on any device (fixed shapes,
            static buffers) but runs every step from Python, to check or debug it; ``"compile"``
            is the twin with a backbone compiled by ``torch.compile``, worth it for long runs on a
            CPU.
        seed: Decides the initial weights, the order of the examples and the methods' own samples.
            Which rows are training rows is the benchmark's setting.
        device: ``"auto"`` (a GPU when torch sees one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        threads: CPU threads that torch uses; None leaves its choice, one per core.
        head_bias: Whether heads have a bias; the paper's regression heads have none.
        fitted_bias: Whether biases start at the constant that the training targets suggest, such as
            the log-odds of a rare class, rather than at random near 0.

    Raises:
        SettingsError: A value that cannot work.
    """

    epochs: int = 300
    batch_size: int = 120
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    optimizer: Algorithm = "adam"
    beta2: float = 0.999
    schedule: Schedule = "plateau"
    plateau_factor: float = 0.7
    plateau_patience: int = 5
    minimum_learning_rate: float = 1e-5
    score_smoothing: float = 0.0
    clip_norm: float | None = None
    graph: Graph = "auto"
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    head_bias: bool = False
    fitted_bias: bool = False

    def __post_init__(self) -> None:
        require_words(self)
        require_numbers(self, "epochs", "batch_size", "threads", least=1)
        require_numbers(self, "learning_rate", above=0, such_as="1e-3")
        require_numbers(self, "weight_decay", least=0, such_as="1e-4")
        require_numbers(self, "beta2", least=0, below=1, such_as="0.99")
        require_numbers(self, "plateau_factor", above=0, below=1, such_as="0.7")
        require_numbers(self, "plateau_patience", "minimum_learning_rate", least=0)
        require_numbers(self, "score_smoothing", least=0, below=1, such_as="0.8")
        require_numbers(self, "clip_norm", above=0, such_as="1")
        require_seed("seed", self.seed)
        start = self.head_bias or not self.fitted_bias
        require(start, "fitted_bias", True, "heads have no bias here; add --bias")


def resolve_device(name: str) -> torch.device:
    """The torch device called ``name``; ``"auto"`` is a GPU when torch sees one, else the CPU.

    Raises:
        SettingsError: An unknown device, or one that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"device = {name!r} is not a device that torch knows; give auto, cpu, cuda or cuda:1"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(
            (device.index or 0) < count,
            "device",
            name,
            f"torch sees {count} CUDA device(s) here; give cpu or auto",
        )
    elif device.type != "cpu":
        require(False, "device", name, "give auto, cpu, cuda or cuda:1")
    return device
