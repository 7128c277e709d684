"""The report's sections about a step and about training."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.diagnostics import _aggregation, _diagonal, _features, _gradients
from bayesagg_pyro.diagnostics._lines import read
from bayesagg_pyro.diagnostics._report.page import Section
from bayesagg_pyro.diagnostics._report.plot_record import plot_record
from bayesagg_pyro.diagnostics._report.plot_step import (
    plot_aggregation,
    plot_features,
    plot_gradients,
)
from bayesagg_pyro.diagnostics._thresholds import Check, judge, owned
from bayesagg_pyro.errors import NumericalError, SettingError
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = [
    "aggregation_section",
    "feature_section",
    "gradient_section",
    "training_section",
]


def gradient_section(
    names: Sequence[str],
    grad: GradientDistribution,
    few: GradientDistribution,
    draws: int,
    generator: torch.Generator,
) -> Section:
    """Signal, shape and moments of gradients, and what the diagonal drops."""
    noise = _gradients.signal_to_noise(grad)
    checks = noise.checks()
    notes = []
    shape = sampled = None
    if few.sampler is not None:
        shape = _gradients.normality(few, draws=draws, generator=generator)
        sampled = _gradients.moments(few, draws=draws, generator=generator)
        checks += shape.checks() + sampled.checks()
    else:
        notes.append("This estimator cannot be sampled, so shapes and sampled moments are missing.")
    if few.covariance is not None:
        try:
            checks += _diagonal.diagonal_against_full(few).checks()
        except NumericalError as error:  # a posterior without spread, or from few samples
            notes.append(f"No comparison with the full covariance: {error}")
    text = [
        "Uncertain weights make the gradient of each loss with respect to the features a "
        "distribution. Signal to noise is the size of its mean against its standard deviation: far "
        "below 1, the posterior does not know which way to go. The middle panel shows how far each "
        "gradient is from the Gaussian that mean and variance stand for (0, 0). The last holds the "
        "stated moments against sampled ones, which should scatter like the grey curve.",
        "The diagonal rule ignores correlations between dimensions; the cosine to the direction "
        "with full covariances says what that costs.",
    ]
    return Section(
        "Gradients",
        text,
        [plot_gradients(names, noise, shape, sampled)],
        [_named(check, names) for check in checks],
        notes,
    )


def aggregation_section(
    names: Sequence[str],
    aggregation: Aggregation,
    grad: GradientDistribution,
    heads: Mapping[str, Head],
    posteriors: Mapping[str, Posterior],
    features: Tensor,
    observed: Mapping[str, Targets],
) -> Section:
    """Who decides the update, and what it does to whom."""
    result = aggregation.aggregate(grad)
    done, pairs = _aggregation.update(grad, result), _aggregation.conflicts(grad)
    weights = None if result.weights is None else _aggregation.weights(grad, result)
    checks = [] if weights is None else weights.checks()
    checks += done.checks() + (pairs.checks() if grad.tasks > 1 else [])
    checks = [_named(check, names) for check in checks]
    for name, head in heads.items():
        pull = _aggregation.uncertainty_pull(head, posteriors[name], features, observed[name])
        if pull is not None:
            seen = ~pull.isnan()
            if seen.any():
                check = judge("uncertainty_pull", pull, ("task",), seen=seen)
                checks.append(owned(check, name, head.tasks))
    effective = (
        ""
        if weights is None
        else (
            f" The effective number of tasks is {float(weights.effective_tasks):.2f} of "
            f"{weights.observed_tasks} with a target: near that number the weighting is in effect "
            "off, near 1 one "
            "task decides."
        )
    )
    text = [
        "Who decides the update of the shared network? Weights α say how much each task's gradient "
        "counts, shares how much of the resulting direction is owed to it (they sum to 1)."
        + effective,
        "The third panel says how fast each task's loss falls along the direction, from −1 (as "
        "fast as any step of this length could) over 0 to a rise, beside the plain mean of "
        "gradients. The matrix shows cosines between the tasks' mean gradients; percentages are "
        "examples on which two tasks disagree beyond twice their uncertainty.",
    ]
    return Section("Aggregation", text, [plot_aggregation(names, weights, done, pairs)], checks)


def feature_section(features: Tensor) -> Section:
    """Live units and rank."""
    found = _features.spectrum(features)
    text = [
        "What the heads get to see. Eigenvalues that fall steeply mean that features are nearly "
        "copies of each other; units that do not vary over the batch are dead. Where features "
        "carry no information, posteriors stay as wide as the prior, and the term 2 S h pulls "
        "features to zero.",
    ]
    return Section("Features", text, [plot_features(found, features)], found.checks())


def training_section(record: str | os.PathLike[str]) -> Section:
    """Curves from a recorder."""
    rows = read(record)
    figures, notes = [], []
    themes: tuple[Literal["training", "features", "gradients", "aggregation"], ...] = (
        "training",
        "features",
        "gradients",
        "aggregation",
    )
    for theme in themes:
        try:
            figures.append(plot_record(rows, theme))
        except SettingError as error:
            notes.append(str(error))
    text = [
        "How training went, from the recorder; the warm-up is shaded, thresholds are dashed. Look "
        "for units that die, a rank that shrinks, a stale prior that costs loss, shares below "
        "zero, and for first-order changes above zero: there the step raises a task's loss.",
    ]
    return Section("Training", text, figures, (), notes)


def _named(check: Check, names: Sequence[str]) -> Check:
    """Say the tasks' names for their numbers."""
    where = re.sub(r"task (\d+)", lambda match: names[int(match.group(1))], check.where)
    return replace(check, where=where)
