"""What one step of the engine did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from bayesagg_pyro.aggregation import Aggregated
from bayesagg_pyro.aggregation._several import as_joint
from bayesagg_pyro.engine.batch import Batch, as_one
from bayesagg_pyro.engine.slot import HeadStep
from bayesagg_pyro.gradients import GradientDistribution, block_diag
from bayesagg_pyro.gradients._derived import widened
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets


@dataclass(frozen=True)
class Stages:
    """What the stages of one step returned.

    Attributes:
        features: [B, d], detached: the rows of all groups of heads one after the other, without
            padding where values were looked at; narrower ones end in zeros.
        targets: {name: parsed targets} of these rows.
        priors: {name: prior}; empty in the warm-up.
        posteriors: {name: posterior}; empty in the warm-up.
        rows: {name: which of the rows the head reads}; empty if all do all.
    """

    features: Tensor
    targets: Mapping[str, Targets]
    priors: Mapping[str, Posterior] = field(default_factory=dict)
    posteriors: Mapping[str, Posterior] = field(default_factory=dict)
    rows: Mapping[str, slice] = field(default_factory=dict)


@dataclass(frozen=True)
class StepInfo:
    """What the last `backward` did. Tensors stay on the device; reading one may synchronise.

    Attributes:
        bayesian: False in the warm-up, whose update is the gradient of the summed losses.
        losses: {name: [tasks]}, as returned by `backward`.
        weights: [tasks], mean weight α of each task over the examples that have its target and
            over dimensions, heads in order; 0 for a task without any in this batch; None in the
            warm-up and for methods without weights.
        effective_tasks: [], mean of (Σα)² / Σα², see `aggregation.effective_tasks`; None as above.
        observed_tasks: [], how many tasks have a target in this batch, which uniform weights make
            `effective_tasks` equal to; None as above.
        jitter: {name: [tasks or 1]}, relative jitter that the posteriors took (0: none).
        condition: {name: [tasks or 1]}, lower bounds on the condition of their precisions.
        inferred: {name: whether this step inferred a posterior}; else it used an earlier one, or
            none was read.
        left_out: {name: [tasks] bool}, whether the batch was left out of each task's prior; heads
            whose policy leaves batches out only.
        update_factor: between the aggregated direction and the update of the features' gradient,
            before the division by the batch size.
        gradients: the joint gradient distribution, which is 0 by features that a head lacks, and
        aggregated: the direction with all its weights, and
        stages: what passed between the stages, if `keep_gradients` was set; else None.
    """

    bayesian: bool
    losses: dict[str, Tensor]
    weights: Tensor | None = None
    effective_tasks: Tensor | None = None
    observed_tasks: Tensor | None = None
    jitter: dict[str, Tensor] = field(default_factory=dict)
    condition: dict[str, Tensor] = field(default_factory=dict)
    inferred: dict[str, bool] = field(default_factory=dict)
    left_out: dict[str, Tensor] = field(default_factory=dict)
    update_factor: float = 1.0
    gradients: GradientDistribution | None = field(default=None, repr=False)
    aggregated: Aggregated | None = field(default=None, repr=False)
    stages: Stages | None = field(default=None, repr=False)

    def light(self) -> StepInfo:
        """The same without what only `keep_gradients` keeps."""
        return replace(self, gradients=None, aggregated=None, stages=None)


def keeping(
    info: StepInfo,
    batch: Batch,
    heads: Mapping[str, HeadStep],
    grads: Sequence[GradientDistribution],
    results: Sequence[Aggregated],
) -> StepInfo:
    """The info with what passed between the stages, the rows of all groups one after the other."""
    grad, result = grads[0], results[0]
    if len(grads) > 1:
        wide = max(own.mean.shape[2] for own in grads)
        grads = [widened(own, wide) for own in grads]
        grad = block_diag(grads, {n: one.slot.head.tasks for n, one in heads.items()})
        result = as_joint(results, grads, grad)
    features, targets, rows = as_one(batch, {n: one.slot.head for n, one in heads.items()})
    priors = {name: one.prior for name, one in heads.items()}
    posteriors = {name: one.posterior for name, one in heads.items()}
    stages = Stages(features, targets, priors, posteriors, rows)
    return replace(info, gradients=grad, aggregated=result, stages=stages)


class Observer(Protocol):
    """What `BayesAgg.observer` is told about training, such as a recorder."""

    def wants(self) -> bool:
        """Whether the next training step is to be shown with everything kept; changes nothing."""

    def passed(self, info: StepInfo) -> None:
        """Told of every training step; `info.stages` is there if it was wanted.

        Before the backbone's gradient is added: an error here is one of a step that is not taken.
        """
