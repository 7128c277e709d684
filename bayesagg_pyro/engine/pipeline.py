"""One step through the stages: posterior, gradient distribution, direction; in chunks if needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from bayesagg_pyro import gradients
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.engine.memory import ByTasks, Summary, aggregate, examples_at_once
from bayesagg_pyro.engine.refresh import Held, Refresher
from bayesagg_pyro.gradients import Estimator, GradientDistribution, loss_scale
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors import Tracker
from bayesagg_pyro.targets import Targets

__all__ = ["HeadStages", "Outcome", "through_stages"]


@dataclass(frozen=True)
class HeadStages:
    """What belongs to one head in every stage.

    Attributes:
        head: its tasks.
        refresher: infers its posterior when that is due.
        tracker: its prior over time.
        estimator: of its gradients' moments; None picks by type.
    """

    head: Head
    refresher: Refresher
    tracker: Tracker
    estimator: Estimator | None


@dataclass(frozen=True)
class Outcome:
    """What a step came to.

    Attributes:
        summary: direction and weights.
        held: {name: posterior in use}; of a head that went through in chunks its marginals.
        priors: {name: prior of this step}.
        gradient: the joint gradient distribution, if all examples were handled at once.
        chunked: names of heads that went through in chunks.
    """

    summary: Summary
    held: dict[str, Held]
    priors: dict[str, Posterior]
    gradient: GradientDistribution | None
    chunked: frozenset[str]

    def not_finite(self) -> list[str]:
        """Names of heads whose posterior mean or gradient moments are not finite."""
        found = [name for name, one in self.held.items() if not one.posterior.mean.isfinite().all()]
        if self.gradient is not None:
            moments = self.gradient.mean, self.gradient.variance
            found += [
                name
                for name, rows in self.gradient.groups.items()
                if name not in found and not all(m[rows].isfinite().all() for m in moments)
            ]
        return found


def through_stages(
    stages: Mapping[str, HeadStages],
    aggregation: Aggregation,
    features: Tensor,
    observed: Mapping[str, Targets],
    memory: int | None,
) -> Outcome:
    """Posterior, moments and direction of a batch; changes nothing.

    Args:
        stages: {name: what belongs to the head}.
        aggregation: of the joint distribution.
        features: [B, d], detached.
        observed: {name: parsed targets}.
        memory: bytes above which temporaries are cut into chunks; None for never.
    """
    held: dict[str, Held] = {}
    priors: dict[str, Posterior] = {}
    whole: dict[str, GradientDistribution] = {}
    for name, own in stages.items():
        target, generator = observed[name], own.refresher.generator
        priors[name] = own.tracker.prior_for(features, target)
        pieces = None if memory is None else ByTasks.needed(own.head, own.refresher.scheme, memory)
        if pieces is None:
            held[name] = own.refresher.step(features, target, priors[name], own.tracker.posterior)
        else:
            whole[name], marginals = pieces.moments(
                features, target, priors[name], own.estimator, generator
            )
            held[name] = Held(marginals)

    def moments(rows: slice) -> GradientDistribution:
        part, parts = features[rows], {}
        for name, own in stages.items():
            if name in whole:
                parts[name] = whole[name].examples(rows)
                continue
            target = observed[name]
            grad = gradients.distribution(
                own.head,
                held[name].posterior,
                part,
                target if len(part) == len(features) else target.examples(rows),
                estimator=own.estimator,
                generator=own.refresher.generator,
            )
            if target.mask is not None:
                grad = replace(grad, scale=loss_scale(target.mask.mT, grad.mean.dtype))
            parts[name] = grad
        return gradients.cat(parts)

    batch, tasks = len(features), sum(own.head.tasks for own in stages.values())
    size = batch
    if memory is not None:
        size = examples_at_once(aggregation, tasks, batch, features, memory)
    summary, gradient = aggregate(aggregation, moments, batch, size)
    return Outcome(summary, held, priors, gradient, frozenset(whole))
