"""Handing a posterior to ArviZ."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro._settings import integers
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.posteriors import Empirical, Posterior
from bayesagg_pyro.predictive._distribution import log_likelihood
from bayesagg_pyro.predictive._gaussian import drawn_weights
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

    Targets and densities are in the targets' units, weights in those of the head. The noise is that
    of predictions. Weights of examples and classes are no part of a density and left out.

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
    stored = isinstance(posterior, Empirical)
    chains = int(getattr(posterior, "chains", 1))
    weight, noise = drawn_weights(head, posterior, None if stored else draws, generator)
    factor = observed.factor(weight.dtype)
    seen = torch.ones_like(observed.values, dtype=torch.bool) if factor is None else factor > 0
    if not seen.any():
        raise SettingError(
            f"head {head.site!r}: no target is observed, so nothing has a likelihood"
        )
    log_likelihoods = _log_likelihoods(head, weight, noise, features, observed)[:, seen]
    site = f"{head.site}.weight", f"{head.site}.targets"
    groups: dict[str, Any] = {
        "posterior": {site[0]: _array(weight, chains)},
        "log_likelihood": {site[1]: _array(log_likelihoods, chains)},
        "observed_data": {site[1]: head.in_target_units(observed.values)[seen].cpu().numpy()},
    }
    axes: dict[str, Any] = {"dims": {site[0]: ["task", "weight"], site[1]: ["observation"]}}
    if "posterior" in inspect.signature(arviz.from_dict).parameters:  # before ArviZ 1
        return arviz.from_dict(**groups, **axes)
    return arviz.from_dict(groups, **axes)


@torch.no_grad()
def _log_likelihoods(
    head: Head, weight: Tensor, noise: Tensor | None, features: Tensor, observed: Targets
) -> Tensor:
    """Log-densities of the targets for each draw, example and task, [S, N, tasks]."""
    features = features.detach().to(weight.dtype)
    found = []
    for rows in slices(len(weight), fitting(observed.values.numel(), CACHE)):
        if "negative_log_probs" in head.changes(Head, "pointwise"):  # as of Pyro models
            found.append(-head.negative_log_probs(features, observed, weight[rows]))
            continue
        law, outputs = head, head(features, weight[rows])
        if isinstance(head, Gaussian) and noise is not None:
            law = head.with_noise_scale(noise if noise.ndim == 1 else noise[rows, None])
        found.append(log_likelihood(law, outputs, like(observed.values, outputs)))
    density = torch.cat(found)
    if isinstance(head, Standardising) and head.units is not None:
        density = density - head.units.scale.log()
    return density


def _array(values: Tensor, chains: int) -> Any:
    return values.detach().unflatten(0, (chains, -1)).cpu().numpy()
