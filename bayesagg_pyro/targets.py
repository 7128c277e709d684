"""Targets of one head after parsing: values, which are observed, and how much each counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Parsed", "RawTargets", "Targets", "alike"]


class Targets(NamedTuple):
    """Targets of one head: values [B, tasks], a mask and weights; stages exchange them `Parsed`.

    Attributes:
        values: [B, tasks], finite; the entries that are not observed hold the head's filler.
        mask: [B, tasks] bool, True where observed; None when everything is.
        weight: [B, tasks], factor of each example's loss and log-likelihood; None for 1.
    """

    values: Tensor
    mask: Tensor | None = None
    weight: Tensor | None = None

    def counts(self) -> Tensor:
        """Observed examples of each task, [tasks]."""
        if self.mask is not None:
            return self.mask.sum(0)
        batch, tasks = self.values.shape
        return torch.full((tasks,), batch, device=self.values.device)

    def seen(self) -> Tensor:
        """Tasks with an observed example of positive weight, [tasks] bool."""
        counted = self._counted()
        return self.counts() > 0 if counted is None else counted.any(0)

    def labelled(self) -> Tensor | None:
        """Examples with an observed target of positive weight of some task, [B]; None for all."""
        counted = self._counted()
        return None if counted is None else counted.any(1)

    def _counted(self) -> Tensor | None:
        """Mask of targets of positive weight, [B, tasks]; None for all."""
        if self.weight is None:
            return self.mask
        return self.weight > 0 if self.mask is None else self.mask & (self.weight > 0)

    def examples(self, rows: slice | Tensor) -> Self:
        """Some of the examples, a slice or indices."""
        return type(self)(*(None if part is None else _at(part, rows) for part in self))  # type: ignore[arg-type]

    def part(self, rows: slice) -> Self:
        """Some of the tasks."""
        return type(self)(*(None if part is None else part[:, rows] for part in self))  # type: ignore[arg-type]

    def where(self, valid: Tensor, filler: float) -> Targets:
        """The same where the flag is set, else fillers of weight 0: 0 · NaN would stay NaN.

        Args:
            valid: [] bool. Targets without weights get none.
            filler: a target that the head can take.
        """
        weight = self.weight
        if weight is not None:
            one = weight[:, :1] if alike(weight) else weight
            weight = torch.where(valid, one, 0.0).expand_as(weight)
        values = torch.where(valid, self.values, torch.full_like(self.values, filler))
        return self._replace(values=values, weight=weight)

    def mean(self, per_example: Tensor, *, none: float = math.nan) -> Tensor:
        """Weighted sum of a [B, tasks] quantity over the observed count, [tasks].

        Args:
            per_example: [B, tasks].
            none: the mean of a task without an observed example. Its gradient is 0 either way.
        """
        if self.weight is not None:
            per_example = per_example * self.weight.to(per_example.dtype)
        if self.mask is None:
            return per_example.mean(0)
        total = torch.where(self.mask, per_example, 0.0).sum(0)
        counts = self.counts()
        return torch.where(counts > 0, total / counts.clamp(min=1), none)

    def counted(self, outputs: Tensor) -> Tensor:
        """Outputs [..., B, tasks], and 0 in place of those of examples that do not count.

        What those come to may overflow, and 0 · ∞ is no number.
        """
        factor = self.factor(outputs.dtype)
        return outputs if factor is None else torch.where(factor > 0, outputs, 0.0)

    def factor(self, dtype: torch.dtype) -> Tensor | None:
        """Mask times weight, [B, tasks]; None when every example counts once."""
        parts = [part for part in (self.mask, self.weight) if part is not None]
        if not parts:
            return None
        tasks = parts[0].shape[-1]
        if all(map(alike, parts)):  # and stays so
            parts = [part[:, :1] for part in parts]
        factor = parts[0].to(dtype)
        if len(parts) > 1:
            factor = factor * parts[1].to(dtype)
        return factor.expand(
            *factor.shape[:-1], tasks
        )  # an ensemble has weights [members, B, tasks]


def alike(columns: Tensor) -> bool:
    """Whether all columns of [B, tasks] are equal, as for a mask [B] for all tasks."""
    return columns.shape[1] > 1 and columns.stride(1) == 0


def _at(part: Tensor, rows: slice | Tensor) -> Tensor:
    """Some of the rows; columns that are one stay so."""
    return part[:, :1][rows].expand(-1, part.shape[1]) if alike(part) else part[rows]


class Parsed(Targets):
    """Targets that a head has checked and filled; parsing them again is free."""

    __slots__ = ()


#: What users pass: values, (values, mask), or (values, mask or None, weight); a list will do for a
#: tuple, as torch's default collate function makes lists of tuples.
RawTargets: TypeAlias = (
    Tensor
    | tuple[Tensor, Tensor]
    | tuple[Tensor, Tensor | None, Tensor]
    | list[Tensor]
    | list[Tensor | None]
    | Targets
)
