"""Every aggregator and scalarization of TorchJD as a method, by name: ``torchjd:UPGrad``."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.aggregation import Rows
from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.base import Level, Method, MethodOptions, Needs, Scale
from experiments.methods.gradient_based import GradientOptions
from experiments.methods.published import WithAggregator
from experiments.methods.random_weights import SeededOptions, new_generator
from experiments.methods.torchjd_import import module
from experiments.methods.torchjd_state import load_scalarizer, read_scalarizer
from experiments.methods.weighted import WeightedLosses
from experiments.settings import require

__all__ = ["PREFIX", "names", "torchjd_method"]

PREFIX: Final = "torchjd:"

#: Arguments without a default that have a usual value, and those that follow from the tasks.
_USUAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "CAGrad": {"c": 0.4},
    "FairGrad": {"alpha": 1.0},
    "PBI": {"theta": 5.0},
    "STCH": {"mu": 1.0},
}
_PER_TASK: Final = frozenset({"n_tasks", "shape"})
#: Arguments that are functions or objects, which no command line can give.
_OBJECTS: Final = frozenset({"f", "projector"})
_WEIGHTS: Final = frozenset({"PBI", "COSMOS"})
_SUM_SCALARIZERS: Final = frozenset({"Sum", "Constant", "DWA", "UW", "IMTLL"})


@dataclass(frozen=True)
class AggregatorOptions(SeededOptions, GradientOptions):
    """Options of an aggregator of TorchJD.

    Attributes:
        level: Of the gradients, ``"parameters"`` or ``"representation"``.
        seed: Of its draws, if it makes any; None follows the seed of the run.
        arguments: Of its class, by name; lists stand for tensors.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        GradientOptions.__post_init__(self)
        SeededOptions.__post_init__(self)

    @classmethod
    def arrange(cls, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the class does not know itself goes to TorchJD, if that knows it."""
        return _arrange(("level", "seed"), method, given)


@dataclass(frozen=True)
class ScalarizerOptions(SeededOptions):
    """Options of a scalarization of TorchJD.

    Attributes:
        seed: Of its draws, if it makes any; None follows the seed of the run.
        arguments: Of its class, by name; lists stand for tensors.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def arrange(cls, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the class does not know itself goes to TorchJD, if that knows it."""
        return _arrange(("seed",), method, given)


class AggregatorMethod(WithAggregator):
    """An aggregator of TorchJD."""

    options_type: ClassVar[type[MethodOptions]] = AggregatorOptions

    def arguments(self, options: GradientOptions) -> dict[str, Any]:
        """The usual ones, those that follow from the tasks, and those that were given."""
        assert isinstance(options, AggregatorOptions)
        kind = getattr(module("aggregation", self.name), self.aggregator)
        return _arguments(self.name, kind, len(self.tasks), options.arguments)

    @classmethod
    def more_options(cls) -> list[tuple[str, Any]]:
        """Arguments of TorchJD's class."""
        return _defaults(_kinds("aggregation")[cls.aggregator])

    @classmethod
    def why_not(cls, level: Level) -> str:
        """ExcessMTL remembers the gradient's entries; the others compare gradients."""
        if cls.aggregator == "ExcessMTL" and level is Level.REPRESENTATION:
            return "it remembers every entry of the gradients, which belong to other examples later"
        return super().why_not(level)


class ScalarizerMethod(WeightedLosses):
    """A scalarization of TorchJD.

    FAMO learns from what a step did to the losses. Its second look at a batch is taken just before
    the next batch, with the buffers of the network (running statistics) put back afterwards.
    """

    scalarizer_name: ClassVar[str]
    options_type: ClassVar[type[MethodOptions]] = ScalarizerOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: ScalarizerOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        kind = getattr(module("scalarization", self.name), self.scalarizer_name)
        given = _arguments(self.name, kind, len(self.tasks), options.arguments)
        try:
            self.scalarizer: Any = kind(**given)
        except (TypeError, ValueError) as error:
            require(False, "options", given, str(error))
        self.scalarizer.to(next(iter(heads.values())).weight.device)
        self.generator = new_generator(options.seed)
        self._last: tuple[Any, dict[str, Tensor]] | None = None

    @classmethod
    def more_options(cls) -> list[tuple[str, Any]]:
        """Arguments of TorchJD's class."""
        return _defaults(_kinds("scalarization")[cls.scalarizer_name])

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass; for FAMO, a look back at the last batch first."""
        if Needs.REPEAT in self.needs:
            self._look_back()
        losses = super().backward(inputs, targets)
        if Needs.REPEAT in self.needs:
            self._last = (inputs, targets)
        return losses

    def total(self, losses: Tensor) -> Tensor:
        """What the scalarization makes of the losses."""
        draw = int(torch.randint(2**63 - 1, (), generator=self.generator))
        devices = [losses.device] if losses.device.type == "cuda" else []
        # Logarithms and ratios of a loss of zero are no numbers; such a task gets no gradient.
        tiny = torch.finfo(losses.dtype).tiny
        losses = torch.where(losses.detach() == 0, tiny, losses)
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(draw)
            try:
                total: Tensor = self.scalarizer(losses)
            except ValueError as error:
                raise SettingsError(f"method {self.name} refuses the losses: {error}") from error
        return total

    def end_epoch(self, epoch: int) -> None:
        """DWA counts epochs; FAMO's last batch must not wait for the next epoch."""
        if Needs.REPEAT in self.needs:
            self._look_back()
        if self.scalarizer_name == "DWA":
            self.scalarizer.step()

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, heads, and what the scalarization leaves to the optimiser."""
        own = () if Needs.REPEAT in self.needs else self.scalarizer.parameters()
        return chain(super().parameters(), own)

    def state_dict(self) -> dict[str, Any]:
        """State of the network, the scalarization and the generator."""
        return {
            **super().state_dict(),
            "scalarizer": read_scalarizer(self.scalarizer),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        load_scalarizer(self.scalarizer, state["scalarizer"])
        self.generator.set_state(state["generator"])
        self._last = None

    @torch.no_grad()
    def _look_back(self) -> None:
        if self._last is None:
            return
        (inputs, targets), self._last = self._last, None
        buffers = [(buffer, buffer.clone()) for buffer in self.backbone.buffers()]
        losses = self.losses(self.backbone(inputs), targets)
        for buffer, before in buffers:
            buffer.copy_(before)
        self.scalarizer.update(torch.cat(list(losses.values())))


def names() -> list[str]:
    """Every method that :func:`torchjd_method` makes.

    Raises:
        SettingsError: TorchJD is not installed.
    """
    found = {name: None for part in ("aggregation", "scalarization") for name in _kinds(part)}
    return [PREFIX + name for name in found]


@functools.cache
def torchjd_method(name: str) -> type[Method]:
    """The method ``torchjd:NAME``; where both parts of TorchJD know NAME, the aggregator.

    Raises:
        SettingsError: TorchJD is not installed or has no such class.
    """
    plain = name.removeprefix(PREFIX)
    known = {"name": name, "title": plain}
    if plain in _kinds("aggregation"):
        levels = (Level.PARAMETERS, Level.REPRESENTATION)
        kind = _kinds("aggregation")[plain]
        return type(
            plain,
            (AggregatorMethod,),
            {
                **known,
                "__doc__": f"TorchJD's {plain}.",
                "aggregator": plain,
                "scale": Scale(Rows.scale_of(kind)),
                "levels": levels[:1] if plain == "ExcessMTL" else levels,
            },
        )
    if plain in _kinds("scalarization"):
        needs = {"FAMO": {Needs.REPEAT, Needs.EPOCHS}, "DWA": {Needs.EPOCHS}}.get(plain, set())
        return type(
            plain,
            (ScalarizerMethod,),
            {
                **known,
                "__doc__": f"TorchJD's {plain}.",
                "scalarizer_name": plain,
                "scale": Scale.SUM if plain in _SUM_SCALARIZERS else Scale.MEAN,
                "needs": frozenset(needs),
            },
        )
    raise SettingsError(
        f"method = {name!r} is unknown to TorchJD: give one of {', '.join(names())}"
    )


def _kinds(part: str) -> dict[str, Any]:
    """Classes of TorchJD that can be made, by name."""
    found = module(part, "torchjd:")
    base = found.Aggregator if part == "aggregation" else found.Scalarizer
    abstract = {base, getattr(found, "WeightedAggregator", base)}
    abstract.add(getattr(found, "GramianWeightedAggregator", base))
    kinds = {name: getattr(found, name) for name in found.__all__}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind not in abstract
    }


def _arrange(own: tuple[str, ...], method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the class, and the rest as its ``arguments``.

    Raises:
        SettingsError: TorchJD does not know one.
    """
    kind = _kind(method)
    known = set(inspect.signature(kind.__init__).parameters) - {"self", *_PER_TASK, *_OBJECTS}
    arranged = {key: value for key, value in given.items() if key in own}
    arguments = {key: value for key, value in given.items() if key not in own}
    arguments.update(arguments.pop("arguments", {}))
    for key, value in arguments.items():
        if key not in known:
            raise SettingsError(
                f"{key} = {value!r} has no meaning for method {method}: leave it out (its options "
                f"are {', '.join([*own, *sorted(known)])})"
            )
    return {**arranged, "arguments": arguments}


def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Arguments that may be given, with defaults; three dots where one must be given."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    usual = _USUAL.get(kind.__name__, {})
    found = []
    for parameter in parameters:
        if parameter.name == "self" or parameter.name in _PER_TASK | _OBJECTS:
            continue
        default = usual.get(parameter.name, parameter.default)
        if parameter.name == "weights" and kind.__name__ in _WEIGHTS:
            default = "equal"
        missing = default is parameter.empty
        found.append((parameter.name, "..." if missing else default))
    return found


def _kind(method: str) -> Any:
    plain = method.removeprefix(PREFIX)
    return {**_kinds("scalarization"), **_kinds("aggregation")}[plain]


def _arguments(method: str, kind: Any, tasks: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a class of TorchJD.

    Raises:
        SettingsError: One is missing.
    """
    arguments: dict[str, Any] = dict(_USUAL.get(kind.__name__, {}))
    if kind.__name__ in _WEIGHTS:
        arguments["weights"] = torch.full((tasks,), 1 / tasks)
    arguments.update(given)
    parameters = inspect.signature(kind.__init__).parameters
    for name, parameter in parameters.items():
        if name in _PER_TASK:
            arguments[name] = tasks
        elif name != "self" and parameter.default is parameter.empty and name not in arguments:
            raise SettingsError(
                f"method {method} needs a value for {name}: give --option {name}=VALUE"
            )
    return {name: _tensor(name, value) for name, value in arguments.items()}


def _tensor(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    with contextlib.suppress(TypeError, ValueError):
        return torch.tensor(value, dtype=torch.float64 if name == "pref_vector" else torch.float32)
    raise SettingsError(f"{name} = {value!r} cannot work: give a list of numbers")
