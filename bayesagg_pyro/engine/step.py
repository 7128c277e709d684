"""The two kinds of step: of the warm-up, and Bayesian. Neither holds a formula.

Each changes what belongs to heads (gradients, posteriors held), and gives the updates of the
backbone's features, [B, d] for each group and in float32 at least, with what it reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.amp import GradScaler

from bayesagg_pyro.aggregation import Aggregated, Aggregation
from bayesagg_pyro.aggregation._aggregation import Weighing, WeightSums
from bayesagg_pyro.engine.batch import Batch, Group, as_one
from bayesagg_pyro.engine.info import Stages, StepInfo, keeping
from bayesagg_pyro.engine.memory import aggregate_by_examples, infer_by_tasks
from bayesagg_pyro.engine.slot import HeadStep, Slot
from bayesagg_pyro.engine.validation import refuse_weights, require_finite
from bayesagg_pyro.errors import NumericalError
from bayesagg_pyro.gradients import GradientDistribution, cat
from bayesagg_pyro.validity import Validity


def bayesian_step(
    slots: Collection[Slot],
    aggregation: Aggregation,
    batch: Batch,
    *,
    reduction: str,
    memory: int | None,
    keep: bool,
    hold: bool = True,
    scaler: GradScaler | None = None,
) -> tuple[list[Tensor], StepInfo]:
    """The aggregated direction, for the backbone; the losses' gradient, for heads that learn.

    Args:
        slots: what belongs to each head.
        aggregation: of the joint gradient distribution.
        batch: the examples.
        reduction: what the weights are to add up to, as for `BayesAgg`.
        memory: bytes above which temporaries are cut into chunks; None for never.
        keep: whether the info holds what passed between the stages.
        hold: whether later steps may use the posteriors.
        scaler: of all gradients.
    """
    factor = aggregation.scale_to(reduction, sum(slot.head.tasks for slot in slots))
    inner = batch.wide()
    heads: dict[str, HeadStep] = {}
    try:
        with torch.no_grad():
            for slot in slots:
                variance = keep or aggregation.reads_variance(slot.name)
                examples = inner.examples(slot.name)
                found = infer_by_tasks(slot, *examples, memory) if variance and memory else None
                heads[slot.name] = found or slot.infer(*examples, variance=variance)
            joint, cut = (aggregation, heads, batch.groups), None
            if memory and aggregation.per_example:
                cut = aggregate_by_examples(*joint, memory)
            grads, results, weights = cut or _aggregated(*joint, keep)
    except NumericalError:
        refuse_weights(slots)
        raise
    updates = []
    for group, result in zip(batch.groups, results, strict=True):
        update = result.direction * (factor / len(group.features))
        updates.append(update if scaler else update.to(group.features.dtype))
    require_finite(batch, slots, "the update", updates, partial(_not_finite, heads, grads))
    kept = (
        partial(keeping, batch=inner, heads=heads, grads=grads, results=results) if keep else None
    )
    del grads, results, result, update  # losses and their gradients take as much memory again
    with torch.enable_grad():
        losses = finite_losses(slots, inner, warmup=False)
        _descend(slots, batch, losses, scaler)
    info = _described(batch.reported(losses), heads, weights, factor)
    if kept is not None:
        info = kept(info)
    if hold:
        for one in heads.values():
            one.hold(batch.validity)
    return _delivered(updates, batch.validity, scaler), info


def _aggregated(
    aggregation: Aggregation,
    heads: Mapping[str, HeadStep],
    groups: Sequence[Group],
    keep: bool,
) -> tuple[list[GradientDistribution], list[Aggregated], Weighing | None]:
    """The joint gradient distribution of each group, its direction, and what the weights come to.

    The last is None for a method without weights.
    """
    # What is kept has the variance of each example also where an average would do.
    average = not (keep or aggregation.variance_per_example)
    grads = [cat({n: heads[n].gradient(None, average) for n in g.targets}) for g in groups]
    if len(grads) == 1:
        results = [aggregation.checked(grads[0])]
    else:
        tasks = {name: one.slot.head.tasks for name, one in heads.items()}
        results = aggregation.aggregate_each(grads, tasks)
    sums = []
    for grad, result in zip(grads, results, strict=True):
        if result.weights is None:
            return grads, results, None
        of_group = WeightSums.of(result.weights, grad.observed, grad.shape[1])
        sums.append((of_group, grad.groups))
    return grads, results, Weighing.of(sums, heads)


def warmup_step(
    slots: Collection[Slot], batch: Batch, *, keep: bool, scaler: GradScaler | None = None
) -> tuple[list[Tensor], StepInfo]:
    """Gradient of the summed losses, for backbone and heads; arguments as for `bayesian_step`."""
    inner = batch.wide() if scaler else batch
    inner = inner.mapped(lambda h: h.detach().requires_grad_())
    losses = finite_losses(slots, inner, warmup=True)
    leaves = [group.features for group in inner.groups]
    found = _descend(slots, batch, losses, scaler, *leaves)
    stages = None
    if keep:
        features, targets, rows = as_one(batch, {s.name: s.head for s in slots})
        stages = Stages(features, targets, rows=rows)
    info = StepInfo(bayesian=False, losses=batch.reported(losses), stages=stages)
    pairs = zip(leaves, found, strict=True)
    updates = [torch.zeros_like(h) if update is None else update for h, update in pairs]
    return _delivered(updates, batch.validity, scaler), info


def finite_losses(slots: Collection[Slot], batch: Batch, *, warmup: bool) -> dict[str, Tensor]:
    """Mean losses at the weights that predict, {name: [tasks]}; what overflows is refused."""
    losses = {}
    for slot in slots:
        losses[slot.name] = slot.losses(*batch.examples(slot.name), warmup=warmup)

    def suspects() -> list[str]:
        return [name for name, loss in losses.items() if not loss.isfinite().all()]

    require_finite(batch, slots, "the loss", list(losses.values()), suspects)
    return losses


def _descend(
    slots: Collection[Slot],
    batch: Batch,
    losses: Mapping[str, Tensor],
    scaler: GradScaler | None,
    *inputs: Tensor,
) -> list[Tensor | None]:
    """Add the gradient of the summed losses to the heads' `.grad`, scaled; give that of `inputs`.

    A finite loss may have a gradient that is not.
    """
    learned: dict[Tensor, None] = {}  # each once, though heads may share it
    taught = []
    for slot in slots:
        if inputs or slot.learns or slot.head.has_own_parameters:
            loss, size = losses[slot.name], slot.loss_size
            taught.append(loss if size is None else loss / size)
            for weight in slot.head.parameters():
                if weight.requires_grad:
                    learned[weight] = None
    wanted = [*inputs, *learned]
    if not wanted:
        return []
    there = _gradients(torch.cat(taught).sum(), wanted)

    def suspects() -> list[str]:
        bad = {id(w) for w, gradient in there.items() if not gradient.isfinite().all()}
        return [slot.name for slot in slots if bad & {id(w) for w in slot.head.parameters()}]

    require_finite(batch, slots, "the loss's gradient", list(there.values()), suspects)
    weights = [leaf for leaf in learned if leaf in there]
    if weights:  # as autograd does, with all hooks on the weights
        gradients = _delivered(map(there.__getitem__, weights), batch.validity, scaler)
        torch.autograd.backward(weights, gradients)
    return list(map(there.get, inputs))


def _gradients(total: Tensor, wanted: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Gradients of the total; users' hooks run when these are accumulated, and not here."""
    hooked = {}
    for tensor in wanted:
        if tensor._backward_hooks:
            hooked[tensor], tensor._backward_hooks = tensor._backward_hooks, None
    try:
        found = torch.autograd.grad(total, wanted, allow_unused=True)
    finally:
        for tensor, hooks in hooked.items():
            tensor._backward_hooks = hooks
    there = {}
    for tensor, gradient in zip(wanted, found, strict=True):
        if gradient is not None:
            there[tensor] = gradient
    return there


def _delivered(
    gradients: Iterable[Tensor], validity: Validity, scaler: GradScaler | None
) -> list[Tensor]:
    """Gradients, 0 of a bad batch; if they overflow by the scale, the scaler will notice."""
    found = []
    for gradient in gradients:
        if not validity.now:
            gradient = validity.keep(gradient, 0.0)
        found.append(gradient if scaler is None else scaler.scale(gradient))
    return found


def _described(
    losses: dict[str, Tensor],
    heads: Mapping[str, HeadStep],
    weights: Weighing | None,
    factor: float,
) -> StepInfo:
    """What a Bayesian step tells of itself.

    Args:
        losses: to report, {name: [tasks]}.
        heads: {name: what came of it}.
        weights: of the aggregation, if it has any.
        factor: see `StepInfo.update_factor`.
    """
    info = StepInfo(
        bayesian=True,
        losses=losses,
        update_factor=factor,
        **({} if weights is None else weights._asdict()),
    )
    for name, one in heads.items():
        posterior, prior = one.posterior.info, one.prior.info
        info.inferred[name] = one.age == 0 and one.made
        if posterior is not None:
            info.jitter[name], info.condition[name] = posterior.jitter, posterior.condition
        if prior is not None and prior.left_out is not None:
            info.left_out[name] = prior.left_out
    return info


def _not_finite(heads: Mapping[str, HeadStep], grads: Sequence[GradientDistribution]) -> list[str]:
    """Names of heads whose posterior mean or gradient moments are not finite."""
    found = [name for name, one in heads.items() if not one.posterior.mean.isfinite().all()]
    for grad in grads:
        found += [
            name
            for name, rows in grad.groups.items()
            if name not in found
            and not all(moment[rows].isfinite().all() for moment in (grad.mean, grad.variance))
        ]
    return found
