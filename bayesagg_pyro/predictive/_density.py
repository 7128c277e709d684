"""How well a posterior predicted: the log-density of each target before it was seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets


def log_predictive_density(
    head: Head, posterior: Posterior, features: Tensor, targets: RawTargets, **options: Any
) -> Tensor:
    """log p(y | h, posterior) for each example and task; its negative is the usual test NLL.

    Exact or by quadrature where `head.predictive` is, else over its draws, and differentiable in
    the features. Weights of examples and classes temper inference and are no part of a density:
    they are left out.

    Args:
        head: the head.
        posterior: over its weights.
        features: [B, d].
        targets: [B, tasks], or (values, mask).
        options: of `head.predictive`.

    Returns:
        [B, tasks], in the precision of head algebra, 0 where a target is not observed; average with
        `head.parse_targets(targets, B).mean(...)`.

    Raises:
        ShapeError, DtypeError, NonFiniteError, SettingError: for bad features or targets.
    """
    head.check_features(features)
    observed = head.parse_targets(targets, len(features))
    values = observed.values
    if head.target_kind != "class":  # a head's own predictive need not take every dtype
        values = values.to(linalg.head_dtype(features.device))
    density: Tensor = head.predictive(features, posterior, **options).log_prob(values)
    if isinstance(head, Standardising) and head.units is not None:
        density = density - head.units.scale.log()
    return density if observed.mask is None else torch.where(observed.mask, density, 0.0)
