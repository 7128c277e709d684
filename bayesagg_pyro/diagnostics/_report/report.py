"""The report: every diagnostic of an engine on one page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from bayesagg_pyro import gradients
from bayesagg_pyro.diagnostics._report.page import write_page
from bayesagg_pyro.diagnostics._report.predicted import predictions_section
from bayesagg_pyro.diagnostics._report.sections import (
    Step,
    aggregation_section,
    feature_section,
    gradient_section,
    posterior_section,
    training_section,
)
from bayesagg_pyro.diagnostics._thresholds import Check
from bayesagg_pyro.engine import BayesAgg
from bayesagg_pyro.engine.slot import HeadStep
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets, Targets

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
    """Write a self-contained HTML report on what a step on this batch would do.

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

    def inferred(schemes: Mapping[str, Scheme]) -> dict[str, Posterior]:
        return {
            name: scheme.infer(heads[name], features, observed[name], priors[name])
            for name, scheme in schemes.items()
        }

    posteriors = inferred(mtl.schemes)
    steps = {}
    for name, slot in mtl._slots.items():
        own = copy(slot)
        own.generator = generator
        steps[name] = HeadStep(own, features, observed[name], priors[name], posteriors[name], 0)
    grad, few = (
        gradients.cat({name: step.gradient(rows, average=False) for name, step in steps.items()})
        for rows in (None, slice(_EXAMPLES))
    )
    against = {} if reference is None else inferred(dict.fromkeys(heads, reference))
    step = Step(heads, features, observed, priors, posteriors, grad, few, draws, generator)
    sections = [
        posterior_section(step, against),
        gradient_section(step),
        aggregation_section(step, mtl.aggregation),
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
