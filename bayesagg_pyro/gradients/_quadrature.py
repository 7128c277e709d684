"""Moments for likelihoods of one linear predictor, by the one-dimensional rule of `quadrature`.

With u = hᵀw ~ N(μ, v), g = w f(u) and f = dℓ/du, w given u is Gaussian with mean m + k z and
covariance S − k kᵀ, where z = (u − μ) / sqrt(v) and k = S h / sqrt(v). Hence

    E[g]   = m E[f] + k E[z f]
    Cov[g] = (S − k kᵀ) E[f²] + m mᵀ Var f + (m kᵀ + k mᵀ) Cov(f, z f) + k kᵀ Var(z f),

and only expectations over one standard normal z are left, of size [tasks, B].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro._settings import integers, positive_or_none
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import Moments, refined, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._lazy import Factored, Factors
from bayesagg_pyro.gradients._predictor import has_one_predictor, is_softmax, predictor_terms
from bayesagg_pyro.gradients._samples import factors_pay, finish
from bayesagg_pyro.heads import Categorical, Head, OnePredictor
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.quadrature import Transition, normal_rule
from bayesagg_pyro.targets import Targets

#: Nodes of the rule that judges another, in multiples of its own.
_FINER = 4
#: Nodes at most, where a tolerance asks for more.
_LIMIT = 2**12


class Quadrature(Estimator):
    """Moments by a trapezoid rule of two scales; for heads with one linear predictor.

    Bernoulli and other `heads.OnePredictor` heads, and two-class Categorical ones, whose softmax
    depends on the difference of its logits only. The cost is one evaluation of f for each node,
    task and example. The error, of the mean in standard deviations and of the variance relative to
    it, is below 5e-4 for logistic f with 28 nodes and below 2e-4 for StudentT with 64, for
    posteriors up to 1,000,000 times wider than the bend (tests/heads); more where the bend lies
    several standard deviations off.
    `GradientDistribution.moment_error` estimates it for the moments at hand.

    Args:
        nodes: of the rule, at least 8; None for as many as the head's `transition` asks for.
        tolerance: the error that is allowed, in the units above: nodes are doubled, up to 4,096,
            until the estimated error is below it, and a warning says so if it is not. Looking at
            the error waits for the device.

    Raises:
        SettingError: for too few nodes, or a tolerance that is not positive.
    """

    def __init__(self, nodes: int | None = None, *, tolerance: float | None = None) -> None:
        integers(8, nodes=8 if nodes is None else nodes)
        self.nodes = nodes
        self.tolerance = positive_or_none("tolerance", tolerance)

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse heads of several outputs per task, and posteriors other than Gaussian."""
        if not issubclass(kind, GaussianFamily):
            raise _not_gaussian(head, kind)
        if not has_one_predictor(head) and not (is_softmax(head) and head.classes == 2):
            raise _more_predictors(head)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Mean and variance to the accuracy of the rule; the full covariance on request.

        Raises:
            DtypeError: if the head has more than one predictor or the posterior is not Gaussian.
        """
        if not isinstance(posterior, GaussianFamily):
            raise _not_gaussian(head, type(posterior))
        posterior = posterior.to(features.device, linalg.head_dtype(features.device))
        if has_one_predictor(head):
            predictor = _one_predictor(head, posterior, features, targets)
        elif is_softmax(head) and head.classes == 2:
            predictor = _two_classes(head, posterior, head.design_matrix(features), targets)
        else:
            raise _more_predictors(head)
        moments = partial(_moments, (head, posterior, features, targets), predictor)
        nodes = self.nodes or predictor.transition.nodes
        return until(self.tolerance, moments, nodes, _LIMIT, f"head {head.site!r}, Quadrature")

    def averaged(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution | None:
        """For many examples, and posteriors whose weights are independent."""
        if not factors_pay(head, features, targets) or self.tolerance is not None:
            return None
        if not isinstance(posterior, GaussianFamily):
            raise _not_gaussian(head, type(posterior))
        if not has_one_predictor(head) or head.embedding is not None:
            return None
        posterior = posterior.to(features.device, linalg.head_dtype(features.device))
        design, d = head.design_matrix(features), head.in_features
        factors = posterior.factors(design)
        if factors is None:
            return None
        values = like(targets.values, design)
        std = factors.variance.sqrt().mT
        transition = Transition(*head.transition(values))
        numbers = _integrals(
            design @ posterior.mean.mT,
            std,
            lambda u, rows: head.loss_derivative(u, values[rows]),
            transition,
            self.nodes or transition.nodes,
        )
        if targets.mask is not None:
            numbers = torch.where(targets.mask, numbers, 0.0)
        f, zf, square, var_f, mixed, var_zf = numbers.unbind()
        root = linalg.reciprocal(std)
        return Factored.of(
            lambda: self.estimate(head, posterior, features, targets),
            factors=Factors(
                posterior.mean[:, :d],
                factors.cross[:, :d],
                factors.base[:, :d],
                posterior.variance[:, :d],
                f,
                zf.mul_(root),
                square,
                var_f,
                mixed.mul_(root),
                var_zf.sub_(square).mul_(root).mul_(root),
            ),
            observed=None if targets.mask is None else targets.mask.mT,
            _like=features.new_empty(0),
            shape=torch.Size([head.tasks, *features.shape]),
        )

    def __repr__(self) -> str:
        return f"Quadrature(nodes={self.nodes}, tolerance={self.tolerance})"


def _not_gaussian(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: Quadrature needs a Gaussian posterior, not {kind.__name__}; use "
        "gradients.MonteCarlo()"
    )


def _more_predictors(head: Head) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: Quadrature is for heads with one linear predictor and for "
        f"Categorical ones of two classes, not for {type(head).__name__}; use "
        "gradients.Conditional or MonteCarlo"
    )


class Derivative(Protocol):
    """f of predictors [nodes, rows, tasks] of those examples, elementwise."""

    def __call__(self, u: Tensor, rows: slice) -> Tensor: ...


class _Predictor(NamedTuple):
    """One linear predictor per task and example, and the derivative of its loss."""

    weight_mean: Tensor  #: m (of du/dh), [tasks, 1 or B, d]
    weight_variance: Tensor  #: diagonal of S, [tasks or 1, 1 or B, d]
    cross: Tensor  #: S h, [tasks or 1, B, d]
    mean: Tensor  #: μ, [B, tasks]
    std: Tensor  #: sqrt(v), [B, tasks or 1]
    derivative: Derivative  #: f
    transition: Transition  #: where and how f bends
    covariance: Callable[[], Tensor]  #: S, [tasks or 1, 1 or B, d, d]


def _one_predictor(
    head: OnePredictor, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> _Predictor:
    terms = predictor_terms(head, posterior, features, features.dtype)
    values = like(targets.values, terms.mean)
    return _Predictor(
        terms.slope_mean,
        terms.slope_variance,
        terms.cross,
        terms.mean,
        terms.variance.sqrt().mT,
        lambda u, rows: head.loss_derivative(u, values[rows]),
        Transition(*head.transition(values)),
        terms.covariance,
    )


def _two_classes(
    head: Categorical, posterior: GaussianFamily, design: Tensor, targets: Targets
) -> _Predictor:
    """Softmax over two logits is a logistic in their difference, with weights w₁ − w₀."""
    d = head.in_features
    w0, w1 = posterior.mean.unflatten(-1, (2, -1)).unbind(1)
    blocks = posterior.covariance_matrix.unflatten(-1, (2, -1)).unflatten(-3, (2, -1))
    s = blocks[:, 0, :, 0] + blocks[:, 1, :, 1] - blocks[:, 0, :, 1] - blocks[:, 1, :, 0]
    cross = design @ s
    sign = 1 - 2 * targets.values.to(design.dtype)
    weight = head.target_weight(targets.values)

    def derivative(u: Tensor, rows: slice) -> Tensor:
        f = sign[rows] * torch.sigmoid(sign[rows] * u)
        return f if weight is None else f * weight[rows].to(f.dtype)

    return _Predictor(
        (w1 - w0)[:, None, :d],
        s.diagonal(dim1=-2, dim2=-1)[:, None, :d],
        cross[..., :d],
        design @ (w1 - w0).mT,
        (cross * design).sum(-1).clamp(min=0).sqrt().mT,
        derivative,
        Transition(),
        lambda: s[:, None, :d, :d],
    )


def _moments(
    given: tuple[Head, GaussianFamily, Tensor, Targets], predictor: _Predictor, nodes: int
) -> GradientDistribution:
    m, s, cross, mean, std, derivative, transition, covariance_of_w = predictor
    dtype = cross.dtype
    k = cross * linalg.reciprocal(std).mT[..., None].to(dtype)
    m, s = m.to(dtype), s.to(dtype)
    residual = torch.addcmul(s, k, k, value=-1).clamp_(min=0)

    def moments(integrals: Tensor) -> Moments:
        # [tasks, B, 1]; what is made of them is free of cancellation: this precision will do.
        f0, f1, square, var_f, cov, var_zf = integrals.mT[..., None].to(dtype).unbind()
        average = (m * f0).addcmul_(k, f1)
        mixed = (k * var_zf).addcmul_(m, 2 * cov).mul_(k)  # k k Var(z f) + 2 m k Cov(f, z f)
        variance = mixed.addcmul_(residual, square).addcmul_(m.square(), var_f)
        return Moments(average, variance)

    integrals = _integrals(mean, std, derivative, transition, nodes)
    found = moments(integrals)

    def covariance() -> Tensor:
        _, _, square, var_f, cov, var_zf = integrals.mT[..., None].to(dtype).unbind()
        kk = k[..., :, None] * k[..., None, :]
        mk = m[..., :, None] * k[..., None, :]
        full = (covariance_of_w() - kk) * square[..., None]
        full = full + m[..., :, None] * m[..., None, :] * var_f[..., None]
        return full + (mk + mk.mT) * cov[..., None] + kk * var_zf[..., None]

    return finish(
        *given,
        *found,
        covariance,
        lambda: refined(
            found,
            moments(_integrals(mean, std, derivative, transition.doubted(std), _FINER * nodes)),
        ),
    )


def _integrals(
    mean: Tensor, std: Tensor, derivative: Derivative, transition: Transition, nodes: int
) -> Tensor:
    """E f, E[z f], E f², Var f, Cov(f, z f) and Var(z f), [6, B, tasks].

    Some examples at a time, so that what is made on the way stays in a cache: fresh memory is slow.
    """
    if nodes * mean.numel() <= CACHE // 8 or len(mean) == 1:
        own = partial(derivative, rows=slice(None))
        return _integrals_at_once(mean, std, own, transition, nodes)
    found = mean.new_empty(6, *mean.shape)
    for rows in slices(len(mean), fitting(nodes * mean.shape[1], CACHE // 8)):
        own = partial(derivative, rows=rows)
        found[:, rows] = _integrals_at_once(
            mean[rows], std[rows], own, transition.examples(rows), nodes
        )
    return found


def _integrals_at_once(
    mean: Tensor,
    std: Tensor,
    derivative: Callable[[Tensor], Tensor],
    transition: Transition,
    nodes: int,
) -> Tensor:
    z, p = normal_rule(mean, std.expand_as(mean), nodes, transition)
    f = derivative(torch.addcmul(mean, std, z))
    zf = z.mul_(f)
    pf = p * f
    f0 = pf.sum(0)
    f1 = torch.mul(p, zf, out=pf).sum(0)
    # Variances are centred sums, so none is a difference of large numbers.
    f, zf = f - f0, zf.sub_(f1)
    var_f = torch.mul(p, f, out=pf).mul_(f).sum(0)
    pzf = p.mul_(zf)
    cov, var_zf = f.mul_(pzf).sum(0), pzf.mul_(zf).sum(0)
    return torch.stack([f0, f1, f0.square() + var_f, var_f, cov, var_zf])
