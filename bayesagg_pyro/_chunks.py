"""Very many tasks: how a step is cut so that its temporaries fit into a given memory.

Dense posteriors are made and used for some tasks at a time and forgotten, so only their moments
[tasks, B, d] stay. Aggregation goes through some examples at a time, where examples do not mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import gradients, linalg
from bayesagg_pyro.aggregation import Aggregated, Aggregation
from bayesagg_pyro.gradients import Estimator, GradientDistribution
from bayesagg_pyro.heads import Head, OnePredictor
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.inference import Scheme, SecondOrder
from bayesagg_pyro.posteriors import DiagonalGaussian, Info, Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["ByTasks", "Summary", "aggregate", "slices"]

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
        if not (dense and isinstance(head, OnePredictor) and divisible(head)):
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
        marginals, infos = [], []
        for rows, head in self.parts():
            own = targets.part(rows)
            posterior = self.scheme.infer(head, features, own, prior.part(rows))
            grad = gradients.distribution(
                head, posterior, features, own, estimator=estimator, generator=generator
            )
            mean[rows], variance[rows] = grad.mean, grad.variance
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
        observed = None if targets.mask is None else targets.mask.mT
        return GradientDistribution(mean, variance, observed), whole

