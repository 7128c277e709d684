"""Plain Monte Carlo over weights: the paper's estimator for classification, and the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._finish import finish
from bayesagg_pyro.gradients._samples import sampled_covariance, sampled_gradients
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["MonteCarlo"]

#: Entries of the largest temporary of a chunk: 2²³ doubles are 64 MiB.
_CHUNK = 2**23


class MonteCarlo(Estimator):
    """Sample moments over J weight vectors (the paper's eq. moments_mc); any head, any posterior.

    Samples are taken in chunks and merged with centred sums, so memory does not grow with J and the
    variance loses no digits to E[g²] − E[g]². The variance is the unbiased one.

    Args:
        samples: J, at least 2. The relative error of a variance is about sqrt(2 / J).
        generator: source of randomness; the engine's, or torch's global one, if None.

    Raises:
        SettingError: if J is below 2.
    """

    def __init__(self, samples: int = 1024, *, generator: torch.Generator | None = None) -> None:
        if samples < 2:
            raise SettingError(f"MonteCarlo needs at least 2 samples, not {samples}")
        self.samples = samples
        self.generator = generator

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Sample mean and unbiased sample variance of the gradient."""
        generator = self.generator or generator
        posterior = posterior.to(dtype=linalg.head_dtype(features.device))
        batch, d = features.shape
        tasks = head.tasks
        chunk = max(1, min(self.samples, _CHUNK // (tasks * batch * d)))
        moments = _CentredSums()
        for start in range(0, self.samples, chunk):
            count = min(chunk, self.samples - start)
            weight = posterior.sample((count,), generator=generator)
            moments.add(sampled_gradients(head, weight, features, targets))

        return finish(
            head,
            posterior,
            features,
            targets,
            moments.mean,
            moments.squares / (self.samples - 1),
            lambda: sampled_covariance(head, posterior, features, targets, self.samples, generator),
        )

    def __repr__(self) -> str:
        return f"MonteCarlo(samples={self.samples})"


class _CentredSums:
    """Mean and sum of squared deviations over chunks, merged pairwise (Chan et al., 1983)."""

    mean: Tensor
    squares: Tensor

    def __init__(self) -> None:
        self.count = 0

    def add(self, chunk: Tensor) -> None:
        new = chunk.shape[0]
        mean = chunk.mean(0)
        squares = (chunk - mean).square().sum(0)
        if self.count == 0:
            self.mean, self.squares, self.count = mean, squares, new
            return
        total = self.count + new
        shift = mean - self.mean
        self.mean = self.mean + shift * (new / total)
        self.squares = self.squares + squares + shift.square() * (self.count * new / total)
        self.count = total
