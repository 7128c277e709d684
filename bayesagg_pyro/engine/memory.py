"""Very many tasks: how a step is cut so that its temporaries fit into a given memory.

Dense posteriors are made and used for some tasks at a time and forgotten, so only their moments
[tasks, B, d] stay. Aggregation goes through some examples at a time, where examples do not mix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import gradients, linalg
from bayesagg_pyro._pieces import slices
from bayesagg_pyro.aggregation import Aggregated, Aggregation
from bayesagg_pyro.aggregation._effective import Weighing, WeightSums
from bayesagg_pyro.engine.slot import HeadStep, Slot
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head, OnePredictor
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.inference import Scheme, SecondOrder
from bayesagg_pyro.posteriors import DiagonalGaussian, Info, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import Validity

__all__ = ["aggregate", "infer"]

#: Dense matrices that a task takes while its posterior is made: data terms, precision, factor, and
#: the factor's inverse in two precisions.
_MATRICES = 5
#: Numbers for each task, example and feature that moments and weights take, in the features' dtype.
_MOMENTS = 8
#: Numbers for each task and example that the largest quadrature takes, in float64.
_NODES = 32 * 6


def infer(slot: Slot, features: Tensor, targets: Targets, memory: int | None) -> HeadStep:
    """A head's prior and posterior for a step, made some tasks at a time if they are large.

    Args:
        slot: what belongs to the head.
        features: [B, d], detached.
        targets: [B, tasks].
        memory: bytes that dense posteriors may take; None for any number.
    """
    tasks = _tasks_at_once(slot.head, slot.scheme, memory)
    if tasks is None:
        return slot.infer(features, targets)
    prior = slot.tracker.prior_for(features, targets)
    return _in_parts(_Parts(slot, features, targets, prior, tasks))


def aggregate(
    aggregation: Aggregation,
    heads: Mapping[str, HeadStep],
    groups: Sequence[Iterable[str]],
    memory: int | None,
    *,
    keep: bool = False,
) -> tuple[list[GradientDistribution], list[Aggregated], Weighing | None]:
    """Directions of the heads' gradient distributions, made some examples at a time if large.

    Args:
        aggregation: the method.
        heads: what has come of each head.
        groups: names of the heads that read the same features.
        memory: bytes that moments may take; None for any number.
        keep: whether somebody will look at the distribution, which then has the variance of each
            example also where an average would do for the direction.

    Returns:
        The joint distribution of each group, none if they were never there as a whole; direction
        and weights of each, these likewise; what the weights add up to, None for a method without
        weights.
    """
    average = not (keep or aggregation.variance_per_example)
    tasks = {name: one.slot.head.tasks for name, one in heads.items()}
    apart = [[heads[name] for name in group] for group in groups]
    sizes = [len(some[0].features) for some in apart]
    at_once = [_examples_at_once(aggregation, some, memory) for some in apart]
    whole = all(size <= most for size, most in zip(sizes, at_once, strict=True))
    rounds = [list(enumerate(slice(0, size) for size in sizes))]
    if not whole:
        pieces = enumerate(map(slices, sizes, at_once))
        rounds = [[(index, rows)] for index, cut in pieces for rows in cut]
    directions: list[list[Tensor]] = [[] for _ in apart]
    sums: list[list[WeightSums]] = [[] for _ in apart]
    owners: list[Mapping[str, slice]] = [{} for _ in apart]
    for parts in rounds:
        grads = [
            gradients.cat({one.slot.name: one.gradient(rows, average) for one in apart[index]})
            for index, rows in parts
        ]
        if len(apart) == 1:
            results = [aggregation.aggregate(grads[0])]
        else:
            results = aggregation.aggregate_each(grads, tasks)
        for (index, rows), grad, result in zip(parts, grads, results, strict=True):
            directions[index].append(result.direction)
            owners[index] = grad.groups
            if result.weights is not None:
                count = rows.stop - rows.start
                sums[index].append(WeightSums.of(result.weights, grad.observed, count))
    weighing = None
    if all(sums):
        joined = [one[0] if len(one) == 1 else WeightSums.joined(one) for one in sums]
        weighing = Weighing.of(list(zip(joined, owners, strict=True)), tasks)
    if whole:
        return grads, results, weighing
    return [], [Aggregated(torch.cat(parts)) for parts in directions], weighing


def _examples_at_once(
    aggregation: Aggregation, heads: Sequence[HeadStep], memory: int | None
) -> int:
    """All, where the method mixes examples."""
    features = heads[0].features
    if memory is None or not aggregation.per_example:
        return len(features)
    tasks = sum(one.slot.head.tasks for one in heads)
    each = tasks * (_NODES * 8 + _MOMENTS * features.shape[1] * features.element_size())
    return max(1, min(len(features), memory // each))


def _tasks_at_once(head: Head, scheme: Scheme, memory: int | None) -> int | None:
    """None for all, as for heads without a dense block for each task: of these no part is large."""
    dense = isinstance(scheme, SecondOrder) and scheme.structure == "full"
    forgotten = scheme.refresh == "step"  # a posterior that is held must be there as a whole
    if memory is None or not (dense and forgotten and isinstance(head, OnePredictor)):
        return None
    item = torch.finfo(linalg.head_dtype(head.weight.device)).bits // 8
    each = _MATRICES * item * head.weight_size**2
    return None if head.tasks * each <= memory or not divisible(head) else max(1, memory // each)


@dataclass(frozen=True)
class _Parts:
    """The step of a head, some tasks at a time; whoever goes through again has all made again."""

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
                    estimator=slot.estimator,
                    generator=slot.generator,
                ),
            )

    def covariance(self) -> Tensor:
        return torch.cat([grad.covariance_matrix for _, _, grad in self])

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return torch.cat([grad.sample((count,), generator=generator) for _, _, grad in self], 1)


@dataclass(frozen=True)
class _InParts(HeadStep):
    """What is kept of a head that was worked on in parts: `posterior` holds its marginals."""

    moments: GradientDistribution

    def gradient(self, rows: slice, average: bool = False) -> GradientDistribution:
        """Some examples of the moments."""
        return self.moments.examples(rows)

    def hold(self, validity: Validity) -> None:
        """There is nothing to hold."""


def _in_parts(parts: _Parts) -> HeadStep:
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
    return _InParts(parts.slot, features, targets, parts.prior, whole, 0, moments)
