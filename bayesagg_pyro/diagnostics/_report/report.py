"""The report: every diagnostic of an engine on one page."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro import gradients
from bayesagg_pyro.diagnostics._chains import convergence
from bayesagg_pyro.diagnostics._conditioning import conditioning
from bayesagg_pyro.diagnostics._distance import AgainstReference, against_reference
from bayesagg_pyro.diagnostics._importance import Importance, importance
from bayesagg_pyro.diagnostics._report.page import Section, write_page
from bayesagg_pyro.diagnostics._report.plot_posterior import plot_posterior
from bayesagg_pyro.diagnostics._report.predicted import predictions_section
from bayesagg_pyro.diagnostics._report.sections import (
    aggregation_section,
    feature_section,
    gradient_section,
    training_section,
)
from bayesagg_pyro.diagnostics._row import task_names
from bayesagg_pyro.diagnostics._thresholds import Check, owned
from bayesagg_pyro.engine import BayesAgg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Empirical, Posterior
from bayesagg_pyro.targets import RawTargets, Targets

__all__ = ["report"]

#: Examples whose gradients are sampled: [draws, tasks, examples, d] is held at once.
_EXAMPLES = 16


@torch.no_grad()
def report(
    path: str | os.PathLike[str],
    mtl: BayesAgg,
    features: Tensor,
    targets: Mapping[str, RawTargets],
    *,
    test: tuple[Tensor, Mapping[str, RawTargets]] | None = None,
    reference: Scheme | None = None,
    record: str | os.PathLike[str] | None = None,
    draws: int = 2000,
    title: str = "Diagnostics",
    generator: torch.Generator | None = None,
) -> list[Check]:
    """Write one self-contained HTML page about what a step on this batch would do.

    The page shows posteriors, gradients, update, features, predictions and, from a recorder's file,
    training; each with what it means in plain words and the threshold that people use. The engine
    is not changed.

    Args:
        path: of the page.
        mtl: an engine with priors.
        features: of a batch of training examples, [B, d].
        targets: {name: [B, tasks]}.
        test: features and targets to judge predictions on; the batch if None, which flatters.
        reference: a scheme to hold the posteriors against, such as `inference.NUTS()`.
        record: a recorder's file.
        draws: samples for k-hat and for the shape of gradients.
        title: of the page.
        generator: randomness; a new one with a fixed seed if None.

    Returns:
        All checks, in the page's order. An alarm is a value past its threshold.

    Raises:
        StateError: if the engine has no prior yet, or its posteriors are of other weights.
        SettingError: if targets of a head are missing.
        ImportError: without matplotlib.
    """
    priors, predicting = mtl.priors(), mtl.posteriors()  # these with what `calibrate` found
    generator = generator or torch.Generator(features.device).manual_seed(0)
    heads: dict[str, Head] = dict(mtl.heads.items())  # type: ignore[arg-type]
    observed = _parsed(heads, features, targets)
    features = features.detach()
    tested = (features, observed) if test is None else (test[0].detach(), _parsed(heads, *test))
    posteriors = {
        name: mtl.schemes[name].infer(head, features, observed[name], priors[name])
        for name, head in heads.items()
    }
    grad, few = (
        _gradients(mtl, heads, posteriors, features[:rows], observed, generator)
        for rows in (len(features), _EXAMPLES)
    )
    names = task_names(heads)
    against = {}
    if reference is not None:
        against = {
            name: reference.infer(head, features, observed[name], priors[name])
            for name, head in heads.items()
        }
    sections = [
        _posteriors(heads, posteriors, priors, features, observed, against, draws, generator),
        gradient_section(names, grad, few, draws, generator),
        aggregation_section(names, mtl.aggregation, grad, heads, posteriors, features, observed),
        feature_section(features),
        predictions_section(
            heads, predicting, *tested, on_training=test is None, generator=generator
        ),
    ]
    if record is not None:
        sections.append(training_section(record))
    write_page(path, title, sections)
    return [check for section in sections for check in section.checks]


def _parsed(
    heads: Mapping[str, Head], features: Tensor, targets: Mapping[str, RawTargets]
) -> dict[str, Targets]:
    missing = [name for name in heads if name not in targets]
    if missing:
        raise SettingError(f"targets of heads {missing} are missing; give one entry for each head")
    for head in heads.values():
        head.check_features(features)
    return {name: head.parse_targets(targets[name], len(features)) for name, head in heads.items()}


def _gradients(
    mtl: BayesAgg,
    heads: Mapping[str, Head],
    posteriors: Mapping[str, Posterior],
    features: Tensor,
    observed: Mapping[str, Targets],
    generator: torch.Generator,
) -> GradientDistribution:
    """Gradients of the first examples, as many as there are features."""
    return gradients.cat(
        {
            name: gradients.distribution(
                head,
                posteriors[name],
                features,
                observed[name].examples(slice(len(features))),
                estimator=mtl.estimators[name],
                generator=generator,
            )
            for name, head in heads.items()
        }
    )


def _posteriors(
    heads: Mapping[str, Head],
    posteriors: Mapping[str, Posterior],
    priors: Mapping[str, Posterior],
    features: Tensor,
    observed: Mapping[str, Targets],
    against: Mapping[str, Posterior],
    draws: int,
    generator: torch.Generator,
) -> Section:
    checks: list[Check] = []
    weighed: dict[str, Importance] = {}
    compared: dict[str, AgainstReference] = {}
    notes = []
    for name, head in heads.items():
        posterior = posteriors[name]
        found = conditioning(posterior).checks()
        spread = bool((posterior.variance > 0).all())
        densities = spread and all(_has_density(p) for p in (posterior, priors[name]))
        if not spread:
            notes.append(f"{name}: a posterior without spread, so there is no k-hat.")
        if densities:
            weighed[name] = importance(
                head,
                posterior,
                priors[name],
                features,
                observed[name],
                draws=draws,
                generator=generator,
            )
            found += weighed[name].checks(len(heads))
        elif isinstance(posterior, Empirical):
            found += convergence(posterior).checks()
            notes.append(f"{name}: samples have no density, so there is no k-hat.")
        if name in against:
            truth = against[name]
            if isinstance(truth, Empirical) and len(truth.samples) >= 8:
                found += [owned(check, "reference") for check in convergence(truth).checks()]
            compared[name] = against_reference(posterior, truth, generator=generator)
            found += compared[name].checks()
        checks += [owned(check, name, head.tasks) for check in found]
    if not against:
        notes.append("No reference was given: report(..., reference=inference.NUTS()) adds one.")
    text = [
        "Is the posterior over the heads' weights the one that prior, likelihood and batch imply? "
        "k-hat weighs draws from the approximation by the true (unnormalised) posterior: below 0.5 "
        "it is good, above 0.7 it misses part of the mass. Exact posteriors have weights that do "
        "not vary and a k-hat far below.",
    ]
    if against:
        text.append(
            "Against the reference: z-scores say how far means are off in standard deviations, "
            "ratios of standard deviations say whether the posterior is too narrow (below 1: "
            "overconfident, its task gets too much weight) or too wide."
        )
    figures = [plot_posterior(weighed, compared or None)] if weighed else []
    return Section("Posteriors", text, figures, checks, notes)


def _has_density(distribution: Posterior) -> bool:
    return type(distribution).log_prob is not Posterior.log_prob
