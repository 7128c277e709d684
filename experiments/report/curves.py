"""Figures of one or several runs over their epochs, drawn from their results alone."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from experiments.files import prepare_folder
from experiments.report.collect import symbols
from experiments.report.style import log_axis, looks, typeset, write_figure
from experiments.tables import escaping

Record = Mapping[str, Any]

_STAGES = {1: ("end",), 2: ("start", "end"), 3: ("start", "middle", "end")}


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw every figure that the records allow, as PNG and PDF.

    Args:
        records: Results of runs of one benchmark, with titles that tell them apart.
        folder: Where to put them; made if missing.

    Returns:
        The PNG files.

    Raises:
        OutputError: The folder cannot be written.
    """
    prepare_folder(folder)
    figures: dict[str, Callable[[], Figure]] = {"errors": lambda: errors(records)}
    methods = Counter(record["method"]["name"] for record in records)
    for record in records:
        if record["weights"]:
            name = record["method"]["name"]
            if methods[name] > 1:
                name = record["title"]
            name = escaping.file_name(f"weights_{name}", figures)
            figures[name] = lambda record=record: weights(record)  # type: ignore[misc]
    return [write_figure(make, folder / name) for name, make in figures.items()]


def errors(records: Sequence[Record]) -> Figure:
    """Validation score and the validation metric of every task over the epochs."""
    tasks = records[0]["tasks"]
    columns = 4
    rows = -(-(len(tasks) + 1) // columns)
    figure = Figure(figsize=(7.5, 0.4 + 1.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    curves = [[epoch["score"] for epoch in record["history"]] for record in records]
    _curves(grid[0], records, curves, labels=True)
    grid[0].set_title(escaping.figure(f"{records[0]['score_name']} (%)"), fontweight="bold")
    log_axis(grid[0])
    for axes, task in zip(grid[1:], tasks, strict=False):
        name = task["name"]
        curves = [
            [_number(epoch["validation"][name]) for epoch in record["history"]]
            for record in records
        ]
        _curves(axes, records, curves)
        _constant(axes, _number(records[0]["constant"]["validation"][name]))
        unit = f" ({typeset(task['unit'])})" if task["unit"] else ""
        axes.set_title(typeset(task["symbol"]) + unit)
        if not task["higher_is_better"]:
            log_axis(axes)
    for axes in grid[len(tasks) + 1 :]:
        axes.set_axis_off()
    for axes in grid[max(0, len(tasks) + 1 - columns) : len(tasks) + 1]:
        axes.set_xlabel("epoch")
        axes.tick_params(labelbottom=True)
    handles, labels = grid[1].get_legend_handles_labels()
    more, names = grid[0].get_legend_handles_labels()
    both = dict(zip([*names, *labels], [*more, *handles], strict=True))
    figure.legend(both.values(), both.keys(), loc="outside upper center", ncols=columns)
    label = textwrap.fill(escaping.figure(f"validation {records[0]['metric']}"), 26 * rows)
    figure.supylabel(label, fontsize=8)
    return figure


def _constant(axes: Axes, value: float) -> None:
    """What the mean of the targets would score: a line where that leaves the curves room."""
    low, high = axes.get_ylim()
    axes.axhline(value, color="0.6", linewidth=0.8, linestyle=":", label="predict the mean")
    room = 0.5 * (high - low)
    if not low - room <= value <= high + room:
        axes.set_ylim(low, high)
        above = value > high
        axes.annotate(
            f"mean: {value:,.3g} {'↑' if above else '↓'}",
            (0.98, 0.97 if above else 0.03),
            xycoords="axes fraction",
            ha="right",
            va="top" if above else "bottom",
            fontsize=6,
            color="0.45",
        )


def _curves(
    axes: Axes, records: Sequence[Record], curves: Sequence[Sequence[float]], labels: bool = False
) -> None:
    """One curve per run, its best epoch marked, and where pre-training ends."""
    styles = looks([record["method"]["name"] for record in records])
    for record, values, style in zip(records, curves, styles, strict=True):
        epochs = [epoch["epoch"] for epoch in record["history"]]
        axes.plot(
            epochs, values, **style, label=escaping.figure(record["title"]) if labels else None
        )
        best = record["best"]["epoch"]
        axes.plot(
            best, values[epochs.index(best)], "o", color=style["color"], markersize=3.5, zorder=3
        )
        warm = [e["epoch"] for e in record["history"] if e["phase"] == "pre-training"]
        if warm:
            axes.axvline(
                warm[-1] + 0.5,
                color="0.75",
                linewidth=0.7,
                zorder=0,
                label="end of pre-training" if labels else None,
            )
    if labels:  # an empty point of no run's colour, to explain the filled ones
        axes.plot([], [], "o", color="0.4", markersize=3.5, label="best epoch on validation")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _number(value: float | None) -> float:
    """NaN, which is not drawn, where a split could not tell."""
    return float("nan") if value is None else value


def weights(record: Mapping[str, Any]) -> Figure:
    """Mean weight over dimensions of each task for 20 training examples, at up to three epochs.

    A heat map per stage, tasks across and examples down, of each example's own weights; above it
    the weights that updates used, which differ from the mean of those below where a run averages
    variances over the batch. Only the latter where all examples are alike.
    Cells without a target stay empty.
    """
    stages = record["weights"]
    names = _STAGES[len(stages)]
    titles = [typeset(symbol) for symbol in symbols(record)]
    values = [np.asarray(stage["by_example"], dtype=float) for stage in stages]
    alike = all(_alike(value) for value in values)
    top = max(float(np.nanmax(value)) for value in values)
    rows = 1 if alike else 2
    figure = Figure(figsize=(7.5, 2.2 if alike else 4.0), layout="constrained")
    grid = figure.subplots(
        rows,
        len(stages),
        squeeze=False,
        sharex=True,
        sharey="row",
        height_ratios=[1] if alike else [1, 2.4],
    )
    positions = np.arange(len(titles))
    for column, (name, stage, value) in enumerate(zip(names, stages, values, strict=True)):
        bars = grid[0, column]
        bars.bar(positions, np.asarray(stage["applied"], dtype=float), color="#0072B2", width=0.75)
        equal = 1 / len(titles)
        bars.axhline(equal, color="#D55E00", linewidth=0.9, linestyle="--", label="equal weights")
        bars.set_title(f"{name} (epoch {stage['epoch']})")
        if not alike:
            cells = grid[1, column]
            image: AxesImage = cells.imshow(value, aspect="auto", cmap="cividis", vmin=0, vmax=top)
            cells.set_yticks([0, len(value) - 1], ["1", str(len(value))])
            for spine in cells.spines.values():
                spine.set_visible(False)
            cells.tick_params(length=0)
        grid[-1, column].set_xticks(positions, titles, rotation=90)
    grid[0, 0].set_ylabel("weight in updates")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", fontsize=6, borderpad=0)
    if not alike:
        grid[1, 0].set_ylabel("training example")
        figure.colorbar(image, ax=list(grid[1]), label="weight by example", aspect=25, pad=0.01)
    return figure


def _alike(values: np.ndarray) -> bool:
    """Whether examples (rows) differ in nothing but which targets they have (NaN: none)."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0).sum(0) / np.maximum(seen.sum(0), 1)
    return bool(np.allclose(np.where(seen, values, mean), mean, rtol=1e-4))
