"""The figure of predictions: images, truths, predictions, errors and uncertainties."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from experiments.dense.frames import Frames
from experiments.dense.predictions import Predicted, Trust
from experiments.report.style import COLOURS

_UNSEEN: Final = "#E4E4E4"
_COLUMNS: Final = ("truth", "prediction", "error", "uncertainty")
_ROWS: Final = {"segmentation": "segmentation", "depth": "depth", "normal": "normals"}
_BINS: Final = 12
#: Inches: the width of a small image, and between images.
_CELL, _GAP = 1.2, 0.05
#: Of the columns: the image, room for names, four small images, the colour bar.
_WIDTHS: Final = (1.25, 0.12, 1, 1, 1, 1, 0.06)
_ALL: Final = _CELL * sum(_WIDTHS) + 6 * _GAP
#: Of classes: Okabe and Ito's colours for few, matplotlib's twenty for more.
_FEW: Final = ("#999999", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")


def draw(
    shown: Sequence[tuple[Frames, Sequence[Predicted]]],
    trust: Mapping[str, Trust],
    classes: Sequence[str],
    unit: str,
) -> Figure:
    """Of each image a block with a row per target; below, errors against expected ones.

    Args:
        shown: Images of the test split with what is predicted of them.
        trust: Of all the split.
        classes: Names of the classes.
        unit: Of depths; empty where they have none.
    """
    heads = [one.head for one in shown[0][1]]
    blocks, rows = len(shown), len(heads)
    height, width = shown[0][0].label.shape[-2:]
    tall, ncols = _CELL * height / width, 1 + (len(classes) > 8)
    if "segmentation" in heads:  # room for the names of classes, under the image of a block
        names = 0.14 * math.ceil((1 + len(classes)) / ncols) + 0.1
        tall = max(tall, (_WIDTHS[0] * tall + names) / rows)
    below = 1.75
    high = tall * rows * blocks + _GAP * (rows * blocks - 1) + below + 0.28
    figure = Figure(figsize=(7.5, high))
    grid = GridSpec(
        rows * blocks, 7, figure, width_ratios=_WIDTHS, wspace=_GAP / (_CELL * sum(_WIDTHS) / 7),
        hspace=_GAP / tall, left=0.02, right=0.02 + _ALL / 7.5, top=1 - 0.28 / high,
        bottom=below / high,
    )  # fmt: skip
    colours = _class_colours(len(classes))
    for block, (frames, found) in enumerate(shown):
        first = block * rows
        axes = figure.add_subplot(grid[first : first + rows, 0])
        axes.imshow(frames.image[0].movedim(0, -1).cpu().numpy(), interpolation="nearest")
        _bare(axes)
        if block == 0:
            axes.set_title("image")
            if "segmentation" in heads:
                axes.legend(
                    handles=[
                        *(Patch(color=c, label=n) for c, n in zip(colours, classes, strict=True)),
                        Patch(color=_UNSEEN, label="not observed"),
                    ],
                    loc="upper left", bbox_to_anchor=(-0.02, -0.04), ncols=ncols, fontsize=7,
                    handlelength=1.0, handleheight=1.0, borderpad=0, labelspacing=0.35,
                )  # fmt: skip
        for row, one in enumerate(found):
            cells = [figure.add_subplot(grid[first + row, 2 + column]) for column in range(4)]
            bar = figure.add_subplot(grid[first + row, 6])
            _row(cells, bar, one, colours, unit)
            cells[0].set_ylabel(_ROWS[one.head], fontsize=8)
            if block == row == 0:
                for axes, name in zip(cells, _COLUMNS, strict=True):
                    axes.set_title(name)
    lower = GridSpec(
        1, len(heads), figure, left=0.085, right=0.975, wspace=0.42,
        top=(below - 0.3) / high, bottom=0.42 / high,
    )  # fmt: skip
    for column, head in enumerate(heads):
        _trust(figure.add_subplot(lower[0, column]), head, trust[head], unit)
    return figure


def _row(
    cells: Sequence[Axes], bar: Axes, one: Predicted, colours: Sequence[str], unit: str
) -> None:
    """Truth, prediction, error and uncertainty of one target."""
    seen = one.seen[0].cpu().numpy()
    truth, value = (_picture(one.head, values[0], colours) for values in (one.truth, one.value))
    truth[~seen] = to_rgb(_UNSEEN)
    if one.head == "depth":
        both = np.concatenate(
            [one.truth[0].cpu().numpy()[seen], one.value[0].cpu().numpy().ravel()]
        )
        low, high = np.quantile(both, [0.005, 0.995])
        for picture, values in ((truth, one.truth), (value, one.value)):
            scaled = (values[0].cpu().numpy() - low) / (high - low)
            picture[:] = colormaps["viridis"](scaled.clip(0, 1))[..., :3]
        truth[~seen] = to_rgb(_UNSEEN)
    cells[0].imshow(truth, interpolation="nearest")
    cells[1].imshow(value, interpolation="nearest")
    error = np.ma.masked_array(one.error[0].cpu().numpy(), ~seen)
    shown = one.shown[0].cpu().numpy()
    if one.head == "segmentation":
        wrong = ListedColormap(["#FFFFFF", "#B2182B"]).with_extremes(bad=_UNSEEN)
        cells[2].imshow(error, cmap=wrong, vmin=0, vmax=1, interpolation="nearest")
        most = float(np.log(len(colours)))
        image = cells[3].imshow(shown, cmap="magma", vmin=0, vmax=most, interpolation="nearest")
    else:
        most = float(np.quantile(np.concatenate([error.compressed(), shown.ravel()]), 0.98))
        heat = colormaps["magma"].with_extremes(bad=_UNSEEN)
        cells[2].imshow(error, cmap=heat, vmin=0, vmax=most, interpolation="nearest")
        image = cells[3].imshow(shown, cmap=heat, vmin=0, vmax=most, interpolation="nearest")
    for axes in cells:
        _bare(axes)
    figure = bar.figure
    colourbar = figure.colorbar(image, cax=bar)
    colourbar.outline.set_visible(False)
    names = {"segmentation": "entropy (nats)", "depth": f"{unit}", "normal": "degrees"}
    colourbar.set_label(names[one.head], fontsize=7, labelpad=2)
    bar.tick_params(labelsize=6, length=2, width=0.5, pad=1.5)
    bar.locator_params(nbins=4)


def _picture(head: str, values: Tensor, colours: Sequence[str]) -> NDArray[Any]:
    """[H, W, 3]; depths are coloured by the caller, who knows their range."""
    array = values.cpu().numpy()
    if head == "segmentation":
        every = np.array([to_rgb(colour) for colour in colours])
        return np.asarray(every[array.clip(min=0)])
    if head == "depth":
        return np.zeros((*array.shape, 3))
    # What faces the camera is blue, what looks up green, as such maps are usually shown.
    picture: NDArray[Any] = (
        np.moveaxis(array * np.array([1, -1, -1])[:, None, None], 0, -1) / 2 + 0.5
    )
    clipped: NDArray[Any] = picture.clip(0, 1)
    return clipped


def _trust(axes: Axes, head: str, trust: Trust, unit: str) -> None:
    """Errors as they were against those that were expected, in groups of equally many pixels."""
    order = trust.expected.argsort()
    groups = [rows for rows in order.tensor_split(_BINS) if len(rows)]
    squared = head != "segmentation"
    expected, found = (
        [
            float(values[rows].square().mean().sqrt() if squared else values[rows].mean())
            for rows in groups
        ]
        for values in (trust.expected, trust.error)
    )
    top = 1.05 * max(*expected, *found)
    axes.plot([0, top], [0, top], color="0.7", linewidth=0.8, linestyle="--")
    axes.plot(expected, found, "o-", color=COLOURS[0], markersize=3, linewidth=1.2)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    in_unit = f" ({unit})" if unit else ""
    names = {
        "segmentation": ("probability of a wrong class", "share of wrong classes"),
        "depth": (f"predicted sd{in_unit}", f"rms error{in_unit}"),
        "normal": ("predicted rms angle (°)", "rms angle (°)"),
    }
    axes.set_xlabel(names[head][0])
    axes.set_ylabel(names[head][1])
    axes.locator_params(nbins=5)


def _class_colours(count: int) -> list[str]:
    if count <= len(_FEW):
        return list(_FEW[:count])
    return [to_hex(colour) for colour in colormaps["tab20"].colors[:count]]  # type: ignore[attr-defined]


def _bare(axes: Axes) -> None:
    axes.set_anchor("N")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
