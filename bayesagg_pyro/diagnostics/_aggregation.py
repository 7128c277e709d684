"""How tasks share an update: weights, conflicts, shares, and the change of each task's loss."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro.aggregation import Aggregated, PrecisionWeighted, effective_tasks
from bayesagg_pyro.diagnostics._gradients import seen_only
from bayesagg_pyro.diagnostics._thresholds import Check, judge, judge_known
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import RawTargets

_QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Weights:
    """Summary of the weights α [tasks, B, d], over examples that have a target for the task.

    Attributes:
        mean: over examples and dimensions, [tasks]; NaN for a task without any target.
        quantiles: 5, 50 and 95 % over examples and dimensions, [3, tasks]; likewise.
        by_example: mean over dimensions, [tasks, B]; NaN without a target.
        by_dimension: mean over examples, [tasks, d].
        effective: (Σα)² / Σα² of each example and dimension, [B, d], see
            `aggregation.effective_tasks`; NaN without any target.
    """

    mean: Tensor
    quantiles: Tensor
    by_example: Tensor
    by_dimension: Tensor
    effective: Tensor

    @property
    def observed_tasks(self) -> int:
        """How many tasks have a target in the batch."""
        return int((~self.mean.isnan()).sum())

    @property
    def effective_tasks(self) -> Tensor:
        """Mean effective number of tasks, []."""
        return self.effective.nanmean()

    def checks(self) -> list[Check]:
        """Effective number of tasks, of those that have a target."""
        tasks = self.observed_tasks
        if tasks < 2:
            return []
        return [judge("effective_tasks", (self.effective_tasks - 1) / (tasks - 1))]


def weights(grad: GradientDistribution, result: Aggregated) -> Weights:
    """Summarise the weights of an aggregation.

    Args:
        grad: what was aggregated.
        result: its outcome.

    Raises:
        StateError: for a method without weights.
    """
    if result.weights is None:
        raise StateError("this aggregation has no weights of tasks to summarise")
    alpha = result.weights.expand_as(grad.mean).double()
    levels = torch.tensor(_QUANTILES, dtype=alpha.dtype, device=alpha.device)
    effective = effective_tasks(alpha, grad.observed)
    if grad.observed is not None:
        alpha = torch.where(grad.observed[..., None], alpha, torch.nan)
    flat = alpha.flatten(1)
    return Weights(
        flat.nanmean(1),
        torch.stack([_quantile(row[~row.isnan()], levels) for row in flat], 1),
        alpha.mean(2),
        alpha.nanmean(1),
        effective,
    )


@dataclass(frozen=True)
class Conflicts:
    """How far the gradients of pairs of tasks agree, on examples that have targets for both.

    All are NaN for pairs without any such example.

    Attributes:
        cosine: of the mean gradients of the whole batch, [tasks, tasks].
        scaled: the same of μ/σ, gradients in units of their uncertainty, [tasks, tasks].
        against: share of the examples on which their gradients' inner product is below zero by
            more than twice its own standard deviation, [tasks, tasks].
        along: likewise above zero, [tasks, tasks].
    """

    cosine: Tensor
    scaled: Tensor
    against: Tensor
    along: Tensor

    def checks(self) -> list[Check]:
        """The pair of tasks that surely disagrees most often, if two share an example."""
        pairs = self.against.clone().fill_diagonal_(torch.nan)
        return judge_known("conflict", pairs, ("task", "task"))


def conflicts(grad: GradientDistribution) -> Conflicts:
    """Agreement between tasks, with and without taking uncertainty into account.

    The inner product of two independent gradients has mean μᵢ·μⱼ and, with diagonal covariances,
    variance Σ_d μᵢ² Vⱼ + μⱼ² Vᵢ + Vᵢ Vⱼ; a conflict counts when it stands out from that.
    """
    mean, variance = grad.mean.double(), grad.variance.double()
    inner = torch.einsum("ibd,jbd->ijb", mean, mean)
    crossed = torch.einsum("ibd,jbd->ijb", mean.square(), variance)
    spread = crossed + crossed.transpose(0, 1) + torch.einsum("ibd,jbd->ijb", variance, variance)
    limit = 2 * spread.sqrt()
    both = torch.ones_like(inner, dtype=torch.bool)
    if grad.observed is not None:
        both = grad.observed[:, None] & grad.observed[None]
    count = both.sum(-1)  # 0/0 is NaN: there is nothing to say of such a pair
    tiny = torch.finfo(mean.dtype).tiny
    scaled = torch.where(variance > 0, mean / variance.clamp(min=tiny).sqrt(), 0.0)
    return Conflicts(
        _cosines(mean, both),
        _cosines(scaled, both),
        ((inner < -limit) & both).sum(-1) / count,
        ((inner > limit) & both).sum(-1) / count,
    )


@dataclass(frozen=True)
class Update:
    """The share of each task in an update, and how the update changes its loss.

    Attributes:
        norm: of the direction over the whole batch, [].
        shares: ⟨α_t μ_t, g⟩ / ⟨g, g⟩, which sum to 1 over tasks for a weighted mean, [tasks]; None
            for a method without weights. Negative: the task was overruled. NaN for a task without
            any target, as below.
        change: −⟨μ_t, g⟩ / ‖μ_t‖‖g‖, [tasks]: first-order change of the task's expected loss when
            features move along −g, in units of the best that a move of this length could do:
            −1 is the best, 0 no change, positive a rise.
        change_of_mean: the same along the plain mean of the tasks' mean gradients, [tasks].
    """

    norm: Tensor
    shares: Tensor | None
    change: Tensor
    change_of_mean: Tensor

    def checks(self) -> list[Check]:
        """Shares and changes."""
        found = judge_known("first_order", self.change, ("task",))
        if self.shares is not None:
            tasks = int((~self.shares.isnan()).sum())
            found += judge_known("share", self.shares * tasks, ("task",))
        return found


def update(grad: GradientDistribution, result: Aggregated) -> Update:
    """Shares, cosines and first-order changes of an update direction, in feature space.

    Args:
        grad: what was aggregated.
        result: its outcome; for the full covariance, shares come from the weights' diagonals.
    """
    mean = grad.mean.double()
    scale = grad.loss_scale()
    scaled = mean if scale is None else mean * scale
    direction = result.direction.double()
    plain = scaled.mean(0)
    shares = None
    if result.weights is not None:
        parts = torch.einsum("tbd,bd->t", result.weights * scaled, direction)
        shares = parts / _positive(direction.square().sum())
    seen = torch.ones_like(mean[:, 0, 0], dtype=torch.bool)
    if grad.observed is not None:
        seen = grad.observed.any(1)
    return Update(
        torch.linalg.vector_norm(direction),
        None if shares is None else torch.where(seen, shares, torch.nan),
        torch.where(seen, -_cosine_to(scaled, direction), torch.nan),
        torch.where(seen, -_cosine_to(scaled, plain), torch.nan),
    )


@dataclass(frozen=True)
class DroppedByDiagonal:
    """The update with full covariances compared with the update from their diagonals, power 1.

    Attributes:
        cosine: of the two directions of each example, [B].
        norm_ratio: ‖full‖ / ‖diagonal‖, [B].
        correlation: mean absolute correlation between dimensions of a gradient, [tasks].
    """

    cosine: Tensor
    norm_ratio: Tensor
    correlation: Tensor

    def checks(self) -> list[Check]:
        """The median cosine over examples."""
        return judge_known("diagonal", self.cosine.nanmedian())


def diagonal_against_full(grad: GradientDistribution) -> DroppedByDiagonal:
    """What is lost by ignoring correlations between dimensions; takes memory [tasks, B, d, d].

    Raises:
        StateError: if the estimator offers no covariance.
    """
    rules = PrecisionWeighted.paper(covariance="full"), PrecisionWeighted.paper()
    with warnings.catch_warnings():  # that weights per example are constant is no news here
        warnings.simplefilter("ignore")
        full, diagonal = (rule.aggregate(grad).direction.double() for rule in rules)
    norms = [torch.linalg.vector_norm(g, dim=-1) for g in (full, diagonal)]
    covariance = grad.covariance_matrix.double()
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = covariance / (deviation[..., :, None] * deviation[..., None, :])
    size = correlation.shape[-1]
    off = ~torch.eye(size, dtype=torch.bool, device=correlation.device)
    return DroppedByDiagonal(
        (full * diagonal).sum(-1) / (norms[0] * norms[1]),
        norms[0] / norms[1],
        seen_only(correlation[..., off].abs(), grad).flatten(1).nanmean(1),
    )


def uncertainty_pull(
    head: Head, posterior: Posterior, features: Tensor, targets: RawTargets
) -> Tensor | None:
    """Share of the term 2 S h in E[g] = 2 (m r + S h) of a Gaussian head, [tasks].

    That term is the gradient of hᵀ S h: it moves features to where the weights are certain, which
    for rare or dead units means towards zero. The share is ‖2 S h‖ / (‖2 m r‖ + ‖2 S h‖) over the
    batch, NaN for a task without any target. None for other heads and posteriors, whose mean
    gradient has no such term.
    """
    linear = head.is_still(Gaussian) and head.embedding is None
    if not linear or not isinstance(posterior, GaussianFamily):
        return None
    observed = head.parse_targets(targets, len(features))
    design = head.design_matrix(features)
    size = head.in_features
    pull = posterior.project(design).cross[..., :size].expand(head.tasks, -1, -1)
    residual = (design @ posterior.mean.mT - observed.values.to(design.dtype)).mT
    error = residual[..., None] * posterior.mean[:, None, :size]
    if observed.mask is not None:
        seen = observed.mask.mT[..., None]
        pull, error = pull * seen, error * seen
    pulled, corrected = (part.flatten(1).square().sum(1).sqrt() for part in (pull, error))
    share = pulled / _positive(pulled + corrected)
    return torch.where(observed.counts() > 0, share, torch.nan)


def _cosines(rows: Tensor, both: Tensor) -> Tensor:
    """Cosines of rows [tasks, B, d] over the examples [tasks, tasks, B] that two share."""
    inner = torch.einsum("ibd,jbd->ij", rows, rows)  # zero where either is not observed
    square = torch.einsum("ib,ijb->ij", rows.square().sum(-1), both.to(rows.dtype))
    cosine = inner / _positive((square * square.mT).sqrt())
    return torch.where(both.any(-1), cosine, torch.nan)


def _cosine_to(rows: Tensor, direction: Tensor) -> Tensor:
    inner = torch.einsum("tbd,bd->t", rows, direction)
    norms = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return inner / _positive(norms * torch.linalg.vector_norm(direction))


def _positive(value: Tensor) -> Tensor:
    return value.clamp(min=torch.finfo(value.dtype).tiny)


def _quantile(values: Tensor, levels: Tensor) -> Tensor:
    """Quantiles of a vector of any length (`torch.quantile` refuses long ones)."""
    if not len(values):
        return torch.full_like(levels, torch.nan)
    ordered = values.sort().values
    position = (levels * (len(ordered) - 1)).round().long()
    return ordered[position]
