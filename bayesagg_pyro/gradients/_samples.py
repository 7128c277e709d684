"""Gradients of a head's loss at given weights, what any head can give, and their distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import batched_gradients
from bayesagg_pyro._pieces import CACHE
from bayesagg_pyro.gradients._derived import weighted
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._lazy import Certain
from bayesagg_pyro.gradients._predictor import pull_back
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

#: Examples, as pixels are, from which factors are worth their own way of rounding.
_ROWS = 1024


def sampled_gradients(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> Tensor:
    """∂ℓ_tb/∂h_b at given weights, by automatic differentiation of `head.loss`.

    Works for every head whose outputs of different examples and tasks do not mix. Where the outputs
    are linear in the features, the loss is differentiated in the outputs, once for all tasks and
    samples, and the rest is a product with the weights.

    Args:
        head: the head.
        weight: [S, blocks, P].
        features: [B, d].
        targets: [B, tasks].

    Returns:
        [S, tasks, B, d] in the weights' dtype; 0 where a target is not observed.
    """
    if torch.is_inference_mode_enabled():  # it keeps no graph, and its tensors can be in none
        with torch.inference_mode(False):
            copies = (None if part is None else part.clone() for part in targets)
            return sampled_gradients(
                head,
                weight.clone(),
                features.clone(),
                type(targets)(*copies),  # type: ignore[arg-type]
            )
    features = features.detach().to(weight.dtype)
    if not are_linear(head):
        return _by_jacobian(head, features, targets, weight)
    slope = output_slopes(head, weight, features, targets)
    size = head.in_features if head.embedding is None else head.embedding.out_features
    rows = weight.unflatten(-1, (head.outputs_per_task, -1))[..., :size]
    gradient = torch.einsum("sbtc,stcd->stbd", slope, rows)
    if head.embedding is None:
        return gradient
    return pull_back(head.embedding.jacobian(features), gradient)


def are_linear(head: Head) -> bool:
    """Whether a task's loss is a function of outputs that are linear in weights and φ(h)."""
    return head.is_still(Head, "outputs", "design", "pointwise")


def factors_pay(head: Head, features: Tensor, targets: Targets) -> bool:
    """Whether moments of so many examples are best left unmade; none of them is weighted."""
    large = head.tasks * features.numel() > CACHE or len(features) > _ROWS
    return large and targets.weight is None


def output_slopes(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> Tensor:
    """∂ℓ_tb/∂f_tb, [S, B, tasks, C], where `are_linear`; arguments as for `sampled_gradients`."""
    values = targets.values
    if values.is_floating_point():
        values = values.to(weight.dtype)
    with torch.enable_grad():
        outputs = head(features, weight).detach()
        # Losses of users need not broadcast: targets get the outputs' shape, [..., B, tasks], and
        # outputs at one point are as in a warm-up, without an axis in front.
        outputs = (outputs[0] if len(weight) == 1 else outputs).requires_grad_()
        y = values.expand_as(outputs) if head.outputs_per_task == 1 else values
        loss = head.loss(outputs, y)
        loss = loss if targets.mask is None else torch.where(targets.mask, loss, 0.0)
        (slope,) = torch.autograd.grad(loss.sum(), outputs)
    shape = len(weight), len(features), head.tasks, head.outputs_per_task
    found: Tensor = slope.reshape(shape)
    return found


def _by_jacobian(head: Head, features: Tensor, targets: Targets, weight: Tensor) -> Tensor:
    """For outputs that are no linear function: one backward pass per task, over all samples."""

    def summed(h: Tensor, w: Tensor) -> Tensor:
        loss = head.losses(h, targets, w)
        loss = loss if targets.mask is None else torch.where(targets.mask, loss, 0.0)
        return loss.sum(0)  # examples do not mix: each keeps its own gradient

    per_task = torch.func.jacrev(summed)  # [tasks, B, d]
    try:
        found: Tensor = torch.func.vmap(per_task, in_dims=(None, 0))(features, weight)
    except RuntimeError:  # code that these transforms cannot run: draw by draw, by plain autograd
        found = torch.stack([_by_autograd(summed, features, w) for w in weight])
    return found.detach()


def _by_autograd(
    summed: Callable[[Tensor, Tensor], Tensor], features: Tensor, weight: Tensor
) -> Tensor:
    with torch.enable_grad():
        h = features.detach().requires_grad_()
        total = summed(h, weight)
        unit = torch.eye(len(total), dtype=total.dtype, device=total.device)
        return batched_gradients(total, h, unit)


def drawn_gradients(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    count: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Gradients at weights that are drawn, [count, tasks, B, d] in the features' dtype."""
    weight = posterior.sample((count,), generator=generator)
    return sampled_gradients(head, weight, features, targets).to(features.dtype)


def at_weights(
    head: Head, features: Tensor, targets: Targets, *, average: bool = False
) -> GradientDistribution:
    """The gradient at the head's own weights; of many examples by factors, if its average will do.

    Args:
        head: the head.
        features: [B, d].
        targets: [B, tasks].
        average: whether moments are best left to be made when somebody asks for them.
    """
    weight = head.point().detach().to(linalg.head_dtype(features.device))
    lazy = average and head.embedding is None and not torch.is_inference_mode_enabled()
    if not (lazy and factors_pay(head, features, targets) and are_linear(head)):
        grad = certain(head, weight, features, targets)
        return grad if targets.weight is None else weighted(grad, targets.weight)
    (slope,) = output_slopes(head, weight[None], features, targets)
    rows = weight.unflatten(-1, (head.outputs_per_task, -1))[..., : head.in_features]
    return Certain.of(
        partial(certain, head, weight, features, targets),
        slope=slope.to(features.dtype),
        weight=rows.to(features.dtype),
        observed=None if targets.mask is None else targets.mask.mT,
        _like=features.new_empty(0),
        shape=torch.Size([head.tasks, *features.shape]),
    )


def certain(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> GradientDistribution:
    """The gradient at weights [blocks, P], without variance; 0 where a target is missing."""
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        (mean,) = sampled_gradients(head, weight[None], features, targets)
    observed = None if targets.mask is None else targets.mask.mT
    if observed is not None:
        mean = torch.where(observed[..., None], mean, 0.0)
    known, none = mean.to(features.dtype), mean.new_zeros((), dtype=features.dtype)
    shape = mean.shape
    return GradientDistribution(
        known,
        torch.zeros_like(known),
        observed=observed,
        covariance=lambda: none.expand(*shape, shape[-1]),
        sampler=lambda count, generator: known.expand(count, *shape),
        error=lambda: MomentError(none.expand(shape), none.expand(shape)),
    )


def finish(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    mean: Tensor,
    variance: Tensor,
    covariance: Callable[[], Tensor],
    error: Callable[[], MomentError] | None = None,
) -> GradientDistribution:
    """The last step of every formula: a distribution of its moments.

    They come in the features' dtype, and are 0 where a target is missing.

    Args:
        head: the head.
        posterior: over its weights; serves for samples on request.
        features: [B, d].
        targets: [B, tasks].
        mean: [tasks, B, d].
        variance: [tasks, B, d]; written to.
        covariance: makes the full covariance, [tasks, B, d, d].
        error: estimates the error of mean and variance; None for closed forms, which have none.
    """
    observed = None if targets.mask is None else targets.mask.mT
    dtype = features.dtype
    # What varies at all must not read as certain: squares underflow.
    variance = variance.clamp_(min=min(torch.finfo(dtype).tiny, 2**-24))

    def clean(moment: Tensor) -> Tensor:
        if observed is not None:
            seen = observed.reshape(*observed.shape, *[1] * (moment.ndim - 2))
            moment = torch.where(seen, moment, 0.0)
        return moment.to(dtype)

    shape, zero = mean.shape, mean.new_zeros(())  # and not the moments in their full precision

    def stated() -> MomentError:
        none = zero.expand(shape)
        return MomentError(*map(clean, (none, none) if error is None else error()))

    return GradientDistribution(
        clean(mean),
        clean(variance),
        observed=observed,
        covariance=lambda: clean(covariance()),
        sampler=partial(drawn_gradients, head, posterior, features, targets),
        error=stated,
    )
