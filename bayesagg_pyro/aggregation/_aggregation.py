"""What an aggregation is, and what it tells about its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesagg_pyro.aggregation._effective import effective_tasks
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.gradients import GradientDistribution, block_diag
from bayesagg_pyro.gradients._cat import widened

__all__ = ["Aggregated", "Aggregation", "effective_tasks"]


@dataclass(frozen=True)
class Aggregated:
    """An update direction and how it came about.

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

    @abstractmethod
    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Direction, weights and diagnostics."""

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
        return _apart(self.aggregate(joint), joint, grads)

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


def _apart(
    found: Aggregated, joint: GradientDistribution, grads: Sequence[GradientDistribution]
) -> list[Aggregated]:
    """The result for joint rows as one for each tensor of features."""
    parts, start, batch = [], 0, joint.mean.shape[1]
    for grad in grads:
        size = grad.mean.shape[1]
        rows = slice(start, start + size)
        start += size
        weights = found.weights
        if weights is not None:
            if weights.shape[1] > 1:
                weights = weights[:, rows]
            weights = torch.cat([weights[joint.groups[name]] for name in grad.groups])
        direction = found.direction[rows, : grad.mean.shape[2]] * (size / batch)
        parts.append(Aggregated(direction, weights, found.jitter, grad.observed))
    return parts


def as_joint(
    parts: Sequence[Aggregated],
    grads: Sequence[GradientDistribution],
    joint: GradientDistribution,
) -> Aggregated:
    """What `aggregate_each` gave, as the result for the joint distribution of `block_diag`.

    Where that is wider than features of some heads, their tasks' mean weights stand there.
    """
    batch, wide = joint.mean.shape[1:]
    direction = torch.cat([_behind(p.direction * (batch / len(p.direction)), wide) for p in parts])
    found = [part.weights for part in parts if part.weights is not None]
    if len(found) < len(parts):
        return Aggregated(direction, observed=joint.observed)
    width = 1 if all(weights.shape[2] == 1 for weights in found) else wide
    whole = direction.new_zeros(joint.tasks, batch, width)
    start = 0
    for weights, part, grad in zip(found, parts, grads, strict=True):
        rows = slice(start, start + len(part.direction))
        start = rows.stop
        if 1 < weights.shape[2] < width:
            mean = weights.mean(2, keepdim=True)
            weights = torch.cat([weights, mean.expand(-1, -1, width - weights.shape[2])], 2)
        for name, own in grad.groups.items():
            whole[joint.groups[name], rows] = weights[own]
    return Aggregated(direction, whole, observed=joint.observed)


def _behind(direction: Tensor, width: int) -> Tensor:
    """[B, d] with zeros behind, [B, width]."""
    return torch.nn.functional.pad(direction, (0, width - direction.shape[1]))


def observed_weights(weights: Tensor, grad: GradientDistribution) -> Tensor:
    """Weights set to 0 where a task has no target, [tasks, B or 1, d or 1]."""
    if grad.observed is None:
        return weights
    return torch.where(grad.observed[..., None], weights, 0.0)


def weighed(weights: Tensor, grad: GradientDistribution) -> Aggregated:
    """The direction of these weights, broadcastable to [tasks, B, d]."""
    direction, observed = grad.combined(weights), grad.observed
    if observed is not None:
        weights = observed_weights(weights, grad)
    return Aggregated(direction, weights, observed=observed)
