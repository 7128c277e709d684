"""Expansions of −log p in the weights by automatic differentiation, whatever the outputs are.

Networks, and heads with a `forward` of their own: the generalised Gauss-Newton matrix
Σ_i J_iᵀ H_i J_i, with J_i the Jacobian of one example's outputs in the weights and H_i the
curvature of −log p in the outputs (Schraudolph, 2002,
https://doi.org/10.1162/08997660260028683). It equals the Hessian where the outputs are
linear in the weights, and is positive semi-definite always.

Other heads of shared weights, w [1, P], have no outputs to go through: the Hessian itself. It may
be indefinite away from a minimum; `Hessian.onto` says what happens then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import (
    Categorical,
    Head,
    Heteroscedastic,
    Network,
    OnePredictor,
)
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.inference._curvature import Curvature, Dense, Diagonal, Structure
from bayesagg_pyro.inference._ggn import Chunk, Expansion
from bayesagg_pyro.inference._log_joint import log_likelihood
from bayesagg_pyro.posteriors import Gaussian, GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["Hessian", "check_tasks", "expand", "value"]

#: Entries of the largest Jacobian at once: 2²³ doubles are 64 MiB.
_CHUNK = 2**23


@dataclass(frozen=True)
class Hessian(Dense):
    """Σ ∂²(−log p)/∂w², [1, P, P], which need not be positive semi-definite."""

    def __add__(self, other: Dense) -> Hessian:
        return Hessian(self.matrix + other.matrix)

    def scaled(self, factor: Tensor) -> Hessian:
        """Times a scalar."""
        return Hessian(self.matrix * factor)

    def onto(self, prior: GaussianFamily, owner: str) -> Gaussian:
        """The Gaussian of precision Λ_prior + Hessian, still around the prior's mean.

        Where that sum has eigenvalues below 1e-10 of the largest, their absolute values (at least
        that much) stand in, so that a Newton step still leads downhill. `info.jitter` then holds
        the largest change over the largest eigenvalue; at a proper minimum it is 0.
        """
        dense = prior.to_gaussian()
        total = dense.precision_matrix + self.matrix
        values, vectors = torch.linalg.eigh(total)
        largest = values.abs().amax(-1, keepdim=True)
        floor = 1e-10 * largest
        good = torch.where(values > floor, values, torch.maximum(values.abs(), floor))
        change = ((good - values) / largest).amax(-1)
        total = torch.where(
            change[..., None, None] > 0, (vectors * good[..., None, :]) @ vectors.mT, total
        )
        return Gaussian(
            dense.mean, total, precision_tril=torch.linalg.cholesky(total), jitter=change
        )


def value(head: Head, chunk: Chunk, point: Tensor) -> Tensor:
    """Σ −log p over the observed examples, [blocks]."""
    return -log_likelihood(head, point, chunk.design, chunk.targets)


def expand(
    head: Head, observed: Head | None, chunk: Chunk, point: Tensor, structure: Structure
) -> Expansion:
    """Value, gradient and curvature at `point`, [blocks, P], for some examples.

    Args:
        head: the head.
        observed: the head whose likelihood of the outputs is expanded, most often the same; None
            for the Hessian of what all tasks share.
        chunk: features and targets.
        point: the weights.
        structure: of the curvature.
    """
    if observed is None:
        return _hessian(head, chunk, point)
    each = head.weight_size * head.tasks * observed.outputs_per_task
    size = max(1, _CHUNK // each)
    parts = (
        _gauss_newton(
            head,
            observed,
            Chunk(chunk.design[rows], chunk.targets.examples(rows)),
            point,
            structure,
        )
        for rows in (slice(i, i + size) for i in range(0, len(chunk.design), size))
    )
    return reduce(lambda total, part: total + part, parts)


def _gauss_newton(
    head: Head, observed: Head, chunk: Chunk, point: Tensor, structure: Structure
) -> Expansion:
    features, targets = chunk
    if isinstance(head, Network) and head.is_still(Network, "outputs"):
        jacobian, outputs = _network_jacobian(head, features, point)
    else:
        jacobian, outputs = _jacobian(head, features, point)
    slope, curved = _curved(observed, outputs, targets, jacobian)
    if head.blocks == 1:  # every output depends on the same weights
        slope, jacobian, curved = (
            x.flatten(0, 2)[None] for x in (slope[..., None], jacobian, curved)
        )
    else:
        slope, jacobian, curved = (
            x.transpose(0, 1).flatten(1, 2) for x in (slope[..., None], jacobian, curved)
        )
    gradient = (slope.mT @ jacobian)[:, 0]
    if structure == "diag":
        curvature: Curvature = Diagonal((jacobian * curved).sum(1))
    else:
        curvature = Dense(jacobian.mT @ curved)
    return Expansion(value(head, chunk, point), gradient, curvature)


def _network_jacobian(head: Network, features: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """One backward pass per output: there are fewer of them than weights."""

    def outputs_of(weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        out = head.flat_outputs(h[None], weight)[0]
        return out, out

    jacobian, flat = torch.func.vmap(
        torch.func.jacrev(outputs_of, has_aux=True), in_dims=(None, 0)
    )(point[0], features)
    return jacobian.unflatten(1, (head.tasks, -1)), flat.unflatten(1, (head.tasks, -1))


def _jacobian(head: Head, features: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian and outputs of a head's own `forward`: [B, tasks, C, P] and [B, tasks, C].

    One shift δ moves the weights of all tasks, of which each task's outputs depend on their own
    alone. Jᵀ v is linear in v, so its derivatives in v are the columns of J: one for each weight,
    for all examples at once. No code of the head is run under a transform of `torch.func`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        features, point = features.clone(), point.detach().clone()
        shift = torch.zeros_like(point[0]).requires_grad_()
        outputs = head(features, point + shift)
        outputs = outputs.reshape(len(features), head.tasks, -1)
        if not outputs.requires_grad:
            raise SettingError(
                f"head {head.site!r}: the outputs of {type(head).__name__} have no derivative in "
                "the weights given to forward(features, weight)"
            )
        v = torch.zeros_like(outputs).requires_grad_()
        (pulled,) = torch.autograd.grad(outputs, shift, v, create_graph=True)
        unit = torch.eye(len(shift), dtype=shift.dtype, device=shift.device)
        (columns,) = torch.autograd.grad(pulled, v, unit, is_grads_batched=True)
    return columns.movedim(0, -1), outputs.detach()


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
    jacobian, outputs = _jacobian(head, features, point)  # [2, tasks, C, P]
    r = (0.3 + torch.arange(outputs.numel()).to(point)).sin().reshape(outputs.shape)
    alone = torch.einsum("btc,btcp->tp", r, jacobian)
    with torch.inference_mode(False), torch.enable_grad():
        weight = point.clone().requires_grad_()
        total = (head(features.clone(), weight).reshape(r.shape) * r).sum()
        (together,) = torch.autograd.grad(total, weight)
    if (together - alone).abs().max() > 1e-4 * alone.abs().max():
        raise SettingError(
            f"head {head.site!r}: outputs of one task of {type(head).__name__} depend on the "
            "weights of others, whose posteriors are apart; derive it from heads.SharedWeights"
        )


def _curved(
    likelihood: Head, outputs: Tensor, targets: Targets, jacobian: Tensor
) -> tuple[Tensor, Tensor]:
    """Slope of −log p in the outputs, [B, tasks, C], and its curvature times the Jacobian."""
    factor = targets.factor(outputs.dtype)
    if isinstance(likelihood, OnePredictor):
        values = like(targets.values, outputs)
        slope, curvature = likelihood.nll_derivatives(targets.counted(outputs[..., 0]), values)
        if factor is not None:
            slope, curvature = slope * factor, curvature * factor
        return slope[..., None], curvature[..., None, None] * jacobian
    if isinstance(likelihood, Heteroscedastic):  # Fisher's information, diagonal in (f, s)
        outputs = likelihood.counted(outputs, targets)
        slope, fisher = likelihood.nll_derivatives(outputs, targets.values.to(outputs.dtype))
        if factor is not None:
            slope, fisher = slope * factor[..., None], fisher * factor[..., None]
        return slope, fisher[..., None] * jacobian
    assert isinstance(likelihood, Categorical)
    weight = likelihood.target_weight(targets.values)
    if weight is not None:
        factor = weight.to(outputs.dtype) * (1.0 if factor is None else factor)
    p = outputs.softmax(-1)
    slope = p - torch.nn.functional.one_hot(targets.values, likelihood.classes)
    # (diag(p) − p pᵀ) J
    average = torch.einsum("btc,btcp->btp", p, jacobian)[..., None, :]
    curved = p[..., None] * (jacobian - average)
    if factor is None:
        return slope, curved
    return slope * factor[..., None], curved * factor[..., None, None]


def _hessian(head: Head, chunk: Chunk, point: Tensor) -> Expansion:
    def total(weight: Tensor) -> Tensor:
        return value(head, chunk, weight[None])[0]

    def slope(weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gradient, at = torch.func.grad_and_value(total)(weight)
        return gradient, (gradient, at)

    matrix, (gradient, at) = torch.func.jacfwd(slope, has_aux=True)(point[0])
    matrix = 0.5 * (matrix + matrix.mT)
    return Expansion(at[None], gradient[None], Hessian(matrix[None]))
