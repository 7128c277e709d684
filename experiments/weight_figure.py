"""The paper's figure of weights: tasks by examples, early, midway and late in training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from experiments import escaping

__all__ = ["typeset", "weights"]

_STAGES = {1: ("end",), 2: ("start", "end"), 3: ("start", "middle", "end")}


def weights(record: Mapping[str, Any]) -> Figure:
    """Mean weight over dimensions of each task for 20 training examples, at up to three epochs.

    A heat map per stage, tasks across and examples down, of each example's own weights; above it
    the weights that updates used, which differ from the mean of those below where a run averages
    variances over the batch. Only the latter where all examples are alike.
    Cells without a target stay empty.
    """
    stages = record["weights"]
    names = _STAGES[len(stages)]
    symbols = [typeset(symbol) for symbol in _symbols(record)]
    values = [np.asarray(stage["by_example"], dtype=float) for stage in stages]
    alike = all(_alike(value) for value in values)
    top = max(float(np.nanmax(value)) for value in values)
    rows = 1 if alike else 2
    figure = Figure(
        figsize=(7.5, 2.2 if alike else 4.0),
        layout="constrained",
    )
    grid = figure.subplots(
        rows,
        len(stages),
        squeeze=False,
        sharex=True,
        sharey="row",
        height_ratios=[1] if alike else [1, 2.4],
    )
    positions = np.arange(len(symbols))
    for column, (name, stage, value) in enumerate(zip(names, stages, values, strict=True)):
        bars = grid[0, column]
        bars.bar(positions, np.asarray(stage["applied"], dtype=float), color="#0072B2", width=0.75)
        equal = 1 / len(symbols)
        bars.axhline(equal, color="#D55E00", linewidth=0.9, linestyle="--", label="equal weights")
        bars.set_title(f"{name} (epoch {stage['epoch']})")
        if not alike:
            cells = grid[1, column]
            image: AxesImage = cells.imshow(value, aspect="auto", cmap="cividis", vmin=0, vmax=top)
            cells.set_yticks([0, len(value) - 1], ["1", str(len(value))])
            for spine in cells.spines.values():
                spine.set_visible(False)
            cells.tick_params(length=0)
        grid[-1, column].set_xticks(positions, symbols, rotation=90)
    grid[0, 0].set_ylabel("weight in updates")
    grid[0, 0].legend(loc="best", fontsize=6, borderpad=0, handlelength=1.5)
    if not alike:
        grid[1, 0].set_ylabel("training example")
        figure.colorbar(image, ax=list(grid[1]), label="weight by example", aspect=25, pad=0.01)
    return figure


def _symbols(record: Mapping[str, Any]) -> list[str]:
    """Of what is weighed: the tasks, or the losses where tasks are measured in other ways."""
    symbols = {task["name"]: task["symbol"] for task in record["tasks"]}
    losses = record.get("losses", symbols)
    return [symbols.get(name, name.replace("_", " ")) for name in losses]


def _alike(values: np.ndarray) -> bool:
    """Whether examples (rows) differ in nothing but which targets they have (NaN: none)."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0).sum(0) / np.maximum(seen.sum(0), 1)
    return bool(np.allclose(np.where(seen, values, mean), mean, rtol=1e-4))


def typeset(text: str) -> str:
    """``"c_v"`` or ``"a0^3"`` with real subscripts and superscripts."""
    text = re.sub(r"(?<=\w)\^(\d+)", r"$^{\1}$", escaping.figure(text).replace("a0", "a_0"))
    return re.sub(r"(?<=\w)_([A-Za-z0-9]+)", r"$_{\\mathrm{\1}}$", text)
