"""Gradients at weights: at many draws, the paper's estimator for classification, or at one point.

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import integers, positive_or_none
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._distribution import GradientDistribution, certain, finish
from bayesagg_pyro.gradients._error import REPEATS, Moments, repeated, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._samples import (
    outer_products,
    sampled_moments,
    squares,
)
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Empirical, Point, Posterior
from bayesagg_pyro.targets import Targets

#: Draws at most, where a tolerance asks for more.
_LIMIT = 2**17


class MonteCarlo(Estimator):
    """Sample moments over J weight vectors (the paper's eq. moments_mc); any head, any posterior.

    Samples are taken in chunks and merged with centred sums, so memory does not grow with J and the
    variance loses no digits to E[g²] − E[g]². The variance is the unbiased one.

    Args:
        samples: J, at least 2; of an `Empirical` posterior with no more, all that it has, once
            each. The standard error of a mean is sqrt(1 / J) standard deviations,
            the relative one of a variance about sqrt(2 / J), more where the gradient has heavy
            tails; `GradientDistribution.moment_error` estimates both, from as many draws again.
        tolerance: the error that is allowed, in these units, a root mean square over the features:
            samples are doubled, up to 131,072, until the estimated error is below it, and a warning
            says so if it is not. Looking at the error waits for the device.
        generator: source of randomness; the engine's, or torch's global one, if None.

    Raises:
        SettingError: if J is below 2, or the tolerance not positive.
    """

    def __init__(
        self,
        samples: int = 1024,
        *,
        tolerance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        integers(2, samples=samples)
        self.samples = samples
        self.tolerance = positive_or_none("tolerance", tolerance)
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
        if isinstance(posterior, Point):  # whose draws differ by rounding, which is no variance
            return AtPoint().estimate(head, posterior, features, targets)
        generator = self.generator or generator
        posterior = posterior.to(dtype=linalg.head_dtype(features.device))
        given = head, posterior, features, targets

        stored = len(posterior.samples) if isinstance(posterior, Empirical) else None
        count, limit = self.samples, _LIMIT
        if stored is not None:
            count, limit = min(count, stored), min(limit, stored)

        def again(samples: int, generator: torch.Generator | None) -> Moments:
            return Moments(*sampled_moments(*given, samples, generator, squares, again=True))

        def attempt(samples: int) -> GradientDistribution:
            # Stored draws are all that is known: how far they may be off, a bootstrap says.
            # The scatter of draws among S is (S − 1) / S of what it is among all.
            some = max(2, samples // REPEATS)
            share = some / samples
            if samples == stored:
                some, share = samples, samples / (samples - 1)
            return finish(
                *given,
                *sampled_moments(*given, samples, generator, squares),
                lambda: sampled_moments(*given, samples, generator, outer_products)[1],
                lambda: repeated(lambda g: again(some, g), features.device, share),
            )

        name = f"head {head.site!r}, MonteCarlo"
        return until(self.tolerance, attempt, count, limit, name)

    def __repr__(self) -> str:
        return f"MonteCarlo(samples={self.samples}, tolerance={self.tolerance})"


class AtPoint(Estimator):
    """∂ℓ/∂h at the weights of a `posteriors.Point`, by automatic differentiation; variance 0."""

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse posteriors other than a `Point`."""
        if not issubclass(kind, Point):
            raise _no_point(head, kind)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """The gradient of each task and example.

        Raises:
            DtypeError: if the posterior is not a point.
        """
        if not isinstance(posterior, Point):
            raise _no_point(head, type(posterior))
        at = posterior.to(features.device, linalg.head_dtype(features.device))
        return certain(head, at.value, features, targets)


def _no_point(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: AtPoint is for posteriors.Point, not {kind.__name__}; use "
        "gradients.MonteCarlo()"
    )
