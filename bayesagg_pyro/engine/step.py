"""The two kinds of step: of the warm-up, and Bayesian.

Each changes what belongs to heads (gradients, posteriors held), and says what it did and what the
backbone is to get. Neither holds a formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.engine.backbone import reported_dtype
from bayesagg_pyro.engine.batch import Batch
from bayesagg_pyro.engine.info import Stages, StepInfo, describe
from bayesagg_pyro.engine.pipeline import HeadStages, through_stages
from bayesagg_pyro.engine.validation import Guard, refuse_weights, reported_losses
from bayesagg_pyro.errors import NumericalError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import Targets

__all__ = ["Done", "bayes_step", "check_losses", "follows", "point", "warmup_step"]


@dataclass(frozen=True)
class Done:
    """What came of a batch.

    Attributes:
        info: what the step did.
        update: [B, d], what the backbone is to get.
        valid: the flag of deferred validation, after the step's own checks; None as for `Batch`.
    """

    info: StepInfo
    update: Tensor
    valid: Tensor | None


def point(own: HeadStages, *, warmup: bool) -> Tensor | None:
    """Weights of a head that predict; None stands for the head's own parameter."""
    if warmup or own.refresher.learns:
        return None
    posterior = own.tracker.posterior
    if posterior is None:
        return None
    mean, weight = posterior.mean, own.head.point().detach()
    # Averages and copies change the parameter, which holds the mean else, rounded to its dtype.
    return torch.where(follows(weight, mean), mean, weight.to(mean))


def follows(weight: Tensor, mean: Tensor) -> Tensor:
    """Whether a weight is that mean, rounded to its dtype; [] bool, on their device."""
    return (weight == mean.to(weight.dtype)).all()


def warmup_step(
    stages: Mapping[str, HeadStages], guard: Guard, batch: Batch, *, keep: bool
) -> Done:
    """Gradient of the summed losses, for backbone and heads.

    Args:
        stages: {name: what belongs to the head}.
        guard: validates the loss and its gradient.
        batch: the examples.
        keep: whether the result holds what passed between the stages.
    """
    h = batch.features.detach().requires_grad_()  # the backbone's graph is for the update alone
    losses = _losses(stages, h, batch.observed, warmup=True)
    valid = _check_losses(stages, guard, losses, batch.valid)
    total = torch.cat(list(losses.values())).sum()
    learned = _learned(own.head for own in stages.values())
    (update, *found), valid = _gradients(stages, guard, total, [h, *learned], valid)
    _accumulate(learned, found)
    kept = Stages(h.detach(), batch.observed) if keep else None
    info = StepInfo(
        bayesian=False, losses=reported_losses(losses, batch.observed, valid), stages=kept
    )
    return Done(info, torch.zeros_like(h) if update is None else update, valid)


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
        guard: validates the update, the losses and the heads' gradients.
        batch: the examples.
        scale: factor on the aggregated direction.
        memory: bytes above which temporaries are cut into chunks; None for never.
        keep: whether the result holds what passed between the stages.
    """
    features, observed = batch.features, batch.observed
    h = features.detach().to(reported_dtype(features))  # moments need float32's range at least
    with torch.no_grad():
        try:
            outcome = through_stages(stages, aggregation, h, observed, memory)
        except NumericalError:
            refuse_weights(stages)  # names the cause, if that is it
            raise
        update = (outcome.summary.direction * (scale / len(h))).to(features.dtype)
        valid = guard.check_finite("the update", [update], batch.valid, outcome.not_finite, stages)
    with torch.enable_grad():
        losses = _losses(stages, h, observed, warmup=False)
        valid = _check_losses(stages, guard, losses, valid)
        names = [name for name, own in stages.items() if _learns(own)]
        learned = _learned(stages[name].head for name in names)
        found: list[Tensor | None] = []
        if learned:
            total = torch.cat([losses[name] for name in names]).sum()
            found, valid = _gradients(stages, guard, total, learned, valid)
    if valid is not None:
        update = torch.where(valid, update, 0.0)
    _accumulate(learned, found)
    for name in stages.keys() - outcome.chunked:
        stages[name].refresher.accept(outcome.held[name], outcome.priors[name], valid)
    kept = None
    if keep:
        posteriors = {name: one.posterior for name, one in outcome.held.items()}
        kept = (outcome.gradient, Stages(h, observed, outcome.priors, posteriors))
    reported = reported_losses(losses, observed, valid)
    info = describe(reported, outcome.priors, outcome.held, outcome.summary, scale, kept)
    return Done(info, update, valid)


def check_losses(
    stages: Mapping[str, HeadStages], guard: Guard, batch: Batch, *, warmup: bool
) -> Batch:
    """Refuse a batch whose losses overflow at the weights that predict, or flag it."""
    losses = _losses(stages, batch.features.detach(), batch.observed, warmup=warmup)
    return replace(batch, valid=_check_losses(stages, guard, losses, batch.valid))


def _check_losses(
    stages: Mapping[str, HeadStages],
    guard: Guard,
    losses: Mapping[str, Tensor],
    valid: Tensor | None,
) -> Tensor | None:
    def suspects() -> list[str]:
        return [name for name, loss in losses.items() if not loss.isfinite().all()]

    return guard.check_finite("the loss", list(losses.values()), valid, suspects, stages)


def _gradients(
    stages: Mapping[str, HeadStages],
    guard: Guard,
    total: Tensor,
    inputs: list[Tensor],
    valid: Tensor | None,
) -> tuple[list[Tensor | None], Tensor | None]:
    """Gradients of the summed losses, all zero where the flag is not set, and the flag.

    A finite loss may have a gradient that is not.
    """
    with _unhooked(inputs):
        found = torch.autograd.grad(total, inputs, allow_unused=True)

    def suspects() -> list[str]:
        bad = {
            id(w)
            for w, g in zip(inputs, found, strict=True)
            if g is not None and not g.isfinite().all()
        }
        return [
            name for name, own in stages.items() if bad & {id(w) for w in own.head.parameters()}
        ]

    there = [gradient for gradient in found if gradient is not None]
    valid = guard.check_finite("the loss's gradient", there, valid, suspects, stages)
    if valid is None:
        return list(found), None
    return [None if g is None else torch.where(valid, g, 0.0) for g in found], valid


def _learned(heads: Iterable[Head]) -> list[Tensor]:
    """Parameters that want a gradient, each once though heads may share it."""
    weights = (weight for head in heads for weight in head.parameters() if weight.requires_grad)
    return list(dict.fromkeys(weights))


@contextmanager
def _unhooked(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Hooks of users run once, when the gradient is accumulated, and not when it is looked at."""
    kept = [(tensor, tensor._backward_hooks) for tensor in tensors if tensor._backward_hooks]
    for tensor, _ in kept:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, hooks in kept:
            tensor._backward_hooks = hooks


def _accumulate(weights: list[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add to `.grad` as autograd does, with all hooks on the weights."""
    pairs = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
    if pairs:
        torch.autograd.backward([w for w, _ in pairs], [g for _, g in pairs])


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
        losses[name] = target.mean(loss, none=0.0).to(reported_dtype(features))
    return losses
