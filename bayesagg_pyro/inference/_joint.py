"""The joint density of targets and weights, batched over tasks and over whatever stands before."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._log_joint import log_likelihood
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["Joint"]


class Joint:
    """log p(y, w | h) of one head: one value per block of weights, which is per task.

    Tasks are independent unless a head shares weights between them (`head.blocks`).

    Args:
        head: the head; its `negative_log_probs` is all that is used.
        features: [N, d], in the precision to compute in.
        targets: [N, tasks].
        prior: Gaussian, in that precision.
    """

    def __init__(
        self, head: Head, features: Tensor, targets: Targets, prior: GaussianFamily
    ) -> None:
        self.head = head
        self.features = features
        self.targets = targets
        self.prior = prior

    def log_likelihood(
        self, weight: Tensor, *, factor: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Σ log p(y | h, w) over the observed examples, [..., blocks].

        Args:
            weight: [..., blocks, P].
            factor: [..., N, tasks], further weights of the examples.
            noise: [..., N, tasks], added to the targets.
        """
        values, mask, own = self.targets
        if noise is not None:
            values = values + noise
        if factor is not None and own is not None:
            factor = factor * own.to(factor.dtype)
        targets = Targets(values, mask, own if factor is None else factor)
        return log_likelihood(self.head, weight, self.features, targets)

    def log_prior(self, weight: Tensor, centre: Tensor | None = None) -> Tensor:
        """log p(w) up to a constant, [..., blocks]; around another `centre` than its mean if given.

        Args:
            weight: [..., blocks, P].
            centre: [..., blocks, P].
        """
        offset = weight - (self.prior.mean if centre is None else centre)
        return -0.5 * (offset * self.prior.precision_times(offset)).sum(-1)

    def log_prob(self, weight: Tensor) -> Tensor:
        """log p(y, w | h) up to a constant, [..., blocks], for weights [..., blocks, P]."""
        return self.log_likelihood(weight) + self.log_prior(weight)

    def point(self) -> Tensor:
        """The head's own weights in the precision to compute in, [blocks, P]."""
        return self.head.point().detach().to(self.features.dtype)


def hessian(value: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [..., P] and Hessian [..., P, P] of a value [...] that couples no two entries of it.

    Args:
        value: [...], computed from `weight`.
        weight: [..., P], a leaf that requires gradients.
    """
    size = weight.shape[-1]
    (slope,) = torch.autograd.grad(value.sum(), weight, create_graph=True)
    eye = torch.eye(size, dtype=weight.dtype, device=weight.device)
    directions = eye.reshape(size, *[1] * (weight.ndim - 1), size).expand(size, *weight.shape)
    # A few columns at a time: each carries a copy of everything per example.
    rows = max(1, _COLUMNS // max(1, weight[..., 0].numel()))
    columns = [
        torch.autograd.grad(slope, weight, part, is_grads_batched=True, retain_graph=True)[0]
        for part in directions.split(rows)
    ]
    matrix = torch.cat(columns).movedim(0, -1)
    return slope.detach(), 0.5 * (matrix + matrix.mT)


#: Columns times entries of `value` that are worked on at once.
_COLUMNS = 4096
