"""Figures of a comparison: scores over the epochs, and what a recorder saw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import t as student

from bayesagg_pyro import diagnostics
from experiments.comparisons import Comparison
from experiments.comparisons.standings import Standings, ahead, differences, finished, standings
from experiments.errors import CheckpointError
from experiments.files import write_json
from experiments.report.style import OTHERS, OURS, log_axis, looks, write_figure
from experiments.runner import Job, Place, configurations
from experiments.tables import escaping
from experiments.training import CHECKPOINT, RECORD, RESULTS, checkpoints, results

History = list[dict[str, Any]]

# Title, column of a record, and how the tasks' columns become one number.
_PANELS: Final[tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...]] = (
    ("norm of the heads (mean over tasks)", "head_norm", statistics.fmean),
    ("norm of the features", "feature_norm", statistics.fmean),
    ("norm of the update", "update_norm", statistics.fmean),
    ("live units", "live_units", statistics.fmean),
    ("effective number of tasks", "effective_tasks", statistics.fmean),
    ("largest share of 2 S h in a gradient", "uncertainty_pull", max),
)


def draw(comparison: Comparison, jobs: Sequence[Job], stem: Path) -> list[Path]:
    """Draw the scores as ``stem.png`` and ``.pdf``, and records, if any, as ``stem-record``.

    Of a league with several seeds the final scores of all entries, with the numbers as
    ``stem.json``; else the scores over the epochs.

    Returns:
        The PNG files; none where no run is finished or, of curves, has finished an epoch.

    Raises:
        OutputError: They cannot be written.
    """
    alone = comparison.ours is None or len({job.run.settings.seed for job in jobs}) == 1
    if not (any(map(_history, _own(jobs))) if alone else finished(jobs)[0]):
        return []
    if alone:
        found = [write_figure(lambda: curves(jobs), stem)]
    else:
        numbers = standings(comparison, jobs)
        write_json(stem.with_name(f"{stem.name}.json"), numbers)
        found = [write_figure(lambda: league(numbers), stem)]
    if any((job.folder / RECORD).is_file() for job in jobs):
        second = stem.with_name(f"{stem.name}-record")
        found.append(write_figure(lambda: recorded(jobs), second))
    return found


def curves(jobs: Sequence[Job]) -> Figure:
    """Score and training loss by epoch: means over seeds, in bands from least to most."""
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    groups = list(configurations(jobs))
    for group, look in zip(groups, looks([g[0].run.method for g in groups]), strict=True):
        histories = [found for job in _own(group) if (found := _history(job))]
        if histories:
            seeds = f"{len(histories)} seed" + ("s" if len(histories) > 1 else "")
            label = f"{group[0].title} ({seeds})"
            _lines(left, [[epoch["score"] for epoch in h] for h in histories], look, label)
            _lines(right, [_loss(h) for h in histories], look, label)
    score = jobs[0].run.benchmark.score_name
    for axes, name in ((left, f"validation {score} (%)"), (right, "training loss")):
        axes.set(xlabel="epoch", ylabel=name)
        log_axis(axes)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def league(found: Standings) -> Figure:
    """Every entry at a glance, sorted: its score, and what it has more than ours, seed by seed.

    Large points are means and lines their 95 % intervals (Student's t) over seeds, of the
    differences on the right; small points are seeds. There it is told with how many ours is ahead.
    """
    rows = found["entries"]
    ours: Mapping[str, float] = next(
        (row["scores"] for row in rows if row["label"] == found["ours"]), {}
    )
    figure = Figure(figsize=(7.0, 0.8 + 0.19 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        mine = row["label"] == found["ours"]
        look: dict[str, Any] = {"color": OURS if mine else OTHERS, "zorder": 3 if mine else 2}
        scores = row["scores"]
        _spread(left, place, [*scores.values()], look)
        if mine:
            right.axvline(0.0, color=OURS, linewidth=1.0)
        elif apart := differences(ours, scores):
            _spread(right, place, apart, look)
            right.annotate(
                ahead(ours, scores),
                (1.0, place),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
    left.set_yticks(range(len(rows)), [escaping.figure(row["title"]) for row in rows])
    for label, row in zip(left.get_yticklabels(), rows, strict=True):
        if row["label"] == found["ours"]:
            label.set(color=OURS, fontweight="bold")
    left.invert_yaxis()
    left.set_xlabel(f"test {found['score']} (%), lower is better")
    right.set_xlabel("the same, minus ours")
    right.annotate(
        "seeds with\nours ahead",
        (1.0, 1.0),
        xycoords="axes fraction",
        xytext=(4, 2),
        textcoords="offset points",
        va="bottom",
    )
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color="0.93", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _spread(axes: Axes, place: float, values: Sequence[float], look: Mapping[str, Any]) -> None:
    """Seeds, their mean and its interval on one line."""
    mean = statistics.fmean(values)
    axes.plot(values, [place] * len(values), "o", markersize=2.0, alpha=0.6, **look)
    axes.plot(mean, place, "o", markersize=5.0, **look)
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = error * float(student.ppf(0.975, len(values) - 1))
        axes.plot([mean - half, mean + half], [place, place], linewidth=1.4, **look)


def recorded(jobs: Sequence[Job]) -> Figure:
    """What each entry's first recorded seed shows, averaged over the records of an epoch."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    groups = list(configurations(jobs))
    for group, look in zip(groups, looks([g[0].run.method for g in groups]), strict=True):
        files = [job.folder / RECORD for job in _own(group)]
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            rows = diagnostics.read(file)
            for axes, (_, column, summary) in zip(panels, _PANELS, strict=True):
                points: dict[float, list[float]] = {}
                for row in rows:
                    if found := _of(row, column):
                        points.setdefault(row["epoch"], []).append(summary(found))
                means = [statistics.fmean(values) for values in points.values()]
                if means:
                    axes.plot([*points], means, **look, label=group[0].title)
    for axes, (title, column, _) in zip(panels, _PANELS, strict=True):
        axes.set(title=title, xlabel="epoch")
        if not axes.lines:
            axes.set_visible(False)  # such as posteriors, where no run had any
        elif column not in ("live_units", "effective_tasks"):
            axes.set_yscale("log")
    told = {str(line.get_label()): line for axes in panels for line in axes.lines}
    figure.legend([*told.values()], [*told], loc="outside lower center", ncols=2)
    return figure


def _of(row: Mapping[str, Any], column: str) -> list[float]:
    """The values of a column, of the step or of each task; none where it is not recorded."""
    names = [name for name in row if name == column or name.startswith(f"{column}/")]
    return [float(row[name]) for name in names if row[name] is not None]


def _lines(axes: Axes, runs: list[list[float]], look: dict[str, Any], label: str) -> None:
    shortest = min(map(len, runs))
    if len(runs) > 1:
        low, high = zip(*((min(at), max(at)) for at in zip(*runs, strict=False)), strict=True)
        axes.fill_between(range(1, shortest + 1), low, high, color=look["color"], alpha=0.15, lw=0)
    mean = [statistics.fmean(run[k] for run in runs) for k in range(shortest)]
    axes.plot(range(1, shortest + 1), mean, **look, label=label)


def _own(jobs: Sequence[Job]) -> list[Job]:
    """Those in whose folder no run that was set to something else has finished, as in the table."""
    return [job for job in jobs if not Place(job.folder).differences(job.run)]


def _history(job: Job) -> History:
    folder = job.folder
    if (folder / RESULTS).exists():
        history: History = results.load(folder / RESULTS)["history"]
        return history
    try:
        saved: History = checkpoints.load(folder / CHECKPOINT)["history"]
    except CheckpointError:
        return []
    return saved


def _loss(history: History) -> list[float]:
    seen = [[v for v in record["train_loss"].values() if v is not None] for record in history]
    return [statistics.fmean(losses or [math.nan]) for losses in seen]
