"""Very many tasks: how a step is cut so that its temporaries fit into a given memory.

Dense posteriors are made and used for some tasks at a time and forgotten, so only their moments
[tasks, B, d] stay. Aggregation goes through some examples at a time, where examples do not mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import gradients, linalg
from bayesagg_pyro._pieces import slices
from bayesagg_pyro.aggregation import Aggregated, Aggregation
from bayesagg_pyro.aggregation._aggregation import Weighing, WeightSums
from bayesagg_pyro.engine.batch import Group
from bayesagg_pyro.engine.slot import HeadStep, Slot
from bayesagg_pyro.gradients import GradientDistribution, cat
from bayesagg_pyro.gradients._derived import weighted
from bayesagg_pyro.heads import OnePredictor
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.inference import SecondOrder
from bayesagg_pyro.posteriors import DiagonalGaussian, Info, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import Validity

#: Dense matrices that a task takes while its posterior is made: data terms, precision, factor, and
#: the factor's inverse in two precisions.
_MATRICES = 5
#: Numbers for each task, example and feature that moments and weights take, in the features' dtype.
_MOMENTS = 8
#: Numbers for each task and example that the largest quadrature takes, in float64.
_NODES = 32 * 6


def infer_by_tasks(slot: Slot, features: Tensor, targets: Targets, memory: int) -> HeadStep | None:
    """A head's prior and posterior for a step, made some tasks at a time; None if all fit at once.

    Args:
        slot: what belongs to the head.
        features: [B, d], detached.
        targets: [B, tasks].
        memory: bytes that dense posteriors may take.
    """
    head, scheme = slot.head, slot.scheme
    dense = isinstance(scheme, SecondOrder) and scheme.structure == "full"
    forgotten = scheme.refresh == "step"  # a posterior that is held must be there as a whole
    if not (dense and forgotten and isinstance(head, OnePredictor)):
        return None
    each = _MATRICES * 8 * head.weight_size**2
    if head.tasks * each <= memory or not divisible(head):
        return None
    prior = slot.tracker.prior_for(features, targets)
    return _made(_SomeTasks(slot, features, targets, prior, max(1, memory // each)))


def aggregate_by_examples(
    aggregation: Aggregation, heads: Mapping[str, HeadStep], groups: Sequence[Group], memory: int
) -> tuple[list[GradientDistribution], list[Aggregated], Weighing | None] | None:
    """Directions of a step, made some examples at a time; None if all fit at once.

    Args:
        aggregation: of the joint gradient distribution, `per_example`.
        heads: what has come of each head.
        groups: the heads that read the same features, each group apart.
        memory: bytes that moments may take.

    Returns:
        No distribution, for none is there as a whole; the direction of each group; what the weights
        come to, None for a method without weights.
    """
    cut = [list(_pieces(group, heads, memory)) for group in groups]
    if all(len(pieces) == 1 for pieces in cut):
        return None
    average = not aggregation.variance_per_example
    tasks = {name: one.slot.head.tasks for name, one in heads.items()}
    results, sums = [], []
    for group, pieces in zip(groups, cut, strict=True):
        directions, weights = [], []
        for rows in pieces:
            grad = cat({name: heads[name].gradient(rows, average) for name in group.targets})
            if len(groups) == 1:
                found = aggregation.checked(grad)
            else:
                (found,) = aggregation.aggregate_each([grad], tasks)
            directions.append(found.direction)
            if found.weights is not None:
                weights.append(WeightSums.of(found.weights, grad.observed, grad.shape[1]))
        results.append(Aggregated(torch.cat(directions)))
        if weights:
            sums.append((WeightSums.joined(weights), grad.groups))
    return [], results, Weighing.of(sums, heads) if sums else None


def _pieces(group: Group, heads: Mapping[str, HeadStep], memory: int) -> Iterator[slice]:
    """Examples of a group in pieces whose moments fit."""
    own = [heads[name] for name in group.targets]
    tasks, h = sum(one.slot.head.tasks for one in own), own[0].features
    each = tasks * (_NODES * 8 + _MOMENTS * h.shape[1] * h.element_size())
    return slices(len(h), max(1, memory // each))


@dataclass(frozen=True)
class _SomeTasks:
    """A head's posterior and gradients, some tasks at a time; made anew at each passage."""

    slot: Slot
    features: Tensor
    targets: Targets
    prior: Posterior
    tasks: int

    def __iter__(self) -> Iterator[tuple[slice, Posterior, GradientDistribution]]:
        slot = self.slot
        for rows in slices(slot.head.tasks, self.tasks):
            head, targets = part(slot.head, rows), self.targets.part(rows)
            posterior = slot.scheme.infer(head, self.features, targets, self.prior.part(rows))
            yield (
                rows,
                posterior,
                gradients.distribution(
                    head,
                    posterior,
                    self.features,
                    targets,
                    estimator=slot.estimators[slot.name],
                    generator=slot.generator,
                ),
            )

    def covariance(self) -> Tensor:
        return torch.cat([grad.covariance_matrix for _, _, grad in self])

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return torch.cat([grad.sample((count,), generator=generator) for _, _, grad in self], 1)


@dataclass(frozen=True)
class _ByTasks(HeadStep):
    """A head that was worked on some tasks at a time: `posterior` holds its marginals alone."""

    moments: GradientDistribution

    def gradient(self, rows: slice | None = None, average: bool = False) -> GradientDistribution:
        """Some examples of the moments."""
        return self.moments if rows is None else self.moments.examples(rows)

    def hold(self, validity: Validity) -> None:
        """There is nothing to hold."""


def _made(parts: _SomeTasks) -> HeadStep:
    features, targets = parts.features, parts.targets
    dtype = features.dtype if targets.weight is None else linalg.head_dtype(features.device)
    mean = features.new_empty(parts.slot.head.tasks, *features.shape, dtype=dtype)
    variance = torch.empty_like(mean)
    marginals, infos, observed, scales = [], [], [], []
    for rows, posterior, grad in parts:
        mean[rows], variance[rows] = grad.mean, grad.variance
        if grad.observed is not None:
            observed.append(grad.observed)
        if (scale := grad.loss_scale()) is not None:
            scales.append(scale)
        marginals.append((posterior.mean, posterior.variance))
        if posterior.info is not None:
            infos.append(posterior.info)
    whole = DiagonalGaussian(
        torch.cat([m for m, _ in marginals]),
        torch.cat([v for _, v in marginals]).reciprocal(),
        info=Info(
            torch.cat([info.jitter for info in infos]),
            torch.cat([info.condition for info in infos]),
        ),
    )
    moments = GradientDistribution(
        mean,
        variance,
        # Masks and weights are a head's: all parts have them, or none has.
        torch.cat(observed) if observed else None,
        covariance=parts.covariance,
        sampler=parts.sample,
        batch_loss_scale=torch.cat(scales) if scales else None,
    )
    if (size := parts.slot.loss_size) is not None:
        moments = weighted(moments, (1 / size).expand(len(features), -1))
    return _ByTasks(parts.slot, features, targets, parts.prior, whole, 0, moments)
