"""The noise of predictions where a Gaussian head has none given: generalised cross-validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._optimise import likeliest_noise
from bayesagg_pyro._pieces import BLOCK, fitting, slices
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference._normal_equations import GAUSSIAN
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets

_Kind = TypeVar("_Kind", bound=Posterior)


def cross_validated(
    rest: Tensor, used: Tensor, count: Tensor, square: Tensor, guess: Tensor, share: float = 1.0
) -> Tensor:
    """τ for which predictions are as wide as generalised cross-validation finds them, [tasks].

    τ² (1 + v) = N ‖y − Hm‖² / (N − p)², with p = tr(S HᵀH) / T effective weights, for τ = 1
    (Golub, Heath and Wahba, 1979, https://doi.org/10.1080/00401706.1979.10489751), T being the
    temperature; v = p T / N is the mean of hᵀSh. Sums of squares cancel, so not below 1e-6 of the
    targets' root mean square. Few residuals are no estimate: it is the mode under log τ ~ N(log of
    the guess, 1) and N − p of them.

    Args:
        rest: ‖y − Hm‖², [tasks].
        used: p, [tasks].
        count: N, [tasks].
        square: ‖y‖², [tasks].
        guess: [] or [tasks].
        share: 1/T, by which all sums but p are multiplied.
    """
    rest, width = rest.maximum(1e-12 * square) / share, 1 + used / count
    count = count / share
    left = (count - used).clamp(min=0)
    found = count * (rest.sqrt() / left).square() / width
    known = (left > 1e-9 * count) & (square > 0)
    return torch.where(known, likeliest_noise(found.nan_to_num().sqrt(), left, guess), guess)


@torch.no_grad()
def with_noise(
    head: Head, posterior: _Kind, examples: Iterable[tuple[Tensor, Targets]], share: float = 1.0
) -> _Kind:
    """The posterior with that noise in its `info`; as it is where there is no noise to find.

    Args:
        head: whose posterior it is.
        posterior: of these examples.
        examples: features [B, d] and targets [B, tasks].
        share: of each example's weight that a temperature left, see `cross_validated`.
    """
    if not (
        isinstance(head, Gaussian)
        and head.noise_source == "estimated"
        and head.is_still(Gaussian, *GAUSSIAN)
        and isinstance(posterior, GaussianFamily | Empirical)
    ):
        return posterior
    device = head.weight.device
    known: GaussianFamily | Empirical = posterior.to(device, linalg.head_dtype(device))
    draws = len(known.samples) if isinstance(known, Empirical) else 1
    size = fitting(draws * max(head.tasks, head.weight_size), BLOCK)
    rest, used, count, square = known.mean.new_zeros(4, head.tasks)
    for features, targets in examples:
        for rows in slices(len(features), size):
            design = head.design_matrix(features[rows])
            mean, some = design @ known.mean.mT, targets.examples(rows)
            if isinstance(known, Empirical):
                variance = (design @ known.samples.mT).var(0)
            else:
                variance = known.project(design).variance.mT.expand_as(mean)
            values, factor = some.values.to(mean), some.factor(mean.dtype)
            factor = torch.ones_like(mean) if factor is None else factor
            rest += (factor * (values - mean).square()).sum(0)
            used += (factor * variance).sum(0)
            square += (factor * values.square()).sum(0)
            count += factor.sum(0)
    scale = head.noise_scale.to(used)
    found = cross_validated(rest, used / scale.square(), count, square, scale, share)
    made: Any = posterior.with_info(noise_scale=found.to(posterior.mean))
    return made  # type: ignore[no-any-return]
