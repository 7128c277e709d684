"""How long and how fast to train: what any benchmark and any method share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from experiments.errors import SettingsError

__all__ = ["Graph", "Schedule", "Settings", "require", "require_seed", "resolve_device"]

Schedule = Literal["plateau", "steps", "cosine"]
Graph = Literal["auto", "on", "off", "twin", "compile"]


def require(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise a :class:`SettingsError` naming the setting, its value and what would work."""
    if not condition:
        raise SettingsError(f"{name} = {value!r} cannot work: {remedy}")


def require_seed(name: str, seed: int) -> None:
    """Raise a :class:`SettingsError` unless every generator of random numbers takes the seed."""
    require(0 <= seed < 2**31, name, seed, "give a whole number from 0 to 2147483647")


@dataclass(frozen=True)
class Settings:
    """Settings of the trainer; the defaults are the ones of the QM9 benchmark in the paper.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Examples per step; the last batch of an epoch may be smaller.
        learning_rate: Adam's step size at the start.
        weight_decay: Adam's, added to the gradients.
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

    Raises:
        SettingsError: A value that cannot work.
    """

    epochs: int = 300
    batch_size: int = 120
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
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

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", self.epochs, "give at least 1")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "give at least 1")
        require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0,
            "learning_rate",
            self.learning_rate,
            "give a positive number, such as 1e-3",
        )
        require(
            math.isfinite(self.weight_decay) and self.weight_decay >= 0,
            "weight_decay",
            self.weight_decay,
            "give 0 or more, such as 1e-4",
        )
        require(
            self.schedule in get_args(Schedule),
            "schedule",
            self.schedule,
            "give plateau, steps or cosine",
        )
        require(
            0 < self.plateau_factor < 1,
            "plateau_factor",
            self.plateau_factor,
            "give a number between 0 and 1, such as 0.7",
        )
        require(
            self.plateau_patience >= 0,
            "plateau_patience",
            self.plateau_patience,
            "give 0 or more epochs",
        )
        require(
            self.minimum_learning_rate >= 0,
            "minimum_learning_rate",
            self.minimum_learning_rate,
            "give 0 or more, such as 1e-5",
        )
        require(
            0 <= self.score_smoothing < 1,
            "score_smoothing",
            self.score_smoothing,
            "give 0 (none) or more, below 1, such as 0.8",
        )
        require(
            self.clip_norm is None or (math.isfinite(self.clip_norm) and self.clip_norm > 0),
            "clip_norm",
            self.clip_norm,
            "give a positive number, such as 1, or leave it out",
        )
        require(
            self.graph in get_args(Graph),
            "graph",
            self.graph,
            "give auto, on, off, twin or compile",
        )
        require(
            self.threads is None or self.threads >= 1, "threads", self.threads, "give at least 1"
        )
        require_seed("seed", self.seed)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a results file."""
        return dataclasses.asdict(self)


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
