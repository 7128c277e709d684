"""How many tasks decide an update, counting only tasks that could: those with a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Weighing", "WeightSums", "effective_tasks"]


def effective_tasks(weights: Tensor, observed: Tensor | None = None) -> Tensor:
    """Effective number of tasks (Σα)² / Σα²: 1 when one task decides, T when all weigh the same.

    A task without a target for an example is neither heard nor overruled there: it counts with its
    mean weight over the examples that have one (in each dimension), and not at all if none has. So
    uniform weights give the number of observed tasks in every pattern of missing targets, also
    where every example has one target, and weights per task give what they would without holes.

    Args:
        weights: [tasks, ...]; broadcastable to [tasks, B, d] where `observed` is given.
        observed: [tasks, B] bool; None when every task has a target for every example.

    Returns:
        [...]; NaN where no task has any weight, or an example no target.
    """
    if observed is None:
        return weights.sum(0).square() / weights.square().sum(0)
    return WeightSums.of(weights, observed, observed.shape[1]).effective()


@dataclass(frozen=True)
class WeightSums:
    """Sums over the weights of a batch, which add up when it goes through in pieces.

    Attributes:
        values: Σ_t α, [B or 1, d or 1].
        squares: Σ_t α², likewise.
        by_task: Σ_b α, [tasks, d or 1].
        observed: [tasks, B] bool, or None when all are.
        batch: B.
    """

    values: Tensor
    squares: Tensor
    by_task: Tensor
    observed: Tensor | None
    batch: int

    @classmethod
    def of(cls, weights: Tensor, observed: Tensor | None, batch: int) -> WeightSums:
        """Sum weights that are broadcastable to [tasks, B, d]."""
        if observed is not None:
            weights = torch.where(observed[..., None], weights, 0.0)
        repeats = batch // weights.shape[1]
        by_task = weights.sum(1) * repeats
        return cls(weights.sum(0), weights.square().sum(0), by_task, observed, batch)

    @classmethod
    def joined(cls, parts: Sequence[WeightSums]) -> WeightSums:
        """Join the sums of the pieces of a batch, in order; all have masks, or none has."""
        seen = [part.observed for part in parts if part.observed is not None]
        return cls(
            torch.cat([part.values.expand(part.batch, -1) for part in parts]),
            torch.cat([part.squares.expand(part.batch, -1) for part in parts]),
            torch.stack([part.by_task for part in parts]).sum(0),
            torch.cat(seen, 1) if seen else None,
            sum(part.batch for part in parts),
        )

    def effective(self, others: Tensor | None = None) -> Tensor:
        """Effective number of tasks, [B or 1, d or 1]; see `effective_tasks`.

        Args:
            others: mean weights of tasks that have no target here, [tasks, d or 1].
        """
        values, squares = self.values, self.squares
        if self.observed is not None:
            typical, unseen = self.typical(), (~self.observed).mT.to(values.dtype)
            values = values + unseen @ typical
            squares = squares + unseen @ typical.square()
        if others is not None:
            values, squares = values + others.sum(0), squares + others.square().sum(0)
        number = values.square() / squares
        if self.observed is None:
            return number
        return torch.where(self.observed.any(0)[:, None], number, torch.nan)

    def observed_tasks(self) -> Tensor:
        """How many tasks have a target in the batch, []."""
        if self.observed is None:
            return torch.full((), len(self.by_task), device=self.by_task.device)
        return self.observed.any(1).sum()

    def typical(self) -> Tensor:
        """Mean weights over the observed examples, [tasks, d or 1]; 0 where there are none."""
        if self.observed is None:
            return self.by_task / self.batch
        return self.by_task / self.observed.sum(1).clamp(min=1)[:, None]


class Weighing(NamedTuple):
    """What the weights of a step come to; see `StepInfo`.

    Attributes:
        weights: [tasks], heads in order.
        effective_tasks: [].
        observed_tasks: [].
    """

    weights: Tensor
    effective_tasks: Tensor
    observed_tasks: Tensor

    @classmethod
    def of(
        cls, parts: Sequence[tuple[WeightSums, Mapping[str, slice]]], heads: Iterable[str]
    ) -> Weighing:
        """Of the weights by each tensor of features.

        Args:
            parts: sums of each, and which of its rows belong to which head.
            heads: names of all, in order.
        """
        if len(parts) == 1:
            ((only, _),) = parts
            return cls(only.typical().mean(1), only.effective().nanmean(), only.observed_tasks())
        mean = {
            n: sums.typical().mean(1)[rows] for sums, groups in parts for n, rows in groups.items()
        }
        numbers = []
        for one, _ in parts:
            typical = [other.typical() for other, _ in parts if other is not one]
            alike = {t.shape[1] for t in typical} <= {1, one.values.shape[1]}
            others = [t if alike else t.mean(1, keepdim=True) for t in typical]
            width = max(t.shape[1] for t in others)
            number = one.effective(torch.cat([t.expand(-1, width) for t in others]))
            numbers.append(number.expand(one.batch, -1).flatten())
        return cls(
            torch.cat([mean[name] for name in heads]),
            torch.cat(numbers).nanmean(),
            torch.stack([sums.observed_tasks() for sums, _ in parts]).sum(),
        )
