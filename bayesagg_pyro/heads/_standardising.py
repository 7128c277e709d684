"""Real targets in units of their own, so that it does not matter in which a user has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.targets import Parsed, RawTargets, Targets
from bayesagg_pyro.validity import Validity

#: Targets with a mean and a standard deviation within this factor of a standardised one's stay.
_FACTOR = 3.0
#: One label without which the standard deviation is so many times smaller is an outlier, among at
#: least so many.
_OUTLIER, _FEW = 10.0, 8


class Units(NamedTuple):
    """y = loc + scale · (y in the head's units), [tasks] each; scale is 0 where none is chosen.

    A loc beside a scale of 0 is what all labels so far were: the zero of the units to come.
    """

    loc: Tensor
    scale: Tensor

    @property
    def factor(self) -> Tensor:
        """The scale, 1 where none is chosen."""
        return torch.where(self.scale > 0, self.scale, 1.0)

    def of(self, values: Tensor) -> Tensor:
        """Values [..., tasks] in the head's units, in their own dtype."""
        return ((values.to(self.loc.dtype) - self.loc) / self.factor).to(values.dtype)

    def back(self, values: Tensor) -> Tensor:
        """Values [..., tasks] of the head in the targets' units."""
        return (values.to(self.loc.dtype) * self.factor + self.loc).to(values.dtype)


class Standardising(OnePredictor):
    """A head of real targets that may choose its units: mean and standard deviation of a batch.

    Each task chooses once, from the first batch of an engine in which its targets differ. Until
    then they are 0, and sums of zeros hold in all units of that zero; numbers of at most 3 stay,
    and where later targets are far from the zero, it moves and takes the first ones along. Targets
    that look standardised, with a standard deviation from 1/3 to 3 and a mean of at most 3, are
    left as they are, to the bit, since a batch knows their moments less well than whoever
    standardised them; those that look so but for a factor of a thousand (meV for eV) are divided
    by that. Targets of weight 0 are not looked at, nor one without which the standard deviation
    would be a tenth.

    Outside of an engine nothing chooses. Weights, posteriors, outputs, likelihood and losses are in
    the chosen units; `parse_targets` brings users' targets there, and the engine's predictions come
    back.
    """

    per_task: ClassVar[tuple[str, ...]] = ("target_loc", "target_scale")
    #: Buffers that casting a layer must not round, so that only their device follows; and what they
    #: hold where they get a place and no value yet.
    exact: ClassVar[Mapping[str, float]] = dict.fromkeys(per_task, 0.0)
    #: Names in a state that older versions did not save.
    newer_state: ClassVar[tuple[str, ...]] = per_task
    target_loc: Tensor | None  #: [tasks], float64; None for a head that keeps the user's units
    target_scale: Tensor | None  #: [tasks], float64, 0 where nothing is chosen yet; or None
    #: Whether a task may choose still ("open"), or which units all have.
    units_state: Literal["open", "own", "user's"]

    def choose_units(self, wanted: bool) -> None:
        """Register the units, nothing being chosen yet."""
        zeros = torch.zeros(self.tasks, dtype=torch.float64) if wanted else None
        self.register_buffer("target_loc", zeros)
        self.register_buffer("target_scale", None if zeros is None else zeros.clone())
        self.units_state = "open" if wanted else "user's"

    def keep_units(self) -> None:
        """Leave the user's units to tasks that have not chosen."""
        if self.target_scale is not None:
            self.target_scale.masked_fill_(self.target_scale == 0, 1.0)
            self.settle_units()

    @property
    def units(self) -> Units | None:
        """The units chosen; None where they are the user's, as far as is known without waiting."""
        if self.target_loc is None or self.target_scale is None or self.units_state == "user's":
            return None
        return Units(self.target_loc, self.target_scale)

    @property
    def open_units(self) -> list[Tensor]:
        """What a step may write to."""
        units = self.units
        return [] if units is None or self.units_state != "open" else list(units)

    def chosen(self, targets: Targets, validity: Validity) -> tuple[Units, Targets] | None:
        """The units after a batch, and its targets in them; None where all are chosen already.

        Args:
            targets: [B, tasks], as parsed: in the units that were chosen before.
            validity: of the batch; a bad one changes no unit.
        """
        now = self.units
        if now is None or self.units_state != "open":
            return None
        values = targets.values.to(now.scale.dtype)
        factor = targets.factor(values.dtype)
        seen = (torch.ones_like(values) if factor is None else factor) > 0
        count = seen.sum(0)
        mean, deviation = _moments(values, seen)
        farthest = torch.where(seen, (values - mean).abs(), -1.0).argmax(0, keepdim=True)
        others = _moments(values, seen.scatter(0, farthest, False))
        outlier = (count >= _FEW) & (_OUTLIER * others[1] < deviation)
        mean = torch.where(outlier, others[0], mean)
        deviation = torch.where(outlier, others[1], deviation)
        level = mean + now.loc
        rounding = max(torch.finfo(targets.values.dtype).eps, 16 * torch.finfo(values.dtype).eps)
        known = (deviation > rounding * level.abs()) & deviation.isfinite()
        deviation = torch.where(known, deviation, 1.0)
        prefix = 10 ** (3 * (deviation.log10() / 3).round())
        ratio = deviation / prefix
        like = (ratio >= 1 / _FACTOR) & (ratio <= _FACTOR) & (level.abs() <= _FACTOR * prefix)
        kept = (now.loc != 0) & (mean.abs() <= _FACTOR * deviation)
        loc = torch.where(kept, now.loc, torch.where(like, 0.0, level))
        so_far = torch.where((now.loc == 0) & (level.abs() > _FACTOR), level, now.loc)
        new = (now.scale == 0) & (count > 0)
        loc = torch.where(known, loc, so_far)
        scale = torch.where(known, torch.where(like, prefix, deviation), 0.0)
        units = Units(
            validity.keep(torch.where(new, loc, now.loc), now.loc),
            validity.keep(torch.where(new, scale, now.scale), now.scale),
        )
        # What was chosen before has been applied.
        new = (now.scale == 0) & ((units.scale > 0) | (units.loc != now.loc))
        rest = units._replace(loc=units.loc - now.loc)
        return units, targets._replace(
            values=torch.where(new, rest.of(targets.values), targets.values)
        )

    @torch.no_grad()
    def take_units(self, units: Units) -> None:
        """Put units in force."""
        assert self.target_loc is not None
        assert self.target_scale is not None
        self.target_loc.copy_(units.loc)
        self.target_scale.copy_(units.scale)
        if self.target_scale.device.type == "cpu":
            self.settle_units()

    def settle_units(self) -> None:
        """Find out whether all tasks have chosen, which waits for the device."""
        loc, scale = self.target_loc, self.target_scale
        if loc is None or scale is None or scale.is_meta or not bool((scale > 0).all()):
            return
        plain = bool(((scale == 1) & (loc == 0)).all())
        self.units_state = "user's" if plain else "own"

    def parse_targets(self, targets: RawTargets, batch: int, *, validate: bool = True) -> Parsed:
        """As for other heads, and in the head's units."""
        parsed = super().parse_targets(targets, batch, validate=validate)
        units = None if isinstance(targets, Parsed) else self.units
        if units is None:
            return parsed
        return Parsed(*parsed._replace(values=units.of(parsed.values)))

    def in_target_units(self, outputs: Tensor) -> Tensor:
        """Outputs of the head [..., tasks] as the user's targets are."""
        units = self.units
        return outputs if units is None else units.back(outputs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Standardising:
        kept = {n: self._buffers[n] for n in self.exact if n in self._buffers}
        for name in kept:
            self._buffers[name] = None
        super()._apply(fn, recurse)
        device = self.weight.device
        for name, value in kept.items():
            if value is not None:
                if value.is_meta:
                    value = torch.full_like(value, self.exact[name], device=device)
                self._buffers[name] = value.to(device, linalg.head_dtype(device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # A state of before there were units is in the user's.
        for name, other in (("target_loc", self.target_loc), ("target_scale", self.target_scale)):
            if other is not None and prefix + "weight" in state_dict:
                old = torch.zeros_like(other) if name == "target_loc" else torch.ones_like(other)
                state_dict.setdefault(prefix + name, old)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.target_scale is not None:
            self.units_state = "open"
            if self.target_scale.device.type == "cpu":
                self.settle_units()


def _moments(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, [tasks], of the values [B, tasks] that are seen."""
    count = seen.sum(0).clamp(min=1)
    mean = torch.where(seen, values, 0.0).sum(0) / count
    spread = torch.where(seen, values - mean, 0.0).square().sum(0) / count
    return mean, spread.sqrt()
