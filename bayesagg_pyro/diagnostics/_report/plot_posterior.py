"""Figures of posteriors, their calibration, and predictions."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from bayesagg_pyro.diagnostics._calibration import LEVELS, Calibration
from bayesagg_pyro.diagnostics._importance import Importance
from bayesagg_pyro.diagnostics._posteriors import AgainstReference
from bayesagg_pyro.diagnostics._predictions import Epistemic, Pit
from bayesagg_pyro.diagnostics._reliability import Reliability
from bayesagg_pyro.diagnostics._report.figure import (
    PALETTE,
    bars,
    dots,
    drawing,
    legend,
    limit,
    log_scale,
    look,
    outline,
)
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str] | None


def plot_posterior(
    weighed: Mapping[str, Importance],
    reference: Mapping[str, AgainstReference] | None = None,
    *,
    path: Path = None,
) -> Figure:
    """k-hat of every task and, given a reference, means and spreads compared with it.

    Args:
        weighed: from `importance`, for each head.
        reference: from `against_reference`, for each head.
        path: where to save the figure, if anywhere.
    """
    names, values = [], []
    for name, found in weighed.items():
        khat = found.khat.tolist()
        names += [name] if len(khat) == 1 else [f"{name}.{task}" for task in range(len(khat))]
        values += khat
    panels = 1 + 2 * bool(reference)
    with drawing(path, panels, width=3.4, height=max(2.5, 0.22 * len(names) + 1)) as (figure, axes):
        bars(
            axes[0], names, [max(-0.3, min(k, 1.2)) if k > -math.inf else math.nan for k in values]
        )
        for row, k in enumerate(values):
            said = "exact" if k == -math.inf else f"{k:.2f}"
            axes[0].text(1.48, row, said, va="center", ha="right", fontsize=6)
        limit(axes[0], THRESHOLDS["khat"].limit)
        axes[0].set(title="PSIS k-hat", xlabel="above 0.7: not the posterior", xlim=(-0.35, 1.5))
        for index, (name, other) in enumerate((reference or {}).items()):
            colour = PALETTE[index % len(PALETTE)]
            z, ratio = other.z.flatten().tolist(), other.ratio.flatten().tolist()
            axes[1].plot(z, ".", color=colour, label=name, markersize=4)
            axes[2].plot(ratio, ".", color=colour, label=name, markersize=4)
        if reference:
            bound, factor = (THRESHOLDS[key].limit for key in ("z_score", "covariance_ratio"))
            for line in (-bound, bound):
                limit(axes[1], line, horizontal=True)
            for line in (1 / factor, factor):
                limit(axes[2], line, horizontal=True)
            axes[1].set(title="means off the reference", xlabel="weight", ylabel="z-score")
            axes[2].set(title="standard deviation / reference", xlabel="weight")
            log_scale(axes[2])
            legend(axes[2], len(reference), markerscale=2)
    return figure


def plot_calibration(found: Calibration, title: str = "", *, path: Path = None) -> Figure:
    """Histogram of ranks, ECDF difference with its 95 % band, and coverage.

    Args:
        found: from `simulate_calibration`.
        title: of the whole figure.
        path: where to save the figure, if anywhere.
    """
    with drawing(path, 3) as (figure, axes):
        total = found.histogram().sum(1)
        expected = float(total.sum()) / found.bins
        spread = 2 * (expected * (1 - 1 / found.bins)) ** 0.5
        edges = (torch.arange(found.bins) + 0.5) / found.bins
        axes[0].bar(edges.tolist(), total.tolist(), width=0.9 / found.bins, color=PALETTE[0])
        axes[0].axhspan(expected - spread, expected + spread, color="grey", alpha=0.3, linewidth=0)
        axes[0].set(
            title="ranks of the truth (grey: ±2σ of flat)", xlabel="rank / draws", yticks=[]
        )
        level = (torch.arange(found.draws + 1) + 1) / (found.draws + 1)
        for weight, curve in enumerate(found.ecdf_difference().unbind(1)):
            axes[1].plot(level.tolist(), curve.tolist(), linewidth=1, **look(weight))
        band = found.ecdf_band()
        axes[1].fill_between([0, 1], -band, band, color="grey", alpha=0.3, linewidth=0)
        axes[1].set(title="ECDF − uniform, per weight (95 % band)", xlabel="rank / draws")
        actual = [found.coverage()[level] for level in LEVELS]
        axes[2].plot([0, 1], [0, 1], color="grey", linewidth=0.7)
        axes[2].plot(LEVELS, actual, "o-", color=PALETTE[0], markersize=4)
        axes[2].set(title="coverage", xlabel="stated", ylabel="actual", xlim=(0, 1), ylim=(0, 1))
        if title:
            figure.suptitle(title, fontsize=10)
    return figure


def plot_predictions(
    probabilities: Mapping[str, Reliability],
    transforms: Mapping[str, Pit],
    uncertainty: Mapping[str, Epistemic],
    *,
    path: Path = None,
) -> Figure:
    """Reliability of probabilities, PIT of real targets, uncertainty against error.

    Args:
        probabilities: from `reliability`, for each head of classes; may be empty.
        transforms: from `pit`, for each head of real targets; may be empty.
        uncertainty: from `epistemic_against_error`; may be empty.
        path: where to save the figure, if anywhere.
    """
    panels = [p for p in (probabilities, transforms, uncertainty) if p]
    with drawing(path, max(1, len(panels)), width=3.6) as (figure, axes):
        free = iter(axes)
        if probabilities:
            ax = next(free)
            ax.plot([0, 1], [0, 1], color="grey", linewidth=0.7)
            for index, (name, found) in enumerate(probabilities.items()):
                full = found.count > 0
                parts = found.confidence, found.frequency, found.count
                x, y, many = (part[full].tolist() for part in parts)
                dots(ax, x, y, f"{name}: ECE {float(found.ece):.3f}", index)
                text: Any = {
                    "textcoords": "offset points",
                    "fontsize": 5,
                    "color": look(index)["color"],
                }
                for place, n in zip(zip(x, y, strict=True), many, strict=True):
                    ax.annotate(f"{n:.0f}", place, (2, 3), **text)
            ax.set(title="reliability (and examples in each bin)")
            ax.set(xlabel="stated probability", ylabel="frequency")
            legend(ax, 2)
        if transforms:
            ax = next(free)
            found_of = {
                f"{name}.{task}": values
                for name, pit in transforms.items()
                for task, values in pit.values.items()
                if len(values)
            }
            for index, (label, values) in enumerate(found_of.items()):
                outline(ax, values, 15, (0, 1), label=label, **look(index))
            ax.axhline(1, color="grey", linewidth=0.7)
            ax.set(title="PIT (flat: calibrated)", xlabel="F(y)", yticks=[])
            legend(ax, len(found_of))
        if uncertainty:
            ax = next(free)
            for index, (name, group) in enumerate(uncertainty.items()):
                label = f"{name}: ρ = {float(group.correlation):.2f}"
                dots(ax, group.deviation.tolist(), group.error.tolist(), label, index)
            ax.set(title="uncertainty against error (tenths)")
            ax.set(xlabel="stated standard deviation", ylabel="root mean square error")
            legend(ax, 2)
    return figure
