"""Targets that several heads have: counts, and labels of classes."""

from __future__ import annotations

from torch import Tensor

from bayesagg_pyro.heads._input import CheckedInput


class Counts(CheckedInput):
    """Whose targets are 0, 1, 2, ..."""

    target_kind = "count"

    @property
    def support_description(self) -> str:
        """What targets must be, for messages."""
        return "counts are 0, 1, 2, ..."

    def supports(self, values: Tensor) -> Tensor:
        """Which values are counts."""
        if not values.is_floating_point():
            return values >= 0
        return (values >= 0) & (values == values.floor()) & values.isfinite()


class Classes(CheckedInput):
    """Whose targets are labels, 0 … C − 1."""

    target_kind = "class"
    classes: int

    @property
    def support_description(self) -> str:
        """What targets must be, for messages."""
        return f"classes are 0 to {self.classes - 1} (give a mask or missing= where there is none)"

    def supports(self, values: Tensor) -> Tensor:
        """Which values are labels."""
        return (values >= 0) & (values < self.classes)
