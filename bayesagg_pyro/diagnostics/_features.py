"""The features that heads are given: live units, rank, norms, and priors that lag behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of HᵀH and what they say.

    Attributes:
        eigenvalues: of HᵀH / B, descending, [d].
        live: which units vary over the batch, [d] bool.
        rank: numerical rank of H, [].
        effective_rank: exp of the entropy of the eigenvalues' shares, [] (Roy and Vetterli, 2007,
            https://www.eurasip.org/Proceedings/Eusipco/Eusipco2007/Papers/a5p-h05.pdf, with
            eigenvalues of HᵀH in place of singular values of H): d when all directions carry the
            same, 1 when one direction carries everything.
    """

    eigenvalues: Tensor
    live: Tensor
    rank: Tensor
    effective_rank: Tensor

    @property
    def live_units(self) -> Tensor:
        """Number of live units, []."""
        return self.live.sum()

    def checks(self) -> list[Check]:
        """Live units and effective rank."""
        width = len(self.live)
        return [
            judge("live_units", self.live_units / width),
            judge("effective_rank", self.effective_rank / width),
        ]


def spectrum(features: Tensor) -> Spectrum:
    """Spectrum of a batch of features.

    A unit is live if its standard deviation over the batch is above 1e-6 of the largest one.

    Args:
        features: [B, d].
    """
    h = features.detach().double()
    deviation = (h - h.mean(0)).square().mean(0).sqrt()
    live = deviation > 1e-6 * deviation.amax()
    singular: Tensor = torch.linalg.svdvals(h)
    values = singular.square() / len(h)
    if len(values) < h.shape[1]:  # fewer examples than units
        values = torch.cat([values, values.new_zeros(h.shape[1] - len(values))])
    tolerance = max(h.shape) * torch.finfo(features.dtype).eps
    rank = (singular > tolerance * singular.amax()).sum()
    share = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    return Spectrum(values, live, rank, torch.special.entr(share).sum().exp())


def head_norms(posterior: Posterior) -> Tensor:
    """Euclidean norm of each task's mean weights, [tasks]."""
    norms: Tensor = torch.linalg.vector_norm(posterior.mean.double(), dim=-1)
    return norms


@dataclass(frozen=True)
class Staleness:
    """How far a prior lags behind the features.

    Attributes:
        distance: norm of the difference of the means over the norm of the fresh mean, [tasks] (one
            number where all tasks share their weights).
        deviations: root mean square of that difference in fresh posterior standard deviations
            per weight, likewise.
        loss: mean loss at the prior's mean, on the fresh features, [tasks]; NaN for a task without
            any target there.
        fresh_loss: likewise at the mean of the fresh posterior, [tasks].
    """

    distance: Tensor
    deviations: Tensor
    loss: Tensor
    fresh_loss: Tensor

    @property
    def cost(self) -> Tensor:
        """Relative rise of the loss from using the stale mean, [tasks]; negative if it is better.

        A task that both fit exactly costs nothing.
        """
        rise = self.loss - self.fresh_loss
        return torch.where(rise == 0, 0.0, rise / self.fresh_loss.abs())

    def checks(self) -> list[Check]:
        """The cost in loss; distances depend on how much data there is."""
        seen = ~self.loss.isnan()
        return [judge("stale_cost", self.cost, ("task",), seen=seen)] if seen.any() else []


def staleness(
    head: Head,
    scheme: Scheme,
    prior: Posterior,
    base: Posterior,
    features: Tensor,
    targets: RawTargets,
) -> Staleness:
    """Compare a prior with the posterior that current features would give.

    Args:
        head: the head.
        scheme: makes the fresh posterior.
        prior: the prior in force, made from older features.
        base: what the fresh posterior starts from, such as `priors.isotropic(head, variance)`.
        features: of training examples, by the present network, [N, d].
        targets: [N, tasks], or (values, mask).
    """
    observed = head.parse_targets(targets, len(features))
    fresh = scheme.infer(head, features, observed, base)
    difference = (prior.mean - fresh.mean).double()
    norm = torch.linalg.vector_norm
    losses = [
        observed.mean(head.losses(features.detach(), observed, p.mean)).double()
        for p in (prior, fresh)
    ]
    losses = [torch.where(observed.counts() > 0, loss, torch.nan) for loss in losses]
    scaled = difference / fresh.variance.double().sqrt()
    return Staleness(
        norm(difference, dim=-1) / norm(fresh.mean.double(), dim=-1),
        scaled.square().mean(-1).sqrt(),
        *losses,
    )
