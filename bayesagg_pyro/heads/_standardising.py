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
    """y = loc + scale · (y in the head's units), [tasks] each, with a positive scale."""

    loc: Tensor
    scale: Tensor

    def of(self, values: Tensor) -> Tensor:
        """Values [..., tasks] in the head's units, in their own dtype."""
        return ((values.to(self.loc.dtype) - self.loc) / self.scale).to(values.dtype)

    def back(self, values: Tensor) -> Tensor:
        """Values [..., tasks] of the head in the targets' units."""
        return (values.to(self.loc.dtype) * self.scale + self.loc).to(values.dtype)


class Standardising(OnePredictor):
    """A head of real targets that may choose its units: mean and standard deviation of a batch.

    Each task chooses once, with the first target of an engine that differs from another, and all
    that was stored before holds in the units that come: labels that were all equal are 0 until then
    (those of at most 3 stay), remain so, and the scale is the root mean square about them. Targets
    that look standardised, with a standard deviation from 1/3 to 3 and a mean of at most 3, are
    left as they are, to the bit, since a batch knows their moments less well than whoever
    standardised them; those that look so but for a factor of a thousand (meV for eV) are divided
    by that. Labels that differ only from batch to batch are few, so they choose no scale below 1.
    Targets of weight 0 are not looked at, nor one without which the standard deviation would be
    a tenth, but not 0.

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
    #: [tasks], float64; None for a head that keeps the user's units.
    target_loc: Tensor | None
    #: [tasks], float64, or None: 0 where there was no label, −1 where all were equal to the loc.
    target_scale: Tensor | None
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
        if (units := self.units) is not None:
            self.take_units(*units)
            self.settle_units()

    @property
    def units(self) -> Units | None:
        """Those in force; None where they are the user's, as far as is known without waiting."""
        loc, scale = self.target_loc, self.target_scale
        if loc is None or scale is None or self.units_state == "user's":
            return None
        return Units(loc, scale) if self.units_state == "own" else _in_force(loc, scale)

    @property
    def open_units(self) -> list[Tensor]:
        """What a step may write to."""
        if self.target_loc is None or self.target_scale is None or self.units_state != "open":
            return []
        return [self.target_loc, self.target_scale]

    def chosen(
        self, targets: Targets, validity: Validity
    ) -> tuple[tuple[Tensor, Tensor], Targets] | None:
        """What `take_units` is to write with a batch, and its targets in the units after that.

        None where all are chosen already.

        Args:
            targets: [B, tasks], as parsed: in the units that were in force before.
            validity: of the batch; a bad one changes no unit.
        """
        before, now = self.open_units, self.units
        if not before or now is None:
            return None
        values = targets.values.to(now.loc.dtype)
        rounding = max(torch.finfo(targets.values.dtype).eps, 16 * torch.finfo(values.dtype).eps)
        factor = targets.factor(values.dtype)
        seen = (torch.ones_like(values) if factor is None else factor) > 0
        mean, deviation = _typical(values, seen, now.loc, rounding)
        level = mean + now.loc
        # What all labels so far were, and how far from it these are.
        stored = before[1] < 0
        same = torch.where(stored, before[0], level)
        apart = torch.where(stored, mean - (same - now.loc), 0.0)
        largest = torch.maximum(level.abs(), same.abs())
        differ = deviation > rounding * level.abs()
        size = torch.where(differ, deviation.hypot(apart), apart.abs().clamp(min=1))
        known = (differ | (apart.abs() > rounding * largest)) & size.isfinite()
        size = torch.where(known, size, 1.0)
        prefix = 10 ** (3 * (size.log10() / 3).round())
        like = (size / prefix >= 1 / _FACTOR) & (deviation / prefix <= _FACTOR)
        like &= largest <= _FACTOR * prefix
        scale = torch.where(like, prefix, size)
        # What was stored is in the units that come what it was.
        stays = torch.where(same.abs() <= _FACTOR, same, 0.0)
        loc = torch.where(stored, same - scale * stays, torch.where(like, 0.0, level))
        new = (before[1] <= 0) & seen.any(0)
        loc = torch.where(new, torch.where(known, loc, same), before[0])
        scale = torch.where(new, torch.where(known, scale, -1.0), before[1])
        after = validity.keep(loc, before[0]), validity.keep(scale, before[1])
        units = _in_force(*after)
        rest = units._replace(loc=units.loc - now.loc)
        # What was in force before has been applied.
        moved = torch.where(after[1] != before[1], rest.of(targets.values), targets.values)
        return after, targets._replace(values=moved)

    @torch.no_grad()
    def take_units(self, loc: Tensor, scale: Tensor) -> None:
        """Write `target_loc` and `target_scale`."""
        assert self.target_loc is not None
        assert self.target_scale is not None
        self.target_loc.copy_(loc)
        self.target_scale.copy_(scale)
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


def _in_force(loc: Tensor, scale: Tensor) -> Units:
    """The units that these two buffers stand for, also where the scale is open."""
    stays = (scale < 0) & (loc.abs() <= _FACTOR)
    return Units(torch.where(stays, 0.0, loc), torch.where(scale > 0, scale, 1.0))


def _typical(values: Tensor, seen: Tensor, zero: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, [tasks], without an outlier where the others differ.

    Args:
        values: [B, tasks].
        seen: which of them count.
        zero: what to add for the numbers that were rounded.
        rounding: relative.
    """
    mean, deviation = _moments(values, seen)
    farthest = torch.where(seen, (values - mean).abs(), -1.0).argmax(0, keepdim=True)
    rest, spread = _moments(values, seen.scatter(0, farthest, False))
    outlier = (seen.sum(0) >= _FEW) & (_OUTLIER * spread < deviation)
    outlier &= spread > rounding * (rest + zero).abs()
    return torch.where(outlier, rest, mean), torch.where(outlier, spread, deviation)


def _moments(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, [tasks], of the values [B, tasks] that are seen."""
    count = seen.sum(0).clamp(min=1)
    mean = torch.where(seen, values, 0.0).sum(0) / count
    spread = torch.where(seen, values - mean, 0.0).square().sum(0) / count
    return mean, spread.sqrt()
