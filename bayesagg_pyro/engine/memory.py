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
from bayesagg_pyro.aggregation import Aggregated, Aggregation
from bayesagg_pyro.aggregation._effective import WeightSums
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
        dtype = features.dtype if targets.weight is None else linalg.head_dtype(features.device)
        mean = features.new_empty(self.head.tasks, *features.shape, dtype=dtype)
        variance = torch.empty_like(mean)
        marginals, infos, observed, scales = [], [], [], []

        def pieces() -> Iterator[tuple[slice, Posterior, GradientDistribution]]:
            for rows, head in self.parts():
                own = targets.part(rows)
                posterior = self.scheme.infer(head, features, own, prior.part(rows))
                yield (
                    rows,
                    posterior,
                    gradients.distribution(
                        head, posterior, features, own, estimator=estimator, generator=generator
                    ),
                )

        for rows, posterior, grad in pieces():
            mean[rows], variance[rows] = grad.mean, grad.variance
            if grad.observed is not None:
                observed.append(grad.observed)
            if (scale := grad.loss_scale()) is not None:
                scales.append(scale)
            marginals.append((posterior.mean, posterior.variance))
            infos.append(posterior.info)
        known = [info for info in infos if info is not None]
        whole = DiagonalGaussian(
            torch.cat([m for m, _ in marginals]),
            torch.cat([v for _, v in marginals]).reciprocal(),
            info=Info(
                torch.cat([info.jitter for info in known]),
                torch.cat([info.condition for info in known]),
            ),
        )
        # Masks and weights are a head's: all parts have them, or none has.
        seen = torch.cat(observed) if observed else None
        factor = torch.cat(scales) if scales else None

        # Whoever asks for more than moments has the pieces made once more.
        def covariance() -> Tensor:
            return torch.cat([grad.covariance_matrix for _, _, grad in pieces()])

        def sampler(count: int, generator: torch.Generator | None) -> Tensor:
            draws = [grad.sample((count,), generator=generator) for _, _, grad in pieces()]
            return torch.cat(draws, 1)

        grad = GradientDistribution(
            mean, variance, seen, covariance=covariance, sampler=sampler, scale=factor
        )
        return grad, whole


@dataclass
class Summary:
    """What is left of the aggregation's result once it has gone through chunk by chunk.

    Attributes:
        direction: [B, d].
        weights: [tasks], mean α over observed examples and dimensions; None for methods without
            weights.
        effective_tasks: [], or None as above.
        observed_tasks: [], how many tasks have a target, or None as above.
        jitter: [], the largest one; None if no factorisation was made.
        whole: the result as it was, where there was one chunk.
    """

    direction: Tensor
    weights: Tensor | None
    effective_tasks: Tensor | None
    observed_tasks: Tensor | None
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
    whole = size >= batch
    results, sums = [], []
    for rows in slices(batch, size):
        grad = moments(rows)
        result = aggregation.aggregate(grad)
        if result.weights is not None:
            sums.append(WeightSums.of(result.weights, grad.observed, rows.stop - rows.start))
        results.append(result if whole else Aggregated(result.direction, jitter=result.jitter))
    joint = sums[0] if whole and sums else WeightSums.joined(sums) if sums else None
    jitters = [result.jitter for result in results if result.jitter is not None]
    summary = Summary(
        results[0].direction if whole else torch.cat([result.direction for result in results]),
        None if joint is None else joint.mean(),
        None if joint is None else joint.effective().nanmean(),
        None if joint is None else joint.observed_tasks(),
        torch.stack(jitters).amax(0) if jitters else None,
        results[0] if whole else None,
    )
    return summary, grad if whole else None
