"""Moments for heads of a mean f and a log-variance s: only the two are integrated over.

Given both predictors the weights are Gaussian with a linear mean (Rao-Blackwell), as in
`_conditional`. With s = E s + σ x and f = E f + κ x + ρ z, x and z independent standard normal,
and with δ = (∂ℓ/∂f, ∂ℓ/∂s), W = (W_f, W_s) and the gains K = Cov(W, x), R = Cov(W, z),

    E[g | x, z]   = Σ_c δ_c (M_c + K_c x + R_c z),
    Var[g | x, z] = Σ_ce δ_c δ_e (Cov(W_c, W_e) − K_c K_e − R_c R_e)   for each feature.

In z the integrand is a polynomial of degree 6, for which four Gauss-Hermite nodes are exact; in x
it is a polynomial times exponentials up to exp(−2s), for which an evenly spaced rule as far as
their mass lies converges exponentially.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import Moments, refined
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.gradients._samples import finish
from bayesagg_pyro.heads import Heteroscedastic
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.quadrature import EXPONENTIAL, normal_rule
from bayesagg_pyro.targets import Targets

#: Nodes in x; enough for a standard deviation of the log-variance of 3 (tests/heads).
_NODES = 48
#: The four roots of He₄, z² = 3 ± √6, and their weights (3 ∓ √6) / 12.
_INNER, _OUTER = (3 - 6**0.5) ** 0.5, (3 + 6**0.5) ** 0.5
_ROOTS = (-_OUTER, -_INNER, _INNER, _OUTER)
_MASSES = tuple((3 + sign * 6**0.5) / 12 for sign in (-1, 1, 1, -1))


@register(Heteroscedastic, GaussianFamily)
def heteroscedastic_moments(
    head: Heteroscedastic, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Mean and variance by a product rule over (f, s); the full covariance on request."""
    design = head.design_matrix(features)
    posterior = posterior.to(design.device, design.dtype)
    each = head.tasks * max(len(_ROOTS) * _NODES * 6, 4 * head.in_features)
    chunks = list(slices(len(design), fitting(each, CACHE)))

    def integrated(nodes: int) -> list[_Sums]:
        return [
            _integrate(head, posterior, design[rows], targets.examples(rows), nodes)
            for rows in chunks
        ]

    def moments(sums: list[_Sums]) -> Moments:
        return Moments(
            torch.cat([s.mean() for s in sums], 1), torch.cat([s.variance() for s in sums], 1)
        )

    sums = integrated(_NODES)
    found = moments(sums)
    return finish(
        head,
        posterior,
        features,
        targets,
        *found,
        lambda: torch.cat([s.covariance() for s in sums], 1),
        lambda: refined(found, moments(integrated(2 * _NODES))),
    )


class _Sums(NamedTuple):
    """What is left once (f, s) are integrated out; the coefficients are (M, K, R) per output."""

    coefficients: Tensor  #: [tasks, b, 6, d]
    phi_mean: Tensor  #: E φ with φ = (δ_c, δ_c x, δ_c z), [tasks, b, 6]
    phi_covariance: Tensor  #: [tasks, b, 6, 6]
    squares: Tensor  #: E[δ_c δ_e], [tasks, b, 2, 2]
    gain: Tensor  #: K and R, [tasks, b, 2 (c), 2 (of x, z), d]
    weight_covariance: Tensor  #: Cov(W_cd, W_ed'), [tasks or 1, 2, d, 2, d]

    def mean(self) -> Tensor:
        return torch.einsum("tbq,tbqd->tbd", self.phi_mean, self.coefficients)

    def variance(self) -> Tensor:
        a = self.coefficients
        between = ((self.phi_covariance @ a) * a).sum(-2)
        own = self.weight_covariance.diagonal(dim1=2, dim2=4)  # [tasks or 1, c, e, d]
        own = own.expand(len(a), -1, -1, -1)
        within = torch.einsum("tbce,tced->tbd", self.squares, own)
        within -= torch.einsum("tbce,tbckd,tbekd->tbd", self.squares, self.gain, self.gain)
        return between.clamp(min=0) + within.clamp(min=0)

    def covariance(self) -> Tensor:
        a = self.coefficients
        own = self.weight_covariance.expand(len(a), -1, -1, -1, -1)
        full = a.mT @ self.phi_covariance @ a
        full += torch.einsum("tbce,tcdef->tbdf", self.squares, own)
        full -= torch.einsum("tbce,tbckd,tbekf->tbdf", self.squares, self.gain, self.gain)
        return 0.5 * (full + full.mT)


def _integrate(
    head: Heteroscedastic, posterior: GaussianFamily, design: Tensor, targets: Targets, nodes: int
) -> _Sums:
    d, tasks = head.in_features, head.tasks
    weight_mean = posterior.mean.unflatten(-1, (2, -1))  # [tasks, 2, D]
    s = posterior.covariance_matrix.unflatten(-1, (2, -1)).unflatten(-3, (2, -1))
    centre = torch.einsum("bd,tcd->tbc", design, weight_mean)
    cross = torch.einsum("tcdke,be->tbkcd", s, design)  # Cov(W_cd, output k)
    spread = torch.einsum("tbkcd,bd->tbkc", cross, design)  # Cov of the outputs
    cross = cross[..., :d].expand(tasks, -1, -1, -1, -1)

    # The triangular factor that begins with s; a predictor without variance has no part.
    sigma, over_sigma = _root(spread[..., 1, 1], 0.0)
    kappa = 0.5 * (spread[..., 0, 1] + spread[..., 1, 0]) * over_sigma
    rho, over_rho = _root(spread[..., 0, 0] - kappa.square(), spread[..., 0, 0])
    k = cross[:, :, 1] * over_sigma[..., None, None]
    r = (cross[:, :, 0] - kappa[..., None, None] * k) * over_rho[..., None, None]

    sigma, kappa, rho = (x.expand(tasks, -1) for x in (sigma, kappa, rho))
    x, p = normal_rule(centre[..., 1], sigma, nodes, EXPONENTIAL)  # [N, tasks, b]
    z = x.new_tensor(_ROOTS)[:, None, None, None]
    f = centre[..., 0] + kappa * x + rho * z  # [4, N, tasks, b]
    log_variance = (centre[..., 1] + sigma * x).expand_as(f)
    y = targets.values.to(design.dtype).mT
    delta = head.loss_derivatives(torch.stack([f, log_variance], -1), y)  # [4, N, tasks, b, 2]
    p = (x.new_tensor(_MASSES)[:, None, None, None] * p)[..., None]
    one = torch.ones_like(f)
    given = torch.stack([one, x.expand_as(f), z.expand_as(f)], -1)  # (1, x, z)
    phi = (delta[..., None] * given[..., None, :]).flatten(-2).flatten(0, 1)  # [4N, tasks, b, 6]
    p, delta = p.flatten(0, 1), delta.flatten(0, 1)
    phi_mean = (p * phi).sum(0)
    centred = phi - phi_mean
    gain = torch.stack([k, r], 3)
    coefficients = torch.cat(
        [weight_mean[:, None, :, None, :d].expand(-1, len(design), -1, -1, -1), gain], 3
    )
    return _Sums(
        coefficients.flatten(2, 3),
        phi_mean,
        torch.einsum("ntbq,ntbr->tbqr", p * centred, centred),
        torch.einsum("ntbc,ntbe->tbce", p * delta, delta),
        gain,
        s[:, :, :d][..., :d],
    )


def _root(variance: Tensor, of: Tensor | float) -> tuple[Tensor, Tensor]:
    """Standard deviation and its inverse; both 0 where the variance is rounding error of `of`."""
    rounding = 16 * torch.finfo(variance.dtype).eps * of
    positive = variance > rounding
    std = torch.where(positive, variance, 1.0).sqrt()
    return torch.where(positive, std, 0.0), torch.where(positive, std.reciprocal(), 0.0)
