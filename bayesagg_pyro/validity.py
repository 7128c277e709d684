"""Whether the values of a batch can be believed: looked at already, or flagged on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from bayesagg_pyro.posteriors import Posterior, where
from bayesagg_pyro.targets import Targets

_Value = TypeVar("_Value", Tensor, float)
_Kind = TypeVar("_Kind", bound=Posterior)

__all__ = ["CHECKED", "Deferred", "Validity"]


class Validity:
    """Of a batch whose values have been looked at: there is nothing to mask."""

    #: Whether values can be looked at now.
    now: ClassVar[bool] = True

    def keep(self, value: _Value, otherwise: Tensor | float) -> _Value | Tensor:
        """`value` if the batch is good; for a bad one `otherwise`."""
        return value

    def keep_targets(self, targets: Targets, filler: float) -> Targets:
        """Targets of a good batch; of a bad one fillers, of weight 0 if there are weights.

        Args:
            targets: [B, tasks].
            filler: a target that the head can take.
        """
        return targets

    def keep_examples(
        self, features: Tensor, targets: Targets, filler: float
    ) -> tuple[Tensor, Targets]:
        """As `keep_targets`, with features [B, d] of 0 for a bad batch."""
        return self.keep(features, 0.0), self.keep_targets(targets, filler)

    def keep_posterior(self, posterior: _Kind, otherwise: _Kind) -> _Kind:
        """As `keep`, see `posteriors.where`."""
        return posterior

    def flag_unless_finite(self, values: Sequence[Tensor]) -> None:
        """Mark the batch as bad if a value is not finite, where values cannot be looked at."""

    def require(self, condition: Callable[[], Tensor | None]) -> None:
        """Hold the batch to a condition that raises by itself where values can be looked at.

        Args:
            condition: [] bool, or None where there is none.
        """

    def agree(self, common: Callable[[Tensor], Tensor]) -> None:
        """Take over what several processes make of their flags."""

    def note(self) -> None:
        """Tell whoever is to raise later that the batch may be bad."""


class Deferred(Validity):
    """Of a batch on a device that nobody waits for: a flag there says whether it is good.

    Args:
        flag: [] bool.
        tell: takes the flag, for whoever is to raise later; None if nobody is.
    """

    now = False

    def __init__(self, flag: Tensor, tell: Callable[[Tensor], None] | None = None) -> None:
        self.flag = flag
        self._tell = tell

    def keep(self, value: _Value, otherwise: Tensor | float) -> _Value | Tensor:
        """Chosen by the flag."""
        return torch.where(self.flag, value, otherwise)

    def keep_targets(self, targets: Targets, filler: float) -> Targets:
        """Chosen by the flag: 0 · NaN would stay NaN."""
        return targets.where(self.flag, filler)

    def keep_posterior(self, posterior: _Kind, otherwise: _Kind) -> _Kind:
        """Chosen by the flag."""
        kept: Any = where(self.flag, posterior, otherwise)
        return kept  # type: ignore[no-any-return]

    def flag_unless_finite(self, values: Sequence[Tensor]) -> None:
        """Clear the flag if one is not."""
        for value in values:
            self.flag = self.flag & value.isfinite().all()
        self.note()

    def require(self, condition: Callable[[], Tensor | None]) -> None:
        """Clear the flag if the condition does not hold."""
        found = condition()
        if found is not None:
            self.flag = self.flag & found

    def agree(self, common: Callable[[Tensor], Tensor]) -> None:
        """A batch is good if the share of every process is."""
        self.flag = common(self.flag)

    def note(self) -> None:
        """Tell the flag as it is now."""
        if self._tell is not None:
            self._tell(self.flag)


#: Of every batch whose values have been looked at.
CHECKED = Validity()
