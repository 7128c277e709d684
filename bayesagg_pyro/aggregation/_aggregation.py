"""What an aggregation is, and what the weights of its result come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.aggregation._several import apart
from bayesagg_pyro.errors import DtypeError, SettingError, ShapeError, StateError
from bayesagg_pyro.gradients import GradientDistribution, block_diag
from bayesagg_pyro.gradients._derived import widened


@dataclass(frozen=True)
class Aggregated:
    """An update direction and the weights behind it.

    Attributes:
        direction: [B, d].
        weights: α, broadcastable to [tasks, B, d], 0 where a task has no target; None for a method
            without weights. For the full covariance these are the diagonals of the weight matrices.
        jitter: [], the largest relative jitter that a factorisation took; None if none was made.
        observed: [tasks, B] bool, which task has a target for which example; None when all have.
    """

    direction: Tensor
    weights: Tensor | None = None
    jitter: Tensor | None = None
    observed: Tensor | None = None

    @property
    def effective_tasks(self) -> Tensor | None:
        """Mean effective number of tasks, [], see `effective_tasks`; None without weights."""
        if self.weights is None:
            return None
        return effective_tasks(self.weights, self.observed).nanmean()


class Aggregation(ABC):
    """Maps a gradient distribution [tasks, B, d] to a direction [B, d].

    Subclasses give `aggregate`. One that remembers something between steps gives `state_dict` and
    `load_state_dict` too.
    """

    #: Whether the weights of the tasks sum to one ("mean") or to the number of tasks ("sum").
    reduction: Literal["mean", "sum"] = "mean"

    #: Whether a task's gradient is one vector, to which numbers that are 0 for all tasks add
    #: nothing: features of any widths then serve in one step.
    flat: bool = False

    @property
    def per_example(self) -> bool:
        """Whether an example's direction depends on no other example.

        A batch may then be aggregated in pieces.
        """
        return False

    @property
    def variance_per_example(self) -> bool:
        """Whether the variance of each example matters, or only its average over the batch."""
        return True

    def reads_variance(self, head: str) -> bool:
        """Whether weights or directions rest on the variance of this head's gradients."""
        return True

    def scale_to(self, reduction: str, tasks: int) -> float:
        """Factor between a direction of so many tasks and one whose weights add up as asked.

        Raises:
            SettingError: for another reduction.
        """
        if reduction == self.reduction:
            return 1.0
        if reduction not in ("mean", "sum"):
            raise SettingError(f'reduction must be "mean" or "sum", not {reduction!r}')
        return float(tasks) if reduction == "sum" else 1 / tasks

    @abstractmethod
    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Direction, weights and diagnostics."""

    def checked(self, grad: GradientDistribution) -> Aggregated:
        """What `aggregate` gives.

        Raises:
            DtypeError, ShapeError: if that is no `Aggregated` with a direction [B, d].
        """
        found = self.aggregate(grad)
        if not isinstance(found, Aggregated):
            raise DtypeError.returned(self, "aggregate", found, "an aggregation.Aggregated")
        if found.direction.shape != grad.shape[1:]:
            raise ShapeError(
                f"{type(self).__name__}.aggregate returned a direction of shape "
                f"{list(found.direction.shape)}; it must be [B, d] = {list(grad.shape[1:])}"
            )
        return found

    def aggregate_each(
        self, grads: Sequence[GradientDistribution], heads: Mapping[str, int]
    ) -> list[Aggregated]:
        """A direction for each of several tensors of features, which some of the heads read.

        It is what `aggregate` gives for one tensor whose rows are those of all, one after the
        other, and where no task has a target at rows that its head does not read. Here that
        distribution is made, of size [tasks, sum of B, d]; subclasses may do with less, and with
        features of different widths.

        Args:
            grads: [tasks, B, d] each, with `groups` naming the heads.
            heads: {name: tasks} of all heads, in order.

        Returns:
            For each tensor what concerns its rows and tasks; directions as for a mean over its B.

        Raises:
            UnsupportedError: for features of different widths, unless the class is `flat`.
        """
        wide = max(grad.shape[2] for grad in grads)
        joint = block_diag([widened(g, wide) for g in grads] if self.flat else grads, heads)
        return apart(self.checked(joint), joint, grads)

    def check_heads(self, tasks: Mapping[str, int]) -> None:
        """Refuse settings that do not fit heads of so many tasks; the engine asks when it is made.

        Raises:
            TaskError: naming what does not fit.
        """
        return

    def state_dict(self) -> dict[str, Tensor]:
        """What it remembers from step to step, as tensors under plain names; {} for nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave; the engine saves and restores it with its own state.

        Raises:
            StateError: if the state is of another kind of aggregation.
        """
        self._check_state(state, ())

    def _check_state(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        found = {name.partition(".")[0] for name in state}
        if not found <= set(names):
            raise StateError(
                f"the saved state of an aggregation holds {sorted(found)}, {self!r} needs "
                f"{sorted(names)}: make the engine with the aggregation as saved, and set its "
                "`aggregation` to another one afterwards"
            )

    def __call__(self, grad: GradientDistribution) -> Tensor:
        """The direction alone, [B, d]."""
        return self.aggregate(grad).direction

    def weights(self, grad: GradientDistribution) -> Tensor | None:
        """The weights α, expanded to [tasks, B, d]; None for a method without weights."""
        weights = self.aggregate(grad).weights
        return None if weights is None else weights.expand_as(grad.mean)


def observed_weights(weights: Tensor, grad: GradientDistribution) -> Tensor:
    """Weights set to 0 where a task has no target, [tasks, B or 1, d or 1]."""
    if grad.observed is None:
        return weights
    return torch.where(grad.observed[..., None], weights, 0.0)


def from_weights(weights: Tensor, grad: GradientDistribution) -> Aggregated:
    """Σ_t α_t E[g_t] for these weights α, broadcastable to [tasks, B, d]."""
    direction, observed = grad.combined(weights), grad.observed
    if observed is not None:
        weights = observed_weights(weights, grad)
    return Aggregated(direction, weights, observed=observed)


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
        if len(parts) == 1:
            return parts[0]
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
