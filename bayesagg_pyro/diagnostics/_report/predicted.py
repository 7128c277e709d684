"""The report's section about predictions, whatever the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics._predictions import Epistemic, Pit, epistemic_against_error, pit
from bayesagg_pyro.diagnostics._reliability import Reliability, reliability
from bayesagg_pyro.diagnostics._report.page import Section
from bayesagg_pyro.diagnostics._report.plot_posterior import plot_predictions
from bayesagg_pyro.diagnostics._thresholds import Check, owned
from bayesagg_pyro.heads import FromPyro, Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.predictive._gaussian import drawn_weights
from bayesagg_pyro.targets import Targets

#: Draws of the weights behind an average; its error is an eighth of their spread at most.
_DRAWS = 64


def predictions_section(
    heads: Mapping[str, Head],
    posteriors: Mapping[str, Posterior],
    features: Tensor,
    targets: Mapping[str, Targets],
    *,
    on_training: bool,
    generator: torch.Generator,
) -> Section:
    """Reliability of classification, PIT of regression, uncertainty against error of both."""
    found: tuple[dict[str, Reliability], dict[str, Pit], dict[str, Epistemic]] = ({}, {}, {})
    checks: list[Check] = []
    notes = []
    if on_training:
        notes.append("Judged on the training batch, which flatters: give test=(features, targets).")
    for name, head in heads.items():
        values = targets[name].values
        factor = targets[name].factor(torch.float64)
        seen = torch.ones_like(values, dtype=torch.bool) if factor is None else factor > 0
        predictive = head.predictive(features, posteriors[name])
        if not seen.any():
            notes.append(f"{name}: no target is observed, so there is nothing to judge.")
            continue
        if head.target_kind == "class" or head.target_kind == "binary":
            found[0][name] = reliability(predictive.probs, values, observed=seen)
        elif _has_cdf(predictive):
            found[1][name] = pit(predictive, values.to(predictive.mean.dtype), observed=seen)
        if head.target_kind != "class" and int(seen.sum()) >= 20:
            miss = values - predictive.mean
            spread = _spread(head, posteriors[name], features, generator).expand_as(miss)
            seen = seen & ~miss.isnan() & ~spread.isnan()  # Cauchy noise has no mean
            if int(seen.sum()) >= 20:
                found[2][name] = epistemic_against_error(
                    spread, miss.to(spread.dtype), observed=seen
                )
    for name in heads:
        # Heads share the chance of a false alarm of a kind.
        results = [(kind[name], len(kind)) for kind in found if name in kind]
        checks += [
            owned(check, name, heads[name].tasks)
            for result, n in results
            for check in result.checks(n)
        ]
    text = [
        "Do predictions know what they know? Reliability holds stated probabilities against "
        "frequencies: below the diagonal is overconfident. PIT values of calibrated predictions of "
        "numbers are flat: a ∪ shape is overconfident, a ∩ shape too cautious. The last panel "
        "groups examples by the spread that uncertain weights give to the prediction (without the "
        "noise of the targets): errors should grow with it."
    ]
    figures = [plot_predictions(*found)] if any(found) else []
    return Section("Predictions", text, figures, checks, notes)


def _has_cdf(predictive: Any) -> bool:
    try:
        predictive.cdf(predictive.mean)
    except NotImplementedError:
        return False
    return True


def _spread(
    head: Head, posterior: Posterior, features: Tensor, generator: torch.Generator
) -> Tensor:
    """Standard deviation of E[y | h, w] over weights, [B, tasks], in the head's units."""
    weight, _ = drawn_weights(head, posterior, _DRAWS, generator)
    outputs = head(features.detach().to(weight.dtype), weight)
    # A Pyro model's outputs are the means themselves.
    mean: Tensor = outputs if isinstance(head, FromPyro) else head.likelihood(outputs).mean
    return mean.double().std(0)
