"""Plain Monte Carlo over weights: the paper's estimator for classification, and the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._finish import finish
from bayesagg_pyro.gradients._samples import outer_products, sampled_moments, squares
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["MonteCarlo"]


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

        def moments(products: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            return sampled_moments(
                head, posterior, features, targets, self.samples, generator, products
            )

        mean, variance = moments(squares)
        return finish(
            head,
            posterior,
            features,
            targets,
            mean,
            variance,
            lambda: moments(outer_products)[1],
        )

    def __repr__(self) -> str:
        return f"MonteCarlo(samples={self.samples})"
