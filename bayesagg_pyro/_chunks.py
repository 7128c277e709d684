"""Very many tasks: how a step is cut so that its temporaries fit into a given memory.

Dense posteriors are made and used for some tasks at a time and forgotten, so only their moments
[tasks, B, d] stay. Aggregation goes through some examples at a time, where examples do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import gradients, linalg
from bayesagg_pyro.aggregation import Aggregated, Aggregation, effective_tasks
from bayesagg_pyro.gradients import Estimator, GradientDistribution
from bayesagg_pyro.heads import Head, OnePredictor
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.inference import Scheme, SecondOrder
from bayesagg_pyro.posteriors import DiagonalGaussian, Info, Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["ByTasks", "Summary", "aggregate", "examples_at_once", "slices"]

#: Dense matrices that a task takes while its posterior is made: data terms, precision, factor, and
#: the factor's inverse in two precisions.
_MATRICES = 5
#: Numbers for each task, example and feature that moments and weights take, in the features' dtype.
_MOMENTS = 8
#: Numbers for each task and example that the largest quadrature takes, in float64.
_NODES = 32 * 6


def slices(length: int, size: int) -> Iterator[slice]:
    """Cover 0 … length in pieces of at most `size`."""
    return (slice(i, min(i + size, length)) for i in range(0, length, max(1, size)))


@dataclass(frozen=True)
class ByTasks:
    """Posterior and moments of a head, some tasks at a time.

    Attributes:
        head: the head.
        scheme: how posteriors are inferred.
        tasks: as many as are handled at once.
    """

    head: Head
    scheme: Scheme
    tasks: int

    @classmethod
    def needed(cls, head: Head, scheme: Scheme, memory: int) -> ByTasks | None:
        """How to cut the head's step into pieces of so many bytes; None where it fits whole.

        Only heads with one dense block for each task are cut; of others no part is large.
        """
        dense = isinstance(scheme, SecondOrder) and scheme.structure == "full"
        forgotten = scheme.refresh == "step"  # a posterior that is held must be there as a whole
        if not (dense and forgotten and isinstance(head, OnePredictor) and divisible(head)):
            return None
        item = torch.finfo(linalg.head_dtype(head.weight.device)).bits // 8
        each = _MATRICES * item * head.weight_size**2
        if head.tasks * each <= memory:
            return None
        return cls(head, scheme, max(1, memory // each))

    def parts(self) -> Iterator[tuple[slice, Head]]:
        """Rows and head of each piece."""
        return ((rows, part(self.head, rows)) for rows in slices(self.head.tasks, self.tasks))

    def moments(
        self,
        features: Tensor,
        targets: Targets,
        prior: Posterior,
        estimator: Estimator | None,
        generator: torch.Generator | None,
    ) -> tuple[GradientDistribution, Posterior]:
        """The gradient's moments, and the posterior's marginals with its `info`."""
        mean = features.new_empty(self.head.tasks, *features.shape)
        variance = torch.empty_like(mean)
        marginals, infos, observed, scales = [], [], [], []
        for rows, head in self.parts():
            own = targets.part(rows)
            posterior = self.scheme.infer(head, features, own, prior.part(rows))
            grad = gradients.distribution(
                head, posterior, features, own, estimator=estimator, generator=generator
            )
            mean[rows], variance[rows] = grad.mean, grad.variance
            if grad.observed is not None:
                observed.append(grad.observed)
            if (scale := grad.loss_scale()) is not None:
                scales.append(scale)
            marginals.append((posterior.mean, posterior.variance))
            infos.append(posterior.info)
        whole = DiagonalGaussian(
            torch.cat([m for m, _ in marginals]), torch.cat([v for _, v in marginals]).reciprocal()
        )
        known = [info for info in infos if info is not None]
        whole.info = Info(
            torch.cat([info.jitter for info in known]),
            torch.cat([info.condition for info in known]),
        )
        # Masks and weights are a head's: all parts have them, or none has.
        seen = torch.cat(observed) if observed else None
        factor = torch.cat(scales) if scales else None
        return GradientDistribution(mean, variance, seen, scale=factor), whole


@dataclass
class Summary:
    """What is left of the aggregation's result once it has gone through chunk by chunk.

    Attributes:
        direction: [B, d].
        weights: [tasks], mean α over examples and dimensions; None for methods without weights.
        effective_tasks: [], or None as above.
        jitter: [], the largest one; None if no factorisation was made.
        whole: the result as it was, where there was one chunk.
    """

    direction: Tensor
    weights: Tensor | None
    effective_tasks: Tensor | None
    jitter: Tensor | None
    whole: Aggregated | None = None


def examples_at_once(
    aggregation: Aggregation, tasks: int, batch: int, features: Tensor, memory: int
) -> int:
    """How many examples to aggregate at a time: all, where the method mixes examples."""
    if not aggregation.per_example:
        return batch
    each = tasks * (_NODES * 8 + _MOMENTS * features.shape[1] * features.element_size())
    return max(1, min(batch, memory // each))


def aggregate(
    aggregation: Aggregation,
    moments: Callable[[slice], GradientDistribution],
    batch: int,
    size: int,
) -> tuple[Summary, GradientDistribution | None]:
    """Aggregate `size` examples at a time.

    Args:
        aggregation: the method.
        moments: gives the joint gradient distribution of some examples.
        batch: B.
        size: as many examples as are handled at once.

    Returns:
        The result, and the gradient distribution where all examples were handled at once.
    """
    if size >= batch:
        grad = moments(slice(0, batch))
        result = aggregation.aggregate(grad)
        weights = None if result.weights is None else result.weights.mean((1, 2))
        direction, effective = result.direction, result.effective_tasks
        return Summary(direction, weights, effective, result.jitter, result), grad
    found, numbers = [], []  # effective numbers of tasks by example, NaN without any target
    for rows in slices(batch, size):
        result = aggregation.aggregate(moments(rows))
        share = (rows.stop - rows.start) / batch
        weights = None if result.weights is None else result.weights.mean((1, 2)) * share
        found.append(Summary(result.direction, weights, None, result.jitter))
        if result.weights is not None:
            numbers.append(effective_tasks(result.weights).mean(1))
    return (
        Summary(
            torch.cat([part.direction for part in found]),
            _total([part.weights for part in found]),
            torch.cat(numbers).nanmean() if numbers else None,
            _largest([part.jitter for part in found]),
        ),
        None,
    )


def _total(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if known else None


def _largest(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).amax(0) if known else None
