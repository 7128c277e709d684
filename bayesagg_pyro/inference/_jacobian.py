"""Derivatives in the weights by automatic differentiation, where no closed form gives them.

And what is refused since they would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import batched_gradients
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head, Network, OnePredictor

#: Outputs at which a likelihood is looked at, beside a target that it may have.
_OUTPUTS = (0.0, 0.01, -0.1, 0.3, -1.0, 3.0)


def outputs_per_task(head: Head) -> int:
    """C, also of a network, whose likelihood knows it."""
    return head.observation.outputs_per_task if isinstance(head, Network) else head.outputs_per_task


def of_outputs(head: Head, features: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian [B, tasks, C, P] in the weights of each task, and the outputs as `forward` gives."""
    if isinstance(head, Network) and head.is_still(Network, "outputs"):
        return _of_network(head, features, point)
    return _of_forward(head, features, point)


def _of_network(head: Network, features: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """One backward pass per output: there are fewer of them than weights."""

    def outputs_of(weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        out = head.flat_outputs(h[None], weight)[0]
        return out, out

    jacobian, flat = torch.func.vmap(
        torch.func.jacrev(outputs_of, has_aux=True), in_dims=(None, 0)
    )(point[0], features)
    return jacobian.unflatten(1, (head.tasks, -1)), head.shaped(flat)


def _of_forward(head: Head, features: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Of a head's own `forward`.

    One shift δ moves the weights of all tasks, of which each task's outputs depend on their own
    alone. Jᵀ v is linear in v, so its derivatives in v are the columns of J: one for each weight,
    for all examples at once. No code of the head is run under a transform of `torch.func`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        features, point = features.clone(), point.detach().clone()
        shift = torch.zeros_like(point[0]).requires_grad_()
        given = head(features, point + shift)
        outputs = given.reshape(len(features), head.tasks, -1)
        if not outputs.requires_grad:
            raise SettingError(
                f"head {head.site!r}: the outputs of {type(head).__name__} have no derivative in "
                "the weights given to forward(features, weight)"
            )
        v = torch.zeros_like(outputs).requires_grad_()
        (pulled,) = torch.autograd.grad(outputs, shift, v, create_graph=True)
        unit = torch.eye(len(shift), dtype=shift.dtype, device=shift.device)
        columns = batched_gradients(pulled, v, unit)
    return columns.movedim(0, -1), given.detach()


def check_tasks(head: Head) -> None:
    """Refuse a head whose tasks have weights of their own but outputs that mix them.

    Seen at two examples: Σ r_t f_t, for some numbers r, has in the weights of task t the slope of
    r_t f_t alone.

    Raises:
        SettingError: naming the head and the remedy.
    """
    point = head.point().detach().to(linalg.head_dtype(head.weight.device))
    count = 2 * head.in_features
    features = (0.7 * torch.arange(count).to(point)).sin().reshape(2, -1)
    jacobian, _ = _of_forward(head, features, point)  # [2, tasks, C, P]
    shape = jacobian.shape[:-1]
    r = (0.3 + torch.arange(shape.numel()).to(point)).sin().reshape(shape)
    alone = torch.einsum("btc,btcp->tp", r, jacobian)
    with torch.inference_mode(False), torch.enable_grad():
        weight = point.clone().requires_grad_()
        total = (head(features.clone(), weight).reshape(shape) * r).sum()
        (together,) = torch.autograd.grad(total, weight)
    if (together - alone).abs().max() > 1e-4 * alone.abs().max():
        raise SettingError(
            f"head {head.site!r}: outputs of one task of {type(head).__name__} depend on the "
            "weights of others, whose posteriors are apart; derive it from heads.SharedWeights"
        )


def check_curvature(head: Head) -> None:
    """Refuse a −log p of one output that is made of straight lines, such as a Laplace density's.

    Its second derivative is 0 whatever the data, so that a posterior would be as wide as the prior
    and its mean a step as long as that is wide. Whoever writes `nll_derivatives` knows better.

    Raises:
        SettingError: naming the head and the remedy.
    """
    model = head.observation if isinstance(head, Network) else head
    if not isinstance(model, OnePredictor) or head.weight.is_meta:
        return
    if getattr(model.nll_derivatives, "__func__", None) is not OnePredictor.nll_derivatives:
        return
    near = torch.tensor(_OUTPUTS, dtype=torch.float64).to(head.weight.device)
    outputs = torch.cat([near, model.filler + near])[:, None].expand(-1, head.tasks)
    outputs = outputs.to(linalg.head_dtype(head.weight.device))
    with torch.inference_mode(False), torch.no_grad():
        targets = torch.full_like(outputs, model.filler)
        try:
            slope, curvature = model.nll_derivatives(outputs.clone(), targets)
        except ValueError:  # no distribution has such an output
            return
    straight = (curvature == 0).all(0) & slope.isfinite().all(0) & (slope != 0).any(0)
    if straight.any():
        raise SettingError(
            f"head {head.site!r}: −log p of {type(model).__name__} has no curvature anywhere, so a "
            "second-order posterior would not learn from data; let nll_derivatives(outputs, "
            "targets) give slope and Fisher's information, as a Laplace density's 1/b², or take "
            "inference.Variational() or NUTS()"
        )


def hessian(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hessian [P, P], gradient [P] and value [] of a function of weights [P]."""

    def slope(weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gradient, at = torch.func.grad_and_value(function)(weight)
        return gradient, (gradient, at)

    matrix, (gradient, at) = torch.func.jacfwd(slope, has_aux=True)(point)
    return 0.5 * (matrix + matrix.mT), gradient, at
