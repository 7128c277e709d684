"""Gradients at weights: at many draws, the paper's estimator for classification, or at one point.

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import LARGE, fitting, slices
from bayesagg_pyro._settings import integers, positive_or_none
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import REPEATS, Moments, repeated, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._samples import certain, finish, sampled_gradients
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


def sampled_moments(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    samples: int,
    generator: torch.Generator | None,
    products: Callable[[Tensor], Tensor],
    *,
    again: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and unbiased second central moment over draws of the weights, in chunks.

    As many as an `Empirical` posterior has are those, once each.

    Args:
        head: the head.
        posterior: over its weights.
        features: [B, d].
        targets: [B, tasks].
        samples: number of draws.
        generator: source of randomness.
        products: sums the products of centred gradients [n, tasks, B, d] over the first axis.
        again: draw from the stored ones all the same, as a bootstrap does.
    """
    total = CentredSums(products)
    stored = posterior.samples if isinstance(posterior, Empirical) and not again else None
    if stored is not None and len(stored) != samples:
        stored = None
    for part in slices(samples, fitting(head.numbers_per_draw(len(features)), LARGE)):
        drawn = (part.stop - part.start,)
        weight = posterior.sample(drawn, generator=generator) if stored is None else stored[part]
        total.add(sampled_gradients(head, weight, features, targets))
    return total.mean, total.products / (samples - 1)


def squares(centred: Tensor) -> Tensor:
    """Products for variances, [n, tasks, B, d] to [tasks, B, d]."""
    return centred.square().sum(0)


def outer_products(centred: Tensor) -> Tensor:
    """Products for full covariances, [n, tasks, B, d] to [tasks, B, d, d]."""
    return torch.einsum("stbd,stbe->tbde", centred, centred)


class CentredSums:
    """Mean and sum of products of deviations over chunks, merged pairwise.

    Chan, Golub and LeVeque (1983), https://doi.org/10.1080/00031305.1983.10483115.

    Args:
        products: sums the products of [n, ...] centred samples over the first axis.
    """

    mean: Tensor
    products: Tensor

    def __init__(self, products: Callable[[Tensor], Tensor]) -> None:
        self._products = products
        self._count = 0

    def add(self, chunk: Tensor) -> None:
        """Take in samples [n, ...]."""
        new = chunk.shape[0]
        mean = chunk.mean(0)
        products = self._products(chunk - mean)
        if self._count == 0:
            self.mean, self.products, self._count = mean, products, new
            return
        total = self._count + new
        shift = mean - self.mean
        self.mean = self.mean + shift * (new / total)
        between = self._products(shift[None]) * (self._count * new / total)
        self.products = self.products + products + between
        self._count = total
