"""A figure of what updates are made of: shares, signal and conflict of the tasks over training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bayesagg_pyro.diagnostics import read
from experiments.files import prepare_folder, write_json
from experiments.report.collect import located, symbols
from experiments.report.comparison import label_of
from experiments.report.recorded import Lines, mean, task_columns
from experiments.report.style import COLOURS, LINES, log_axis, typeset, write_figure
from experiments.training.checkpoints import RECORD

_CONFLICTS = (
    ("cosine_mean", "mean cosine of two tasks' gradients", LINES[0]),
    ("cosine_min", "smallest", LINES[1]),
    ("conflict_max", "share of examples in conflict", LINES[3]),
)


def draw(store: Path, folder: Path, warn: Callable[[str], object]) -> list[Path]:
    """Draw it as ``record.png`` and ``.pdf`` with its numbers as JSON, if there are any shares.

    Returns:
        The PNG file, or none.

    Raises:
        OutputError: It cannot be written.
        SettingError: A record is damaged.
    """
    rows = shares(store, warn)
    if not rows:
        return []
    prepare_folder(folder)
    numbers = {"rows": rows}
    write_json(folder / "record.json", numbers)
    return [write_figure(lambda: figure(numbers), folder / "record")]


def shares(folder: Path, warn: Callable[[str], object]) -> list[dict[str, Any]]:
    """What :func:`figure` draws, of every setup and method of a store with recorded shares.

    Means over the records of an epoch and over seeds; None for an epoch that tells none.
    """
    found = []
    for setup, folders in located(folder, RECORD, warn):
        for key, places in folders.items():
            seeds = [lines for place in places if (lines := read(place / RECORD))]
            if any(name.startswith("share/") for lines in seeds for row in lines for name in row):
                tasks = task_columns(seeds[0], symbols(setup.groups[key].records[0]))
                epochs = sorted({row["epoch"] for lines in seeds for row in lines})
                by = {
                    name: [_at(seeds, epoch, name) for epoch in epochs] for name, _, _ in _CONFLICTS
                }
                for name in ("share", "snr"):
                    by |= {
                        f"{name} {symbol}": [_at(seeds, e, f"{name}/{column}") for e in epochs]
                        for column, symbol in tasks
                    }
                title = f"{setup.title}\n{label_of(key)}"
                names = [symbol for _, symbol in tasks]
                found.append({"title": title, "tasks": names, "epochs": epochs, **by})
    return found


def _at(seeds: Sequence[Lines], epoch: float, column: str) -> float | None:
    return mean([row for lines in seeds for row in lines if row["epoch"] == epoch], column)


def figure(numbers: Mapping[str, Any]) -> Figure:
    """Of each setup and method: shares of the update, signal to noise, cosines and conflicts.

    Args:
        numbers: Under ``rows``, what :func:`shares` gives.
    """
    rows = numbers["rows"]
    drawn = Figure(figsize=(7.5, 1.7 * len(rows)), layout="constrained")
    grid = drawn.subplots(len(rows), 3, squeeze=False)
    for (left, middle, right), row in zip(grid, rows, strict=True):
        tasks, epochs = row["tasks"], row["epochs"]
        told = [n for n, value in enumerate(row["cosine_mean"]) if value is not None]
        at = [epochs[n] for n in told]
        looks = [_look(number) for number in range(len(tasks))]
        stacked = [[row[f"share {task}"][n] or 0.0 for n in told] for task in tasks]
        areas = left.stackplot(at, stacked, colors=[colour for colour, _, _ in looks], alpha=0.8)
        for area, task, (colour, line, hatch) in zip(areas, tasks, looks, strict=True):
            area.set(hatch=hatch, label=typeset(task))
            values = [row[f"snr {task}"][n] for n in told]
            middle.plot(at, values, color=colour, linestyle=line, linewidth=1.0)
        log_axis(middle)
        for name, label, line in _CONFLICTS:
            right.plot(at, [row[name][n] for n in told], color="0.2", linestyle=line, label=label)
        right.axhline(0, color="0.8", linewidth=0.6, zorder=0)
        right.set_ylim(-0.5, 0.5)
        left.set_ylim(0, 1)
        left.set_ylabel("\n".join(map(typeset, row["title"].splitlines())), fontsize=7)
        handles, labels = left.get_legend_handles_labels()
        right.legend(
            handles[::-1],
            labels[::-1],
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            fontsize=6,
            labelspacing=0.15,
            handlelength=1.2,
        )
        for axes in (left, middle, right):
            axes.set_xlim(1, max(epochs))
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    titles = ("share of the update", "signal to noise", "cosines and conflict")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    lines = grid[0][2].get_lines()[: len(_CONFLICTS)]
    drawn.legend(lines, [label for _, label, _ in _CONFLICTS], loc="outside lower right", ncols=3)
    return drawn


def _look(number: int) -> tuple[str, Any, str]:
    """Colour, line and hatch of a task."""
    again = number >= len(COLOURS)
    return COLOURS[number % len(COLOURS)], LINES[again], "////" if again else ""
