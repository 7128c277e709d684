"""Every aggregator and scalarization of TorchJD as a method, by name: ``torchjd:UPGrad``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.aggregation import MatrixAggregator
from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.base import Level, Method, Needs, Scale
from experiments.methods.gradient_based import GradientOptions
from experiments.methods.published import WithAggregator
from experiments.methods.torchjd_classes import (
    PREFIX,
    arguments_of,
    arrange,
    defaults_of,
    kinds,
    module,
)
from experiments.methods.torchjd_scalarizer import (
    load_scalarizer,
    read_scalarizer,
    recall,
    roll_epoch,
    scalarize,
    update,
)
from experiments.methods.weighted import SeededOptions, WeightedLosses, new_generator
from experiments.settings import require

_SUM_SCALARIZERS: Final = frozenset({"Sum", "Constant", "DWA", "UW", "IMTLL"})


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
        own = tuple(item.name for item in fields(cls) if item.name != "arguments")
        return arrange(own, method, given)


@dataclass(frozen=True)
class AggregatorOptions(ScalarizerOptions, GradientOptions):
    """The same of an aggregator, and its level."""


class AggregatorMethod(WithAggregator):
    """An aggregator of TorchJD."""

    options_type = AggregatorOptions

    @classmethod
    def more_options(cls) -> list[tuple[str, Any]]:
        """Arguments of TorchJD's class."""
        return defaults_of(kinds("aggregation")[cls.aggregator])

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
    options_type = ScalarizerOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: ScalarizerOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        kind = getattr(module("scalarization", self.name), self.scalarizer_name)
        given = arguments_of(self.name, kind, len(self.tasks), options.arguments)
        try:
            self.scalarizer: Any = kind(**given)
        except (TypeError, ValueError) as error:
            require(False, "options", given, str(error))
        self.scalarizer.to(next(iter(heads.values())).weight.device)
        self.generator = self.kept["generator"] = new_generator(options.seed)
        self._last: tuple[Any, dict[str, Tensor]] | None = None

    @classmethod
    def more_options(cls) -> list[tuple[str, Any]]:
        """Arguments of TorchJD's class."""
        return defaults_of(kinds("scalarization")[cls.scalarizer_name])

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass; for FAMO, a look back at the last batch first."""
        if Needs.REPEAT in self.needs:
            self._look_back()
        losses = super().backward(inputs, targets)
        if Needs.REPEAT in self.needs:
            self._last = (inputs, targets)
        return losses

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """What the scalarization makes of the losses that are there."""
        draw = int(torch.randint(2**63 - 1, (), generator=self.generator))
        devices = [losses.device] if losses.device.type == "cuda" else []
        # Logarithms and ratios of a loss of zero are no numbers; such a task gets no gradient.
        tiny = torch.finfo(losses.dtype).tiny
        losses = torch.where(losses.detach() == 0, tiny, losses)
        if present is not None and not present.any():
            return losses.sum() * 0.0
        recall(self.scalarizer, losses)
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(draw)
            try:
                if present is None or bool(present.all()):
                    total: Tensor = self.scalarizer(losses)
                else:
                    total = scalarize(self.scalarizer, losses, present)
            except ValueError as error:
                raise SettingsError(f"method {self.name} refuses the losses: {error}") from error
        return total

    def end_epoch(self, epoch: int) -> None:
        """DWA counts epochs; FAMO's last batch must not wait for the next epoch."""
        if Needs.REPEAT in self.needs:
            self._look_back()
        if self.scalarizer_name == "DWA":
            roll_epoch(self.scalarizer)

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, heads, and what the scalarization leaves to the optimiser."""
        own = () if Needs.REPEAT in self.needs else self.scalarizer.parameters()
        return chain(super().parameters(), own)

    def state_dict(self) -> dict[str, Any]:
        """State of the network, the generator and the scalarization."""
        return {**super().state_dict(), "scalarizer": read_scalarizer(self.scalarizer)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        load_scalarizer(self.scalarizer, state["scalarizer"])
        self._last = None

    @torch.no_grad()
    def _look_back(self) -> None:
        if self._last is None:
            return
        (inputs, targets), self._last = self._last, None
        buffers = [(buffer, buffer.clone()) for buffer in self.backbone.buffers()]
        losses, present = self.losses(self.backbone(inputs), targets)
        for buffer, before in buffers:
            buffer.copy_(before)
        if present is None or bool(present.any()):
            update(self.scalarizer, torch.cat(list(losses.values())), present)


def names() -> list[str]:
    """Every method that :func:`torchjd_method` makes.

    Raises:
        SettingsError: TorchJD is not installed.
    """
    found = {name: None for part in ("aggregation", "scalarization") for name in kinds(part)}
    return [PREFIX + name for name in found]


@functools.cache
def torchjd_method(name: str) -> type[Method]:
    """The method ``torchjd:NAME``; where both parts of TorchJD know NAME, the aggregator.

    Raises:
        SettingsError: TorchJD is not installed or has no such class.
    """
    plain = name.removeprefix(PREFIX)
    known = {"name": name, "title": plain}
    if plain in kinds("aggregation"):
        levels = (Level.PARAMETERS, Level.REPRESENTATION)
        kind = kinds("aggregation")[plain]
        return type(
            plain,
            (AggregatorMethod,),
            {
                **known,
                "__doc__": f"TorchJD's {plain}.",
                "aggregator": plain,
                "scale": Scale(MatrixAggregator.reduction_of(kind)),
                "levels": levels[:1] if plain == "ExcessMTL" else levels,
            },
        )
    if plain in kinds("scalarization"):
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
