"""What all figures share: style, colours, saving. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, told apart with any kind of colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", "--", ":")
_STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "savefig.dpi": 130,
    "text.parse_math": False,  # a dollar in a name is a dollar
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib with this package's style, without touching the caller's.

    Raises:
        ImportError: without matplotlib; install bayesagg_pyro[diagnostics].
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "figures need matplotlib: pip install 'bayesagg_pyro[diagnostics]'"
        ) from error
    settings: Any = _STYLE
    with matplotlib.rc_context(settings):
        yield


@contextmanager
def drawing(
    path: str | os.PathLike[str] | None,
    columns: int,
    rows: int = 1,
    *,
    width: float = 3.0,
    height: float = 2.5,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure that belongs to no window, and its axes row by row; saved at the end.

    Args:
        path: where to, its ending deciding the format; None for nowhere.
        columns: of axes.
        rows: of axes.
        width: of each, in inches.
        height: of each, in inches.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)
        if path is not None:
            figure.savefig(path)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of the so many-th line."""
    size = len(PALETTE)
    return {"color": PALETTE[index % size], "linestyle": _DASHES[index // size % len(_DASHES)]}


def lines(axes: Axes, x: Sequence[float], series: dict[str, Sequence[float]]) -> None:
    """One line per name."""
    for index, (name, values) in enumerate(series.items()):
        label = f" {name}" if name.startswith("_") else name  # else matplotlib leaves it out
        axes.plot(x, values, label=label, linewidth=1, **look(index))


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], **settings: Any) -> None:
    """Horizontal bars, first name on top."""
    axes.barh(range(len(names)), values, height=0.6, color=PALETTE[0], **settings)
    rows(axes, names)


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Names of rows, first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def dots(axes: Axes, x: Sequence[float], y: Sequence[float], label: str, index: int) -> None:
    """Points on the so many-th line."""
    axes.plot(x, y, marker="o", markersize=3, label=label, **look(index))


def outline(axes: Axes, values: Tensor, bins: int, ends: tuple[float, float], **look: Any) -> None:
    """The outline of a histogram, of area 1."""
    given: Any = {"range": ends, "density": True, "histtype": "step", **look}
    axes.hist(values.tolist(), bins=bins, **given)


def limit(axes: Axes, value: float, *, horizontal: bool = False) -> None:
    """A dashed line at a threshold."""
    draw = axes.axhline if horizontal else axes.axvline
    draw(value, color="#444444", linestyle=(0, (4, 3)), linewidth=0.8)


def log_scale(axes: Axes, *, zero: float | None = None) -> None:
    """A logarithmic y axis labelled with plain numbers; linear below `zero` if that is given.

    To be called when all is drawn. (Matplotlib's own labels are formulas, which are off.)
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if zero is not None:
        axes.set_yscale("symlog", linthresh=zero)
    else:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        narrow = high < 8 * low
        axes.yaxis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def legend(axes: Axes, entries: int, **settings: Any) -> None:
    """A legend where there is something to tell apart; beside the axes, so never on the data."""
    if entries > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0, **settings)
