"""The two kinds of step: of the warm-up, and Bayesian. Each adds to gradients and says what it did.

Neither holds a formula; nothing of a head changes until the backbone has its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro._backbone import into_backbone, reported_dtype
from bayesagg_pyro._guard import Guard, reported_losses
from bayesagg_pyro._pipeline import HeadStages, through_stages
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.step import Stages, StepInfo, describe
from bayesagg_pyro.targets import Targets

__all__ = ["Batch", "Done", "bayes_step", "point", "warmup_step"]


@dataclass(frozen=True)
class Batch:
    """A batch that has passed validation.

    Attributes:
        features: [B, d], attached to the backbone's graph.
        observed: {name: parsed targets}.
        valid: the flag of deferred validation; None where values were checked at once.
    """

    features: Tensor
    observed: Mapping[str, Targets]
    valid: Tensor | None


@dataclass(frozen=True)
class Done:
    """What came of a batch.

    Attributes:
        info: what the step did.
        valid: the flag of deferred validation, after the step's own checks; None as for `Batch`.
    """

    info: StepInfo
    valid: Tensor | None


def point(own: HeadStages, *, warmup: bool) -> Tensor | None:
    """Weights of a head that predict; None stands for the head's own parameter."""
    if warmup or own.refresher.learns:
        return None
    posterior = own.tracker.posterior
    return None if posterior is None else posterior.mean


def warmup_step(
    stages: Mapping[str, HeadStages], guard: Guard, batch: Batch, *, keep: bool
) -> Done:
    """Gradient of the summed losses, for backbone and heads.

    Args:
        stages: {name: what belongs to the head}.
        guard: validates the loss.
        batch: the examples.
        keep: whether the result holds what passed between the stages.
    """
    losses = _losses(stages, batch.features, batch.observed, warmup=True)
    total = torch.cat(list(losses.values())).sum()
    valid = guard.check_finite(
        "the loss",
        total,
        batch.valid,
        lambda: [n for n, x in losses.items() if not x.isfinite().all()],
    )
    total = total if valid is None else torch.where(valid, total, 0.0)
    # The backbone first: where its graph is spent, no head has changed.
    (update,) = torch.autograd.grad(total, batch.features, retain_graph=True)
    into_backbone(batch.features, update)
    heads = (own.head for own in stages.values())
    learned = [weight for head in heads for weight in head.parameters() if weight.requires_grad]
    if learned:
        total.backward(inputs=learned)
    kept = Stages(batch.features.detach(), batch.observed) if keep else None
    info = StepInfo(bayesian=False, losses=reported_losses(losses, valid), stages=kept)
    return Done(info, valid)


def bayes_step(
    stages: Mapping[str, HeadStages],
    aggregation: Aggregation,
    guard: Guard,
    batch: Batch,
    *,
    scale: float,
    memory: int | None,
    keep: bool,
) -> Done:
    """The aggregated direction, for the backbone; the losses' gradient, for heads that learn.

    Args:
        stages: {name: what belongs to the head}.
        aggregation: of the joint gradient distribution.
        guard: validates the update.
        batch: the examples.
        scale: factor on the aggregated direction.
        memory: bytes above which temporaries are cut into chunks; None for never.
        keep: whether the result holds what passed between the stages.
    """
    features, observed = batch.features, batch.observed
    h = features.detach().to(reported_dtype(features))  # moments need float32's range at least
    with torch.no_grad():
        outcome = through_stages(stages, aggregation, h, observed, memory)
        update = outcome.summary.direction * (scale / len(h))
        valid = guard.check_finite("the update", update, batch.valid, outcome.not_finite)
        if valid is not None:
            update = torch.where(valid, update, 0.0)
    learned = [name for name, own in stages.items() if _learns(own)]
    with torch.enable_grad():
        losses = _losses(stages, h, observed, warmup=False)
        into_backbone(features, update.to(features.dtype))
        if learned:
            total = torch.cat([losses[name] for name in learned]).sum()
            (total if valid is None else torch.where(valid, total, 0.0)).backward()
    for name in stages.keys() - outcome.chunked:
        stages[name].refresher.accept(outcome.held[name], outcome.priors[name], valid)
    kept = None
    if keep:
        posteriors = {name: one.posterior for name, one in outcome.held.items()}
        kept = (outcome.gradient, Stages(h, observed, outcome.priors, posteriors))
    reported = reported_losses(losses, valid)
    info = describe(reported, outcome.priors, outcome.held, outcome.summary, scale, kept)
    return Done(info, valid)


def _learns(own: HeadStages) -> bool:
    """Whether the gradient of its loss changes the head; one that is frozen stays as it is."""
    wanted = own.refresher.learns or own.head.has_own_parameters
    return wanted and any(weight.requires_grad for weight in own.head.parameters())


def _losses(
    stages: Mapping[str, HeadStages],
    features: Tensor,
    observed: Mapping[str, Targets],
    *,
    warmup: bool,
) -> dict[str, Tensor]:
    losses = {}
    for name, own in stages.items():
        target = observed[name]
        loss = own.head.losses(features, target, point(own, warmup=warmup))
        losses[name] = target.mean(loss).to(reported_dtype(features))
    return losses
