"""Handing a posterior to ArviZ."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, fitting
from bayesagg_pyro._settings import integers
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Empirical, Posterior
from bayesagg_pyro.targets import RawTargets, Targets


def to_inference_data(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: RawTargets,
    *,
    draws: int = 1000,
    generator: torch.Generator | None = None,
) -> Any:
    """A posterior as ArviZ InferenceData, with the log-likelihood of every observed target.

    The group `posterior` holds `<name>.weight` [chain, draw, task, weight], with the chains of a
    sampler kept apart; `log_likelihood` and `observed_data` hold `<name>.targets` [.., observation]
    for the observed targets, example by example. `arviz.loo` and `arviz.compare` work on it.

    Args:
        head: the head.
        posterior: over its weights.
        features: [N, d].
        targets: [N, tasks], or (values, mask).
        draws: how many to draw of a posterior that does not consist of samples.
        generator: randomness for these.

    Returns:
        `arviz.InferenceData`, or the `DataTree` of ArviZ 1.

    Raises:
        ImportError: without ArviZ; install bayesagg_pyro[diagnostics].
        SettingError: if no target is observed.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            "to_inference_data needs ArviZ: pip install 'bayesagg_pyro[diagnostics]'"
        ) from error
    integers(2, draws=draws)
    observed = head.parse_targets(targets, len(features))
    head.check_weights(posterior, "posterior")
    if isinstance(posterior, Empirical):
        chains, weight = int(getattr(posterior, "chains", 1)), posterior.samples
    else:
        chains, weight = 1, posterior.sample((draws,), generator=generator)
    factor = observed.factor(weight.dtype)
    seen = torch.ones_like(observed.values, dtype=torch.bool) if factor is None else factor > 0
    if not seen.any():
        raise SettingError(
            f"head {head.site!r}: no target is observed, so nothing has a likelihood"
        )
    log_likelihood = _log_likelihood(head, weight, features, observed)[:, seen]
    site = f"{head.site}.weight", f"{head.site}.targets"
    groups: dict[str, Any] = {
        "posterior": {site[0]: _array(weight, chains)},
        "log_likelihood": {site[1]: _array(log_likelihood, chains)},
        "observed_data": {site[1]: observed.values[seen].cpu().numpy()},
    }
    axes: dict[str, Any] = {"dims": {site[0]: ["task", "weight"], site[1]: ["observation"]}}
    if "posterior" in inspect.signature(arviz.from_dict).parameters:  # before ArviZ 1
        return arviz.from_dict(**groups, **axes)
    return arviz.from_dict(groups, **axes)


@torch.no_grad()
def _log_likelihood(head: Head, weight: Tensor, features: Tensor, observed: Targets) -> Tensor:
    """Log-likelihood of each draw, example and task, [S, N, tasks]."""
    features = features.detach().to(weight.dtype)
    parts = [
        -head.negative_log_probs(features, observed, part)
        for part in weight.split(fitting(observed.values.numel(), CACHE))
    ]
    found = torch.cat(parts)
    return found if observed.weight is None else found * observed.weight.to(found.dtype)


def _array(values: Tensor, chains: int) -> Any:
    return values.detach().unflatten(0, (chains, -1)).cpu().numpy()
