"""The unnormalised posterior: all that a sampling or variational scheme needs to know of a head.

A head offers `negative_log_probs(features, targets, weight)` ([..., B, tasks] at weights
[..., blocks, P]) and `blocks`; a prior offers `log_prob`. Nothing else of the model is used, so
every head works: linear ones, networks, any Pyro model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets


def log_likelihood(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> Tensor:
    """log p(y | H, w) over the observed examples, times their weights.

    Args:
        head: the head.
        weight: [..., blocks, P]; differentiable.
        features: [B, d]; use float64 (`linalg.head_dtype`) for float64 weights.
        targets: [B, tasks].

    Returns:
        [..., blocks]: one number per task, or one in all where tasks share their weights.
    """
    nll = head.negative_log_probs(features, targets, weight)
    if targets.weight is not None:
        nll = nll * targets.weight.to(nll.dtype)
    if targets.mask is not None:
        nll = torch.where(targets.mask, nll, 0.0)
    per_task = -nll.sum(-2)
    return per_task if head.blocks == head.tasks else per_task.sum(-1, keepdim=True)


def log_joint(
    head: Head, weight: Tensor, features: Tensor, targets: Targets, prior: Posterior
) -> Tensor:
    """log p(y, w | H) = log-likelihood + log-prior, [..., blocks]; arguments as above.

    Args:
        head: the head.
        weight: [..., blocks, P]; differentiable.
        features: [B, d].
        targets: [B, tasks].
        prior: of batch shape [blocks], with a `log_prob`.
    """
    log_prior: Tensor = prior.log_prob(weight)
    return log_likelihood(head, weight, features, targets) + log_prior


class Joint:
    """log p(y, w | h) of one head: one value per task (per block, where tasks share weights).

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
        self, weight: Tensor, *, factor: Tensor | None = None, perturbation: Tensor | None = None
    ) -> Tensor:
        """Σ log p(y | h, w) over the observed examples, [..., blocks].

        Args:
            weight: [..., blocks, P].
            factor: [..., N, tasks], weights of the examples in place of their own.
            perturbation: [..., N, tasks], added to the targets.
        """
        values, mask, own = self.targets
        if perturbation is not None:
            values = values + perturbation
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
