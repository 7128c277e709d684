"""Large batches, of whose variance only the average is wanted: a random share of them serves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.gradients._derived import weighted
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._error import Moments, repeated
from bayesagg_pyro.gradients._samples import drawn_gradients
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

if TYPE_CHECKING:
    from bayesagg_pyro.gradients._conditional import Conditional


def of_some(
    estimator: Conditional,
    count: int,
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    generator: torch.Generator | None,
) -> GradientDistribution | None:
    """Each example's mean, and the average variance of so many in place of its own.

    Returns:
        None where that would not pay: for small batches, and for several tasks with missing targets
        (a share might hold none of one).
    """
    batch, factor = len(features), targets.factor(torch.float32)
    if batch <= 2 * count or (head.tasks > 1 and factor is not None):
        return None
    mean = estimator.mean(head, posterior, features, targets, generator)
    own = _some(batch, count, factor, features.device, generator)
    some = targets.examples(own)
    part = estimator.estimate(head, posterior, features[own], some, generator)
    observed = None if targets.mask is None else targets.mask.mT

    def clean(values: Tensor) -> Tensor:
        seen = values if observed is None else torch.where(observed[..., None], values, 0.0)
        return seen.to(features.dtype)

    whole = GradientDistribution(
        clean(mean),
        part.variance[:, :1].expand(mean.shape),  # of the right dtype and shape, for weights
        observed,
        sampler=partial(drawn_gradients, head, posterior, features, targets),
    )
    if targets.weight is not None and some.weight is not None:
        whole, part = weighted(whole, targets.weight), weighted(part, some.weight)
    average, error = _average(part)

    def stated() -> MomentError:
        def again(generator: torch.Generator) -> Moments:
            found = estimator.mean(head, posterior, features, targets, generator)
            return Moments(found, found)

        sampled = clean(repeated(again, features.device).mean)
        return MomentError(sampled, error.expand_as(sampled))

    return replace(whole, variance=average.expand_as(whole.mean), error=stated)


def _some(
    batch: int,
    count: int,
    factor: Tensor | None,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    """Indices of so many examples, those that count before others."""
    source = None if generator is None else generator.device
    score = torch.rand(batch, generator=generator, device=source).to(device)
    if factor is not None:
        score = torch.where(factor[:, 0] > 0, score, score - 1)
    return score.topk(count).indices


def _average(part: GradientDistribution) -> tuple[Tensor, Tensor]:
    """The average variance over the examples that count, [tasks, 1, d], and its standard error."""
    variance = part.variance.double()
    seen = torch.ones_like(variance[..., :1])
    if part.observed is not None:
        seen = part.observed[..., None].to(variance.dtype)
    count = seen.sum(1, keepdim=True).clamp(min=1)
    average = (variance * seen).sum(1, keepdim=True) / count
    scatter = ((variance - average).square() * seen).sum(1, keepdim=True)
    error = (scatter / (count - 1).clamp(min=1) / count).sqrt()
    return average.to(part.variance.dtype), error.to(part.variance.dtype)
