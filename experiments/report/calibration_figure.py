"""The paper's figure of calibration: ECE against Brier score, a point for each method."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from experiments import escaping
from experiments.classifier_calibration import tells_calibration
from experiments.report.collect import Group, Setup, mean_std
from experiments.weight_figure import typeset

__all__ = ["calibrated_tasks", "calibration"]

_OURS = "#6A3D9A"
_OTHERS = "#E08214"


def calibrated_tasks(setup: Setup) -> list[str]:
    """Tasks with ECE and Brier score; ``"all"`` where only the mean over tasks is known."""
    found: dict[str, None] = {}
    for group in setup.groups.values():
        for name in group.records[0]["best"]["test_figures"]:
            if tells_calibration(name) and name.startswith("ECE"):
                found[name.partition(" ")[2] or "all"] = None
    return list(found) if len(setup.groups) > 1 else []


def calibration(setup: Setup, task: str) -> Figure:
    """ECE against Brier score on the test split; lower is better on both axes.

    As in the paper, baselines in orange and BayesAgg in purple, and named are the latter and the
    best of the others, by the sum of its ranks on both axes. Bars are standard deviations over
    seeds.
    """
    figure = Figure(figsize=(3.4, 2.9), layout="constrained")
    axes = figure.add_subplot()
    suffix = "" if task == "all" else f" {task}"
    points: dict[str, tuple[float, float]] = {}
    for key, group in setup.groups.items():
        ece, brier = (_figure(group, f"{name}{suffix}") for name in ("ECE", "Brier"))
        if ece[0] is None or brier[0] is None:
            continue
        ours = key.startswith("bayesagg")
        axes.errorbar(
            brier[0],
            ece[0],
            xerr=brier[1],
            yerr=ece[1],
            fmt="D" if ours else "o",
            color=_OURS if ours else _OTHERS,
            markersize=5 if ours else 4,
            elinewidth=0.6,
            ecolor=(*to_rgb(_OURS if ours else _OTHERS), 0.35),
            zorder=3 if ours else 2,
        )
        points[group.title] = (brier[0], ece[0])
    rivals = {title: place for title, place in points.items() if not title.startswith("BayesAgg")}
    best = min(rivals, key=lambda title: _ranks(rivals, title), default=None)
    for title, place in points.items():
        if title == best or title not in rivals:
            axes.annotate(
                escaping.figure(title),
                place,
                xytext=(-5, -9) if title == best else (5, 4),
                ha="right" if title == best else "left",
                textcoords="offset points",
                fontsize=7,
            )
    axes.margins(0.2)
    axes.set_xlabel("Brier score ↓")
    axes.set_ylabel("ECE (15 bins) ↓")
    axes.set_title(typeset(task))
    return figure


def _ranks(points: Mapping[str, tuple[float, float]], title: str) -> int:
    """How many others are below it, on either axis."""
    x, y = points[title]
    return sum((a < x) + (b < y) for a, b in points.values())


def _figure(group: Group, name: str) -> tuple[float | None, float | None]:
    return mean_std([record["best"]["test_figures"].get(name) for record in group.records])
