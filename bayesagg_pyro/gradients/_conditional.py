"""Moments for softmax heads, sampling only the logits (Rao-Blackwell).

Given the C logits f = W h of one example, W is Gaussian with a mean linear in f. With f = E f + R z
and G_k = Cov(W, f) R⁻¹ e_k, R the symmetric root of Cov(f), and δ(z) = softmax(f) − e_y,

    E[g | z]   = Σ_c δ_c (M_c + Σ_k z_k G_kc),     Var[g | z]_d = Σ_ce δ_c δ_e V_ced,
    V_ced      = Cov(W_cd, W_ed) − Σ_k G_kcd G_ked.

So only z ∈ R^C is drawn, from a generator or a scrambled Sobol sequence, and the same for all
examples. E[g | z] is linear in φ = (δ_c, δ_c z_k): the mean and covariance of φ are all that is
needed of the samples, and d never meets the sample axis unless that is cheaper.

Of all roots the symmetric one keeps z_c nearest to the logit of class c: softmax is then closest to
a sum of functions of one coordinate each, which is what Sobol points integrate best. (20 classes,
wide posteriors: their error in the variance, over that of plain draws, is 0.26 to 0.5; in the basis
of eigenvectors it was 0.37 to 0.8.)

Posteriors without covariance between outputs in some basis (diagonal; Kronecker in its eigenbasis)
have G_kc = 0 for k ≠ c there, which leaves 2 C features φ in place of C + C².
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.errors import DtypeError, SettingError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import Moments, check_tolerance, repeated, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._finish import finish
from bayesagg_pyro.gradients._registry import same_model
from bayesagg_pyro.gradients._samples import outer_products, sampled_moments
from bayesagg_pyro.heads import Categorical, Head
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    GaussianFamily,
    KroneckerGaussian,
    Posterior,
)
from bayesagg_pyro.targets import Targets

__all__ = ["Conditional", "take"]

#: Entries of the largest temporary of a chunk of examples: 2²⁰ doubles are 8 MiB, near a cache.
_CHUNK = 2**20
#: Samples at most, where a tolerance asks for more.
_LIMIT = 2**16


class Conditional(Estimator):
    """Sampled logits, exact conditional moments of the weights; for Categorical heads.

    Args:
        samples: J, at least 2; a power of 2 suits Sobol.
        sobol: scrambled Sobol points in place of independent draws, whose errors shrink faster
            (there are none for more than 21,201 classes, which get independent draws).
        tolerance: the error that is allowed, of the mean in standard deviations and of the variance
            relative to it, a root mean square over the features: samples are doubled, up to 65,536,
            until the estimated standard error is below it, and a warning says so if it is not.
            Looking at the error waits for the device.
        generator: source of randomness; the engine's, or torch's global one, if None.

    The standard error (`GradientDistribution.moment_error`) is the scatter of 16 independent
    repetitions, with scramblings of their own, and costs as much; a tolerance does so at each try.

    Raises:
        SettingError: if J is below 2, or the tolerance not positive.
    """

    def __init__(
        self,
        samples: int = 256,
        *,
        sobol: bool = True,
        tolerance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if samples < 2:
            raise SettingError(f"Conditional needs at least 2 samples, not {samples}")
        self.samples = samples
        self.sobol = sobol
        self.tolerance = check_tolerance(tolerance)
        self.generator = generator

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Mean and variance; the full covariance on request is from plain draws.

        Raises:
            DtypeError: if the head is not Categorical (or changes its loss) or the posterior not
                Gaussian.
        """
        generator = self.generator or generator
        softmax = isinstance(head, Categorical) and same_model(type(head), Categorical)
        softmax = softmax and head.embedding is None
        if not softmax or not isinstance(posterior, GaussianFamily):
            raise DtypeError(
                f"Conditional is for Categorical heads (without embedding) with Gaussian "
                f"posteriors, not {type(head).__name__} with {type(posterior).__name__}; use "
                "gradients.MonteCarlo()"
            )
        assert isinstance(head, Categorical)
        design = head.exact(features)
        posterior = posterior.to(design.device, design.dtype)

        def moments(samples: int, generator: torch.Generator | None) -> Moments:
            return self._moments(head, posterior, design, targets, samples, generator)

        def attempt(samples: int) -> GradientDistribution:
            return finish(
                head,
                posterior,
                features,
                targets,
                *moments(samples, generator),
                lambda: sampled_moments(
                    head, posterior, features, targets, samples, generator, outer_products
                )[1],
                lambda: repeated(lambda g: moments(samples, g), features.device),
            )

        name = f"head {head.site!r}, Conditional"
        return until(self.tolerance, attempt, self.samples, _LIMIT, name)

    def _moments(
        self,
        head: Categorical,
        posterior: GaussianFamily,
        design: Tensor,
        targets: Targets,
        samples: int,
        generator: torch.Generator | None,
    ) -> Moments:
        """Mean and variance, [tasks, B, d], some examples at a time."""
        z = self._normal(samples, head.classes, design, generator)
        c = head.classes
        coefficients = 2 * c if _independent(posterior) else c + c * c
        per_example = head.tasks * coefficients * max(samples, head.in_features)
        size = max(1, _CHUNK // per_example)
        parts = [
            self._chunk(head, posterior, design[rows], take(targets, rows), z)
            for rows in (slice(i, i + size) for i in range(0, len(design), size))
        ]
        return Moments(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))

    def _chunk(
        self,
        head: Categorical,
        posterior: GaussianFamily,
        design: Tensor,
        targets: Targets,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance for some examples, [tasks, b, d]."""
        law = (
            _independent_law(head, posterior, design)
            if _independent(posterior)
            else _dense_law(head, posterior, design)
        )
        delta = law.logits(z).softmax(-1)  # [tasks, b, J, C]
        # δ_y = p_y − 1 is minus the sum of the others, which has no digits of 1 to lose.
        own = targets.values.mT[..., None, None].expand(*delta.shape[:-1], 1)
        delta.scatter_(-1, own, 0.0)
        delta.scatter_(-1, own, -delta.sum(-1, keepdim=True))
        weight = head.target_weight(targets.values)
        if weight is not None:
            delta *= weight.mT[..., None, None].to(delta.dtype)
        return law.moments(delta, z, len(z) if self.sobol else len(z) - 1)

    def _normal(
        self, samples: int, dimension: int, like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Standard normal points, [samples, dimension]."""
        if not self.sobol or dimension > torch.quasirandom.SobolEngine.MAXDIM:
            return torch.randn(
                samples, dimension, generator=generator, dtype=like.dtype, device=like.device
            )
        device = None if generator is None else generator.device
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=device))
        engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
        uniform = engine.draw(samples, dtype=torch.float64)
        # The engine has 30 bits; the points are moved off 0 by half a step.
        uniform = uniform.clamp(2.0**-31, 1 - 2.0**-31)
        points: Tensor = torch.special.ndtri(uniform)
        return points.to(like)

    def __repr__(self) -> str:
        return (
            f"Conditional(samples={self.samples}, sobol={self.sobol}, tolerance={self.tolerance})"
        )


class _DenseLaw(NamedTuple):
    """Logits with a full covariance; a = (M, G) holds the coefficients of φ."""

    mean: Tensor  #: E f, [tasks, b, C]
    scale: Tensor  #: R with Cov(f) = R Rᵀ, [tasks, b, C, C]
    weight_mean: Tensor  #: M, [tasks, C, d]
    gain: Tensor  #: G_kcd, [tasks, b, C (k), C (c), d]
    blocks: Tensor  #: Cov(W_cd, W_ed), [tasks, C, C, d]

    def logits(self, z: Tensor) -> Tensor:
        return self.mean[..., None, :] + z @ self.scale.mT

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        batch = self.mean.shape[1]
        # φ and its coefficients, class by class: (δ_c, δ_c z_1, ...) and (M_c, G_1c, ...).
        phi = (delta[..., None] * _with_one(z)[:, None]).flatten(-2)
        own = self.weight_mean[:, None, :, None].expand(-1, batch, -1, -1, -1)
        coefficients = torch.cat([own, self.gain.transpose(2, 3)], 3).flatten(2, 3)
        mean, variance = _linear_moments(phi, coefficients, degrees)
        outer = delta.mT @ delta / len(z)
        conditional = torch.einsum("tbce,tced->tbd", outer, self.blocks)
        # Σ_ce E[δ_c δ_e] Σ_k G_kcd G_ked
        conditional -= torch.einsum("tbce,tbkcd,tbked->tbd", outer, self.gain, self.gain)
        return mean, variance + conditional.clamp(min=0)


class _IndependentLaw(NamedTuple):
    """Logits independent in the basis of the columns of `basis` (None: as they are)."""

    basis: Tensor | None  #: Q, [tasks, C, C]
    mean: Tensor  #: E f in that basis, [tasks, b, C]
    std: Tensor  #: [tasks, b, C]
    weight_mean: Tensor  #: M in that basis, [tasks, C, d]
    gain: Tensor  #: G_cd, [tasks, b, C, d]
    variance: Tensor  #: variances of the weights in that basis, [tasks, C, d]

    def logits(self, z: Tensor) -> Tensor:
        f = self.mean[..., None, :] + self.std[..., None, :] * self._turned(z)
        return f if self.basis is None else f @ self.basis.mT[:, None]

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        delta, z = self._turned(delta), self._turned(z)
        phi = torch.cat([delta, delta * z], -1)
        own = self.weight_mean[:, None].expand_as(self.gain)
        mean, variance = _linear_moments(phi, torch.cat([own, self.gain], 2), degrees)
        square = delta.square().mean(2)  # [tasks, b, C]
        left = (self.variance[:, None] - self.gain.square()).clamp_(min=0)
        return mean, variance + torch.einsum("tbc,tbcd->tbd", square, left)

    def _turned(self, values: Tensor) -> Tensor:
        """From classes to the basis, along the last axis: z itself is near the classes' logits."""
        return values if self.basis is None else values @ self.basis[:, None]


def _linear_moments(phi: Tensor, a: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of φ a over samples: φ [tasks, b, J, q], a [tasks, b, q, d]."""
    centre = phi.mean(2, keepdim=True)
    mean = (centre @ a)[..., 0, :]
    phi -= centre
    if a.shape[-1] > a.shape[-2]:  # fewer coefficients than features: d stays out of the samples
        covariance = phi.mT @ phi / degrees
        return mean, ((covariance @ a) * a).sum(-2).clamp(min=0)
    return mean, (phi @ a).square_().sum(2) / degrees


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z.new_ones(len(z), 1), z], 1)


def _independent(posterior: GaussianFamily) -> bool:
    return isinstance(posterior, DiagonalGaussian | KroneckerGaussian)


def _dense_law(head: Categorical, posterior: GaussianFamily, design: Tensor) -> _DenseLaw:
    classes, d = head.classes, head.in_features
    weight_mean = posterior.mean.unflatten(-1, (classes, -1))
    s = posterior.covariance_matrix.unflatten(-1, (classes, -1)).unflatten(-3, (classes, -1))
    s = s.expand(head.tasks, -1, -1, -1, -1)  # [tasks, C, D, C, D]
    cross = torch.einsum("tcdke,be->tbkcd", s, design)  # Cov(W_cd, f_k)
    covariance = torch.einsum("tbkcd,bd->tbkc", cross, design)
    covariance = 0.5 * (covariance + covariance.mT)
    # An eigenvector basis needs no jitter: directions without variance (all of them for h = 0
    # without a bias) drop out of the term in z.
    values, vectors = torch.linalg.eigh(0.5 * (covariance + covariance.mT))
    certain = values <= values[..., -1:] * classes * torch.finfo(values.dtype).eps
    scale = (vectors * torch.where(certain, 0.0, values).sqrt()[..., None, :]) @ vectors.mT
    inverse = (vectors * torch.where(certain, 0.0, values.rsqrt())[..., None, :]) @ vectors.mT
    mean = torch.einsum("bd,tcd->tbc", design, weight_mean)
    # The first coordinates of Sobol points are the most even: they go to the likeliest classes.
    order = mean + covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    order = order.argsort(-1, descending=True)[..., None, :].expand_as(scale)
    scale, inverse = scale.gather(-1, order), inverse.gather(-1, order)
    gain = torch.einsum("tbkl,tbkcd->tblcd", inverse, cross[..., :d])
    return _DenseLaw(
        mean,
        scale,
        weight_mean[..., :d],
        gain,
        s[..., :d, :, :d].diagonal(dim1=2, dim2=4),
    )


def _independent_law(
    head: Categorical, posterior: GaussianFamily, design: Tensor
) -> _IndependentLaw:
    classes, d = head.classes, head.in_features
    weight_mean = posterior.mean.unflatten(-1, (classes, -1))
    if isinstance(posterior, KroneckerGaussian):
        q1, q2, values = posterior.eigen
        scaled = (design @ q2)[:, :, None] / values[:, None]  # [tasks, b, C, D]
        cross = scaled @ q2.mT[:, None]
        variance = values.reciprocal() @ q2.square().mT
        basis: Tensor | None = q1
        weight_mean = q1.mT @ weight_mean
    else:
        variance = posterior.variance.unflatten(-1, (classes, -1))
        cross = variance[:, None] * design[:, None]
        basis = None
    std = (cross @ design[..., None])[..., 0].clamp(min=0).sqrt()  # [tasks, b, C]
    tiny = math.sqrt(torch.finfo(std.dtype).tiny)
    gain = torch.where(std[..., None] > 0, cross[..., :d] / std[..., None].clamp(min=tiny), 0.0)
    return _IndependentLaw(
        basis,
        torch.einsum("bd,tcd->tbc", design, weight_mean),
        std,
        weight_mean[..., :d],
        gain,
        variance[..., :d],
    )


def take(targets: Targets, rows: slice) -> Targets:
    """The targets of some examples."""
    values, mask, weight = targets
    return Targets(
        values[rows], None if mask is None else mask[rows], None if weight is None else weight[rows]
    )
