"""A figure of a comparison: the validation score over the epochs, and what it ended at."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import checkpoints, results
from experiments.compare.comparison import Comparison, Job
from experiments.errors import CheckpointError
from experiments.figures import COLOURS, STYLE, write_figure
from experiments.training import CHECKPOINT, RESULTS

__all__ = ["curves", "draw"]

History = list[dict[str, Any]]


def draw(comparison: Comparison, jobs: Sequence[Job], out: Path, stem: Path) -> Path:
    """Draw ``stem.png`` and ``stem.pdf``.

    Raises:
        OutputError: They cannot be written.
    """
    return write_figure(lambda: curves(comparison, jobs, out), stem)


def curves(comparison: Comparison, jobs: Sequence[Job], out: Path) -> Figure:
    """Score and training loss by epoch: means over seeds, with each seed as a thin line."""
    with matplotlib.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(7.0, 3.0), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for index, entry in enumerate(comparison.entries):
            histories = [
                found for job in jobs if job.label == entry.label and (found := _history(job, out))
            ]
            if histories:
                colour = COLOURS[index % len(COLOURS)]
                seeds = f"{len(histories)} seed" + ("s" if len(histories) > 1 else "")
                label = f"{entry.title} ({seeds})"
                _lines(left, [_column(h, "score") for h in histories], colour, label)
                _lines(right, [_loss(h) for h in histories], colour, label)
        score = comparison.benchmark.score_name
        for axes, name in ((left, f"validation {score} (%)"), (right, "training loss")):
            axes.set(yscale="log", xlabel="epoch", ylabel=name)
        left.legend()
    return figure


def _lines(axes: Axes, runs: list[list[float]], colour: str, label: str) -> None:
    for run in runs:
        axes.plot(range(1, len(run) + 1), run, color=colour, linewidth=0.4, alpha=0.5)
    shortest = min(map(len, runs))
    mean = [statistics.fmean(run[k] for run in runs) for k in range(shortest)]
    axes.plot(range(1, shortest + 1), mean, color=colour, linewidth=1.2, label=label)


def _history(job: Job, out: Path) -> History:
    folder = out / job.folder
    if (folder / RESULTS).is_file():
        history: History = results.load(folder / RESULTS)["history"]
        return history
    try:
        saved: History = checkpoints.load(folder / CHECKPOINT)["history"]
    except CheckpointError:
        return []
    return saved


def _column(history: History, name: str) -> list[float]:
    return [float(record[name]) for record in history]


def _loss(history: History) -> list[float]:
    return [statistics.fmean(record["train_loss"].values()) for record in history]
