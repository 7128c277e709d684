"""Gradients of a head's loss at sampled weights: what any head and any posterior can give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, LARGE, fitting, slices
from bayesagg_pyro.gradients._predictor import pull_back
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Empirical, Posterior
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
        outputs = head(features, weight).detach().requires_grad_()
        # Losses of users need not broadcast: targets get the outputs' shape, [..., B, tasks].
        y = values.expand_as(outputs) if head.outputs_per_task == 1 else values
        loss = head.loss(outputs, y)
        loss = loss if targets.mask is None else torch.where(targets.mask, loss, 0.0)
        (slope,) = torch.autograd.grad(loss.sum(), outputs)
    found: Tensor = slope.reshape(*slope.shape[:2], head.tasks, head.outputs_per_task)
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
        (gradients,) = torch.autograd.grad(total, h, unit, is_grads_batched=True)
    return gradients


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
