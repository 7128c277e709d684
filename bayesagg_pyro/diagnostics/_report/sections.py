"""The report's sections about a step and about training."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.diagnostics import _aggregation, _features, _gradients
from bayesagg_pyro.diagnostics._importance import Importance, has_density, importance
from bayesagg_pyro.diagnostics._lines import read
from bayesagg_pyro.diagnostics._posteriors import (
    AgainstReference,
    against_reference,
    conditioning,
    convergence,
)
from bayesagg_pyro.diagnostics._report.page import Section
from bayesagg_pyro.diagnostics._report.plot_posterior import plot_posterior
from bayesagg_pyro.diagnostics._report.plot_record import THEMES, plot_record
from bayesagg_pyro.diagnostics._report.plot_step import (
    plot_aggregation,
    plot_features,
    plot_gradients,
)
from bayesagg_pyro.diagnostics._row import task_names
from bayesagg_pyro.diagnostics._thresholds import Check, judge_known, owned
from bayesagg_pyro.errors import NumericalError, SettingError
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Empirical, Posterior
from bayesagg_pyro.targets import Targets


@dataclass(frozen=True)
class Step:
    """What a step on a batch would do, as far as the direction; maps are by head.

    Attributes:
        heads: of all tasks.
        features: [B, d].
        targets: [B, tasks] each.
        priors: in force.
        posteriors: of the batch.
        grad: gradients of all tasks.
        few: likewise of the first examples, for what takes samples of each.
        draws: samples for k-hat and for the shape of gradients.
        generator: randomness.
    """

    heads: Mapping[str, Head]
    features: Tensor
    targets: Mapping[str, Targets]
    priors: Mapping[str, Posterior]
    posteriors: Mapping[str, Posterior]
    grad: GradientDistribution
    few: GradientDistribution
    draws: int
    generator: torch.Generator

    @property
    def names(self) -> list[str]:
        """Of the tasks, in the order of the gradients' rows."""
        return task_names(self.heads)

    def named(self, checks: list[Check]) -> list[Check]:
        """Checks that say the tasks' names for their numbers."""
        names = self.names

        def say(match: re.Match[str]) -> str:
            return names[int(match.group(1))]

        return [replace(c, where=re.sub(r"task (\d+)", say, c.where)) for c in checks]


def posterior_section(step: Step, against: Mapping[str, Posterior]) -> Section:
    """Numerical health, k-hat or convergence, and the comparison with a reference."""
    checks: list[Check] = []
    weighed: dict[str, Importance] = {}
    compared: dict[str, AgainstReference] = {}
    notes = []
    for name, head in step.heads.items():
        prior, posterior = step.priors[name], step.posteriors[name]
        found = conditioning(posterior).checks()
        spread = bool((posterior.variance > 0).all())
        if not spread:
            notes.append(f"{name}: a posterior without spread, so there is no k-hat.")
        if spread and has_density(posterior) and has_density(prior):
            data = prior, step.features, step.targets[name]
            weighed[name] = importance(
                head, posterior, *data, draws=step.draws, generator=step.generator
            )
            found += weighed[name].checks(len(step.heads))
        elif isinstance(posterior, Empirical):
            found += convergence(posterior).checks()
            notes.append(f"{name}: samples have no density, so there is no k-hat.")
        elif spread:
            notes.append(f"{name}: no densities that the likelihood goes with, so no k-hat.")
        if name in against:
            truth = against[name]
            if isinstance(truth, Empirical) and len(truth.samples) >= 8:
                found += [owned(check, "reference") for check in convergence(truth).checks()]
            compared[name] = against_reference(posterior, truth, generator=step.generator)
            found += compared[name].checks()
        checks += [owned(check, name, head.tasks) for check in found]
    if not against:
        notes.append("No reference was given: report(..., reference=inference.NUTS()) adds one.")
    text = [
        "Is the posterior over the heads' weights the one that prior, likelihood and batch imply? "
        "k-hat weighs draws from the approximation by the true (unnormalised) posterior: below 0.5 "
        "it is good, above 0.7 it misses part of the mass. Exact posteriors have weights that do "
        "not vary and a k-hat far below."
    ]
    if against:
        text.append(
            "Against the reference: z-scores say how far means are off in standard deviations, "
            "ratios of standard deviations say whether the posterior is too narrow (below 1: "
            "overconfident, its task gets too much weight) or too wide."
        )
    figures = [plot_posterior(weighed, compared or None)] if weighed else []
    return Section("Posteriors", text, figures, checks, notes)


def gradient_section(step: Step) -> Section:
    """Signal, shape and moments of gradients, and what the diagonal drops."""
    few = step.few
    noise = _gradients.signal_to_noise(step.grad)
    checks = noise.checks()
    notes = []
    shape = sampled = None
    if few.sampler is not None:
        shape = _gradients.normality(few, draws=step.draws, generator=step.generator)
        sampled = _gradients.moments(few, draws=step.draws, generator=step.generator)
        checks += shape.checks() + sampled.checks()
    else:
        notes.append("This estimator cannot be sampled, so shapes and sampled moments are missing.")
    if few.covariance is not None:
        try:
            checks += _aggregation.diagonal_against_full(few).checks()
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
    figures = [plot_gradients(step.names, noise, shape, sampled)]
    return Section("Gradients", text, figures, step.named(checks), notes)


def aggregation_section(step: Step, aggregation: Aggregation) -> Section:
    """Who decides the update, and what it does to whom."""
    grad, names = step.grad, step.names
    result = aggregation.aggregate(grad)
    done, pairs = _aggregation.update(grad, result), _aggregation.conflicts(grad)
    weights = None if result.weights is None else _aggregation.weights(grad, result)
    checks = [] if weights is None else weights.checks()
    checks = step.named(checks + done.checks() + pairs.checks())
    for name, head in step.heads.items():
        data = step.posteriors[name], step.features, step.targets[name]
        pull = _aggregation.uncertainty_pull(head, *data)
        if pull is not None:
            found = judge_known("uncertainty_pull", pull, ("task",))
            checks += [owned(check, name, head.tasks) for check in found]
    effective = ""
    if weights is not None:
        effective = (
            f" The effective number of tasks is {float(weights.effective_tasks):.2f} of "
            f"{weights.observed_tasks} with a target: near that number the weighting is in effect "
            "off, near 1 one task decides."
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
        "features to zero."
    ]
    return Section("Features", text, [plot_features(found, features)], found.checks())


def training_section(record: str | os.PathLike[str]) -> Section:
    """Curves from a recorder."""
    rows = read(record)
    figures, notes = [], []
    for theme in THEMES:
        try:
            figures.append(plot_record(rows, theme))
        except SettingError as error:
            notes.append(str(error))
    text = [
        "How training went, from the recorder; the warm-up is shaded, thresholds are dashed. Look "
        "for units that die, a rank that shrinks, a stale prior that costs loss, shares below "
        "zero, and for first-order changes above zero: there the step raises a task's loss."
    ]
    return Section("Training", text, figures, (), notes)
