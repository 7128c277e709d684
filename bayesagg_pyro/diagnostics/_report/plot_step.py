"""Figures of one step: gradients, aggregation, features."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics._aggregation import Conflicts, Update, Weights
from bayesagg_pyro.diagnostics._features import Spectrum
from bayesagg_pyro.diagnostics._gradients import Moments, Normality, SignalToNoise
from bayesagg_pyro.diagnostics._report.figure import (
    PALETTE,
    bars,
    drawing,
    legend,
    limit,
    log_scale,
    outline,
    rows,
)
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Path = str | os.PathLike[str] | None
_POINTS = 1500


def plot_gradients(
    names: Sequence[str],
    ratios: SignalToNoise,
    shape: Normality | None = None,
    sampled: Moments | None = None,
    *,
    path: Path = None,
) -> Figure:
    """Signal-to-noise by task, the shape of gradients, and stated against sampled moments.

    Args:
        names: of the tasks.
        ratios: from `signal_to_noise`.
        shape: from `normality`; left out if None.
        sampled: from `moments`; left out if None.
        path: where to save the figure, if anywhere.
    """
    panels = 1 + (shape is not None) + (sampled is not None)
    with drawing(path, panels, width=3.5, height=max(2.5, 0.22 * len(names) + 1)) as (figure, axes):
        seen = [task for task, ratio in enumerate(ratios.by_task.tolist()) if ratio == ratio]
        ratio = ratios.by_task.nan_to_num(posinf=math.nan)  # no bar for a gradient without noise
        bars(axes[0], [names[task] for task in seen], ratio[seen].tolist())
        limit(axes[0], THRESHOLDS["snr"].limit)
        axes[0].set(title="signal to noise", xlabel="median |E g| / std g")
        if shape is not None:
            _shapes(axes[1], names, shape)
        if sampled is not None:
            _scores(axes[-1], sampled)
    return figure


def _shapes(axes: Axes, names: Sequence[str], shape: Normality) -> None:
    step = max(1, shape.skewness[0].numel() * len(names) // _POINTS)
    seen = [task for task in range(len(names)) if not shape.skewness[task].isnan().all()]
    for task in seen:
        x, y = (
            part[task].flatten()[::step].tolist()
            for part in (shape.skewness, shape.excess_kurtosis)
        )
        colour = PALETTE[task % len(PALETTE)]
        axes.plot(x, y, ".", markersize=3, alpha=0.6, color=colour, label=names[task])
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.axvline(0, color="grey", linewidth=0.5)
    limit(axes, THRESHOLDS["kurtosis"].limit, horizontal=True)
    log_scale(axes, zero=1.0)
    axes.set(title="shape (0, 0: Gaussian)", xlabel="skewness", ylabel="excess kurtosis")
    legend(axes, len(seen) if len(names) <= len(PALETTE) else 0, markerscale=2)


def _scores(axes: Axes, sampled: Moments) -> None:
    for values, name, colour in (
        (sampled.mean_z, "mean", PALETTE[0]),
        (sampled.variance_z, "variance", PALETTE[1]),
    ):
        seen = values[~values.isnan()].clamp(-6, 6)
        outline(axes, seen, 49, (-6, 6), color=colour, label=name)
    x = torch.linspace(-6, 6, 200)
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    axes.plot(x.tolist(), density.tolist(), color="grey", linewidth=0.8, label="N(0, 1)")
    axes.set(title="stated − sampled moments", xlabel="standard errors", yticks=[])
    legend(axes, 3)


def plot_aggregation(
    names: Sequence[str],
    weights: Weights | None,
    update: Update,
    conflicts: Conflicts,
    *,
    path: Path = None,
) -> Figure:
    """Task weights, shares of the update, its effect on each loss, and conflicts.

    Args:
        names: of the tasks.
        weights: from `weights`; None for a method without them.
        update: from `update`.
        conflicts: from `conflicts`.
        path: where to save the figure, if anywhere.
    """
    seen = [task for task, change in enumerate(update.change.tolist()) if change == change]
    names = [names[task] for task in seen]  # those with a target
    places = list(range(len(names)))
    height = max(2.4, 0.2 * len(names) + 1)
    with drawing(path, 2, 2, width=4.2, height=height) as (figure, axes):
        if weights is not None:
            low, middle, high = weights.quantiles[:, seen].tolist()
            axes[0].hlines(places, low, high, color=PALETTE[0], linewidth=2.5, label="5 to 95 %")
            axes[0].plot(middle, places, "o", color=PALETTE[0], markersize=5, label="median")
            axes[0].plot(
                weights.mean[seen].tolist(), places, "|", color="black", markersize=9, label="mean"
            )
            equal = 1 / max(1, weights.observed_tasks)
            axes[0].axvline(equal, color="grey", linewidth=0.7, label="equal")
            legend(axes[0], 4)
        rows(axes[0], names)
        axes[0].set(title="weights α over examples and dimensions", xlabel="α")
        if update.shares is not None:
            bars(axes[1], names, update.shares[seen].tolist())
            axes[1].axvline(0, color="black", linewidth=0.6)
        axes[1].set(title="share of the update", xlabel="⟨α μ, g⟩ / ⟨g, g⟩")
        axes[2].plot(
            update.change[seen].tolist(), places, "o", color=PALETTE[0], label="this direction"
        )
        axes[2].plot(
            update.change_of_mean[seen].tolist(), places, "x", color=PALETTE[1], label="plain mean"
        )
        axes[2].axvline(0, color="grey", linewidth=0.7)
        rows(axes[2], names)
        axes[2].set(
            title="first-order change of each loss",
            xlabel="−1: as fast as can be;  above 0: it rises",
        )
        legend(axes[2], 2)
        _matrix(axes[3], names, conflicts.cosine[seen][:, seen], conflicts.against[seen][:, seen])
    return figure


def _matrix(axes: Axes, names: Sequence[str], cosine: Tensor, against: Tensor) -> None:
    image = axes.imshow(cosine.tolist(), vmin=-1, vmax=1, cmap="RdBu")
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    if len(names) <= 8:
        for i, row in enumerate(against.tolist()):
            for j, share in enumerate(row):
                if i != j and not math.isnan(share):
                    axes.text(j, i, f"{share:.0%}", ha="center", va="center", fontsize=6)
    axes.set(title="cosines (%: sure conflicts)")


def plot_features(spectrum: Spectrum, features: Tensor, *, path: Path = None) -> Figure:
    """Spectrum of HᵀH and the spread of each unit.

    Args:
        spectrum: from `spectrum`.
        features: [B, d].
        path: where to save the figure, if anywhere.
    """
    with drawing(path, 2, width=3.8) as (figure, axes):
        order = range(1, len(spectrum.eigenvalues) + 1)
        floor = float(spectrum.eigenvalues[0]) * 1e-16
        axes[0].plot(order, spectrum.eigenvalues.clamp(min=floor).tolist(), ".-", linewidth=0.8)
        axes[0].axvline(
            float(spectrum.effective_rank), color=PALETTE[2], label="effective rank", linewidth=1
        )
        axes[0].axvline(
            float(spectrum.rank), color=PALETTE[4], label="rank", linewidth=1, linestyle=":"
        )
        log_scale(axes[0])
        axes[0].set(title="eigenvalues of HᵀH / B", xlabel="order")
        legend(axes[0], 2)
        deviation = features.detach().double().std(0, correction=0).sort(descending=True).values
        axes[1].bar(order, deviation.tolist(), color=PALETTE[0])
        axes[1].set(
            title=f"spread of units ({int(spectrum.live_units)} of {len(spectrum.live)} live)",
            xlabel="unit, sorted",
            ylabel="standard deviation",
        )
    return figure
