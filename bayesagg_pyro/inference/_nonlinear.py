"""Expansions of −log p in weights that all tasks share, w [1, P].

Network heads: the generalised Gauss-Newton matrix Σ_i J_iᵀ H_i J_i, with J_i the Jacobian of one
example's outputs in the weights and H_i the curvature of −log p in the outputs (Schraudolph, 2002).
It equals the Hessian where the outputs are linear in the weights, and is positive semi-definite
always.

Other heads have no outputs to go through: the Hessian itself, by automatic differentiation. It may
be indefinite away from a minimum; `Hessian.onto` says what happens then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import (
    Categorical,
    Head,
    Heteroscedastic,
    Network,
    OnePredictor,
    SharedWeights,
)
from bayesagg_pyro.inference import _ggn
from bayesagg_pyro.inference._curvature import Curvature, Dense, Diagonal, Structure
from bayesagg_pyro.inference._ggn import Chunk, Expansion
from bayesagg_pyro.inference._log_joint import log_likelihood
from bayesagg_pyro.posteriors import Gaussian, GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["Hessian", "check_structure", "expand", "value"]

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


def check_structure(head: SharedWeights, structure: Structure) -> None:
    """Refuse structures that do not fit, and likelihoods whose curvature is not known.

    Raises:
        SettingError: naming the head and the remedy.
    """
    allowed: tuple[str, ...] = ("full",)
    if isinstance(head, Network):
        _ggn.check_structure(head.observation, "full")
        allowed = ("full", "diag")
    if structure not in allowed:
        raise SettingError(
            f"head {head.site!r}: structure must be one of {allowed} for {type(head).__name__} "
            f"heads, not {structure!r}"
        )


def value(head: SharedWeights, chunk: Chunk, point: Tensor) -> Tensor:
    """Σ −log p over the observed examples, [1]."""
    return -log_likelihood(head, point, chunk.design, chunk.targets)


def expand(head: SharedWeights, chunk: Chunk, point: Tensor, structure: Structure) -> Expansion:
    """Value, gradient and curvature at `point`, [1, P], for some examples."""
    if not isinstance(head, Network):
        return _hessian(head, chunk, point)
    each = head.weight_size * head.tasks * head.observation.outputs_per_task
    size = max(1, _CHUNK // each)
    parts = (
        _gauss_newton(
            head, Chunk(chunk.design[rows], chunk.targets.examples(rows)), point, structure
        )
        for rows in (slice(i, i + size) for i in range(0, len(chunk.design), size))
    )
    return reduce(lambda total, part: total + part, parts)


def _gauss_newton(head: Network, chunk: Chunk, point: Tensor, structure: Structure) -> Expansion:
    features, targets = chunk
    tasks = head.tasks

    def outputs_of(weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        out = head.flat_outputs(h[None], weight)[0]
        return out, out

    jacobian, flat = torch.func.vmap(
        torch.func.jacrev(outputs_of, has_aux=True), in_dims=(None, 0)
    )(point[0], features)
    jacobian = jacobian.unflatten(1, (tasks, -1))  # [B, tasks, C, P]
    outputs = flat.unflatten(1, (tasks, -1))  # [B, tasks, C]
    slope, curved = _curved(head.observation, outputs, targets, jacobian)
    gradient = torch.einsum("btc,btcp->p", slope, jacobian)[None]
    if structure == "diag":
        curvature: Curvature = Diagonal((jacobian * curved).sum((0, 1, 2))[None])
    else:
        curvature = Dense((jacobian.flatten(0, 2).mT @ curved.flatten(0, 2))[None])
    return Expansion(value(head, chunk, point), gradient, curvature)


def _curved(
    likelihood: Head, outputs: Tensor, targets: Targets, jacobian: Tensor
) -> tuple[Tensor, Tensor]:
    """Slope of −log p in the outputs, [B, tasks, C], and its curvature times the Jacobian."""
    factor = targets.factor(outputs.dtype)
    if isinstance(likelihood, OnePredictor):
        values = targets.values.to(outputs.dtype)
        slope, curvature = likelihood.expansion(outputs[..., 0], values)
        if factor is not None:
            slope, curvature = slope * factor, curvature * factor
        return slope[..., None], curvature[..., None, None] * jacobian
    if isinstance(likelihood, Heteroscedastic):  # Fisher's information, diagonal in (f, s)
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


def _hessian(head: SharedWeights, chunk: Chunk, point: Tensor) -> Expansion:
    def total(weight: Tensor) -> Tensor:
        return value(head, chunk, weight[None])[0]

    def slope(weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gradient, at = torch.func.grad_and_value(total)(weight)
        return gradient, (gradient, at)

    matrix, (gradient, at) = torch.func.jacfwd(slope, has_aux=True)(point[0])
    matrix = 0.5 * (matrix + matrix.mT)
    return Expansion(at[None], gradient[None], Hessian(matrix[None]))
