"""Slow and separate: what a step should have come to, from the values that it kept.

Posteriors in 60 digits, moments by integration over a grid of the head's own loss under automatic
differentiation, the aggregated direction by its definition.
"""

from __future__ import annotations

from typing import Any

import mpmath
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, posteriors
from bayesagg_pyro.targets import Targets
from tests.fuzz.broken import Broken

__all__ = ["check_step"]


def check_step(mtl: ba.BayesAgg, update: Tensor) -> None:
    """Compare the last step with the oracles that apply to it.

    Raises:
        Broken: naming the stage.
    """
    info = mtl.info
    assert info is not None
    kept = info.stages
    if kept is None:
        return
    if not info.bayesian:
        _check_warmup(mtl, kept.features, kept.targets, update)
        return
    for name, head in mtl.heads.items():
        prior, posterior = kept.priors[name], kept.posteriors[name]
        if info.inferred[name]:
            _check_posterior(
                head, mtl.schemes[name], kept.features, kept.targets[name], prior, posterior
            )
        if info.gradients is not None:
            rows = info.gradients.groups[name]
            mean, variance = info.gradients.mean[rows], info.gradients.variance[rows]
            given = kept.features, kept.targets[name]
            _check_moments(head, mtl.estimators[name], posterior, *given, mean, variance)
    if info.gradients is not None and info.aggregated is not None:
        _check_direction(mtl.aggregation, info.gradients, info.aggregated.direction)
        expected = info.aggregated.direction * (info.update_factor / len(update))
        _near("update", update, expected, _tolerance(update.dtype))


def _tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-8, torch.float32: 1e-4}.get(dtype, 0.03)


def _near(what: str, found: Tensor, expected: Tensor, tolerance: float, size: Any = None) -> None:
    """Relative to the largest entry, or to what `size` says."""
    dtype, found, expected = found.dtype, found.double(), expected.double()
    if not expected.isfinite().all():
        return
    size = expected.abs().max() if size is None else size
    tiny = 10 * torch.finfo(dtype).tiny
    worst = ((found - expected).abs() - tolerance * size - tiny).max()
    if not worst <= 0:
        raise Broken(f"{what} is not the oracle's", f"{found.tolist()} / {expected.tolist()}"[:600])


# -- the warm-up -------------------------------------------------------------------------------


def _check_warmup(mtl: ba.BayesAgg, features: Tensor, targets: Any, update: Tensor) -> None:
    h = features.clone().requires_grad_()
    total = h.new_zeros(())
    for name, head in mtl.heads.items():
        own = targets[name]
        loss = head.losses(h, own)
        factor = torch.ones_like(loss) if own.weight is None else own.weight.to(loss)
        mask = torch.ones_like(own.values, dtype=torch.bool) if own.mask is None else own.mask
        loss = torch.where(mask, loss * factor, 0.0)
        total = total + (loss.sum(0) / mask.sum(0).clamp(min=1)).sum()
    (expected,) = torch.autograd.grad(total, h)
    _near("warm-up's update", update, expected, _tolerance(update.dtype))


# -- posteriors --------------------------------------------------------------------------------


def _check_posterior(
    head: heads.Head,
    scheme: Any,
    features: Tensor,
    targets: Targets,
    prior: Any,
    posterior: Any,
) -> None:
    _check_expansion(head, scheme, features, targets, prior, posterior)
    exact = isinstance(scheme, inference.Conjugate | inference.TaylorGGN | inference.Laplace)
    if not (type(head) is heads.Gaussian and exact and isinstance(posterior, posteriors.Gaussian)):
        return
    if getattr(scheme, "structure", "full") != "full" or not isinstance(
        prior, posteriors.GaussianFamily
    ):
        return
    design = head.design_matrix(features)
    if float(design.abs().max()) == 0:
        return
    dense = prior.to_gaussian()
    tolerance = 1e-9 + 1e4 * _lost(prior, posterior)
    if tolerance > 0.01:
        return
    for t in range(head.tasks):
        found = _conjugate(
            design,
            targets.values[:, t],
            _factor(targets, t),
            float(head.noise_scale.expand(head.tasks)[t]),
            dense.mean[t],
            dense.precision_tril.expand(head.tasks, -1, -1)[t],
        )
        if found is None:
            return
        mean, deviation = found
        name = type(scheme).__name__
        size = deviation + mean.abs().max() + dense.mean[t].abs().max()
        if not isinstance(scheme, inference.Conjugate):  # a step from the point
            size = size + 1e-14 / tolerance * float(head.point().detach().abs().max())
        _near(f"{name} posterior mean", posterior.mean[t], mean, tolerance, size)
        own = posterior.variance.double().expand(head.tasks, -1)[t].sqrt()
        _near(f"{name} posterior deviation", own, deviation, tolerance, deviation)


#: Heads whose curvature in inference is the exact one.
_EXACT = (heads.Bernoulli, heads.Categorical, heads.Poisson, heads.Ordinal, heads.NegativeBinomial)


def _check_expansion(
    head: heads.Head, scheme: Any, features: Tensor, targets: Targets, prior: Any, posterior: Any
) -> None:
    """One Newton step from the point, or a mode: slope and curvature by differentiating twice."""
    expands = isinstance(scheme, inference.TaylorGGN | inference.Laplace)
    if not (expands and scheme.structure == "full" and type(head) in _EXACT):
        return
    if head.embedding is not None or not isinstance(prior, posteriors.GaussianFamily):
        return
    taylor = isinstance(scheme, inference.TaylorGGN)
    converged = None if posterior.info is None else posterior.info.converged
    if converged is not None and not converged.all():
        return  # as it says
    point = (head.point() if taylor else posterior.mean).detach().double()
    with torch.enable_grad():
        w = point.clone().requires_grad_()
        nll = head.negative_log_probs(features.double(), targets, w)
        factor = targets.factor(torch.float64)
        nll = nll if factor is None else torch.where(factor > 0, nll * factor, 0.0)
        (slope,) = torch.autograd.grad(nll.sum(), w, create_graph=True)
        columns = [
            torch.autograd.grad(slope[:, p].sum(), w, retain_graph=True)[0]
            for p in range(w.shape[1])
        ]
    dense = prior.to_gaussian()
    p = dense.precision_matrix
    total = torch.stack(columns, -1) + p
    pull = slope.detach() + (p @ (point - dense.mean)[..., None])[..., 0]
    if not total.isfinite().all() or head(features.double(), point).abs().max() > 30:
        return
    if (torch.linalg.cholesky_ex(total).info != 0).any():
        return
    unit = total.diagonal(dim1=-2, dim2=-1).sqrt()
    name = f"{type(scheme).__name__} of {type(head).__name__}"
    found = posterior.to_gaussian().precision_matrix / unit[:, None] / unit[..., None]
    _near(f"{name}: precision", found, total / unit[:, None] / unit[..., None], 1e-6)
    # Precision and oracle are both formed in float64: what that may cost, `info` must say.
    tolerance = 1e-5 + 5e4 * _lost(prior, posterior)
    if tolerance > 0.01:
        return
    step = torch.linalg.solve(total, -pull)
    deviation = torch.linalg.inv(total).diagonal(dim1=-2, dim2=-1).sqrt()
    if taylor:
        size = deviation + step.abs().amax(-1, keepdim=True)  # weights share their rounding
        _near(f"{name}: mean", posterior.mean, point + step, tolerance, size)
    else:
        _near(f"{name}: mode", step / deviation, torch.zeros_like(step), 1.0, 1e-4)


def _lost(*known: Any) -> float:
    """What rounding may have cost distributions, as they say."""
    return sum(float(it.info.rounding.max()) for it in known if it.info is not None)


def _factor(targets: Targets, task: int) -> Tensor:
    factor = targets.factor(torch.float64)
    return torch.ones(len(targets.values)).double() if factor is None else factor[:, task]


def _conjugate(
    design: Tensor, y: Tensor, factor: Tensor, noise: float, m: Tensor, tril: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviations, in 60 digits."""
    with mpmath.workdps(60):
        h, root = mpmath.matrix(design.tolist()), mpmath.matrix(tril.tolist())
        p = root * root.T  # the factor may have digits that the matrix has not
        weights = [mpmath.mpf(w) / mpmath.mpf(noise) ** 2 for w in factor.tolist()]
        prior, values = mpmath.matrix(m.tolist()), y.double().tolist()
        total, shift = p.copy(), p * prior
        for b, weight in enumerate(weights):
            row = h[b, :]
            total += weight * (row.T * row)
            shift += weight * values[b] * row.T
        inverse = total**-1
        mean = inverse * shift
        variances = [inverse[i, i] for i in range(len(m))]
        if min(variances) <= 0:  # rounding has cost the prior its definiteness
            return None
        deviations = [float(mpmath.sqrt(v)) for v in variances]
        return (
            torch.tensor([float(v) for v in mean], dtype=torch.float64),
            torch.tensor(deviations, dtype=torch.float64),
        )


# -- moments -----------------------------------------------------------------------------------


def _check_moments(
    head: heads.Head,
    estimator: Any,
    posterior: Any,
    features: Tensor,
    targets: Targets,
    mean: Tensor,
    variance: Tensor,
) -> None:
    exact = estimator is None or isinstance(estimator, gradients.Exact)
    plain = isinstance(head, heads.OnePredictor) and head.embedding is None
    if not (exact and plain and isinstance(posterior, posteriors.GaussianFamily)):
        return
    found = _integrated(head, posterior, features, targets)
    if found is None:
        return
    tolerance = 3e-3 + _tolerance(mean.dtype)
    deviation = found[1].sqrt()
    name = type(head).__name__
    weights = float(posterior.mean.abs().max() + posterior.variance.max().sqrt())
    size = deviation + found[0].abs() + 1e-13 * weights  # the rounding of a slope
    _near(f"{name} E[g]", mean, found[0], tolerance, size)
    if ((variance == 0) & (deviation > 1e-9 * found[0].abs())).any():
        raise Broken("a variance underflows to certainty", f"{name}: {deviation.tolist()}"[:600])
    size = deviation + 1e-9 * size
    # What reads as uncertain still, and the rounding of a slope that is 0.
    least = (2 * torch.finfo(torch.float32).tiny ** 0.5 + 4e-15 * weights) * found[2]
    # Parts that cancel (g = w f(hᵀw) may hardly vary where w and f do) leave their rounding.
    exact = isinstance(head, heads.Gaussian | heads.Poisson)
    eps = torch.finfo(torch.float64 if exact else features.dtype).eps
    least = least + (4 * eps) ** 0.5 * found[3]
    size = size + least / (2 * tolerance)
    _near(f"{name} sd[g]", variance.double().sqrt(), deviation, 2 * tolerance, size)


def _integrated(
    head: heads.OnePredictor, posterior: Any, features: Tensor, targets: Targets
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Moments [tasks, B, d] by the trapezoidal rule in the predictor, None where it will not do.

    The third are the weights of examples, [tasks, B, 1], the fourth the parts of a deviation.
    """
    d, tasks = head.in_features, head.tasks
    design = head.design_matrix(features)  # [B, D]
    m = posterior.mean.double()  # [T, D]
    s = posterior.covariance_matrix.double().expand(tasks, -1, -1)
    unit = s.diagonal(dim1=-2, dim2=-1).sqrt()
    if torch.linalg.eigvalsh(s / unit[:, None] / unit[..., None]).min() < 1e-8:
        return None  # S h from S would lose too many digits
    cross = torch.einsum("tde,be->tbd", s, design)
    variance = torch.einsum("tbd,bd->tb", cross, design).clamp(min=0)
    root = variance.sqrt()
    centre = (design @ m.mT).mT  # [T, B]
    wide = float(root.max())
    if isinstance(head, heads.Poisson | heads.NegativeBinomial) and (
        wide > 1.5 or centre.abs().max() > 10
    ):
        return None
    if not isinstance(head, heads.Gaussian) and (wide > 30 or centre.abs().max() > 1e3):
        return None
    z = torch.linspace(-14, 14, 2801, dtype=torch.float64)[:, None, None]
    if isinstance(head, heads.StudentT):
        z = _refined(head, targets, centre, root)
    u = centre + root * z  # [n, T, B]
    f = _slope(head, u.mT, targets.values).mT
    p = (-0.5 * z.square()).exp().expand_as(u)
    step = torch.zeros_like(p)
    gap = z.diff(dim=0).expand(len(z) - 1, *p.shape[1:])
    step[:-1] += gap / 2
    step[1:] += gap / 2
    p = p * step
    p = p / p.sum(0)
    k = torch.where(root[..., None] > 0, cross / root[..., None].clamp(min=1e-300), 0.0)[..., :d]
    w = m[:, None, :d] + k * z[..., None]  # [n, T, B, d]
    g = w * f[..., None]
    first = (p[..., None] * g).sum(0)
    rest = (s.diagonal(dim1=-2, dim2=-1)[:, None, :d] - k.square()).clamp(min=0)
    second = rest * (p * f.square()).sum(0)[..., None]
    second = second + (p[..., None] * (g - first).square()).sum(0)
    factor = torch.ones(tasks, len(design)).double()
    if (known := targets.factor(torch.float64)) is not None:
        factor = known.mT
    factor = factor[..., None]
    spread = f - (p * f).sum(0)
    lean = z * f - (p * z * f).sum(0)
    parts = m[:, None, :d].square() * (p * spread.square()).sum(0)[..., None]
    parts = parts + k.square() * (p * lean.square()).sum(0)[..., None]
    return first * factor, second * factor.square(), factor, parts.sqrt() * factor


def _refined(head: heads.StudentT, targets: Targets, centre: Tensor, root: Tensor) -> Tensor:
    """Nodes that are dense around y as well, [n, T, B]."""
    scale = head.scale.double().expand(head.tasks)[:, None]
    near = (
        targets.values.double().mT
        + scale * torch.sinh(torch.linspace(-12, 12, 1201, dtype=torch.float64))[:, None, None]
    )
    near = ((near - centre) / root.clamp(min=1e-300)).clamp(-14, 14)
    even = torch.linspace(-14, 14, 2801, dtype=torch.float64)[:, None, None].expand(
        -1, *near.shape[1:]
    )
    return torch.cat([near, even]).sort(0).values


def _slope(head: heads.Head, outputs: Tensor, targets: Tensor) -> Tensor:
    """dloss/du by automatic differentiation of the head's own loss."""
    with torch.enable_grad():
        u = outputs.detach().requires_grad_()
        values = targets.double() if targets.is_floating_point() else targets
        (slope,) = torch.autograd.grad(head.loss(u, values).sum(), u)
    return slope


# -- aggregation -------------------------------------------------------------------------------


def _check_direction(method: Any, grad: gradients.GradientDistribution, found: Tensor) -> None:
    mean, variance = grad.mean.double(), grad.variance.double()
    seen = torch.ones(mean.shape[:2]).bool() if grad.observed is None else grad.observed
    seen = seen[..., None].double()
    scale = grad.loss_scale()
    scaled = mean if scale is None else mean * scale.double()
    if isinstance(method, aggregation.Mean):
        share = 1.0 if isinstance(method, aggregation.Sum) else 1 / grad.tasks
        weights = share * seen
    elif (
        isinstance(method, aggregation.PrecisionWeighted)
        and method.covariance == "diagonal"
        and method.resolution == "example"
        and method.floor is None
        and method.max_ratio is None
    ):
        if (variance == 0).any() and seen.all():
            return
        power = _powers(method.power, grad)
        compared = seen * (power > 0)  # a task of power 0 is compared with nobody
        log = torch.where(compared > 0, -power * variance.log(), -torch.inf)
        top = log.amax(0).clamp(min=-1e300)
        raw = torch.where(compared > 0, (log - top).exp(), 0.0)
        weights = raw / raw.sum(0).clamp(min=1e-300) * compared.mean(0)
        weights = weights + (seen - compared) / grad.tasks
    else:
        return
    expected = (weights * scaled).sum(0)
    size = (weights * scaled).abs().sum(0).max()
    name = type(method).__name__
    _near(f"{name} direction", found, expected, 10 * _tolerance(found.dtype), size)


def _powers(power: Any, grad: gradients.GradientDistribution) -> Tensor:
    if isinstance(power, dict):
        each = [
            power[name] for name, rows in grad.groups.items() for _ in range(rows.stop - rows.start)
        ]
        return torch.tensor(each, dtype=torch.float64)[:, None, None]
    return torch.tensor(float(power), dtype=torch.float64)
