"""The common style of all figures: colours, scales, symbols, files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments.files import write_atomically
from experiments.tables import escaping

# Okabe and Ito's palette: told apart with any kind of colour vision, and in grey by line style.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)), "-")
# Where one method is shown among many.
OURS, OTHERS = "#6A3D9A", "#8A8F98"
STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def looks(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, dashes and width for each run: BayesAgg is purple and strong in every figure.

    That is the first two of its runs; where there are more, as in ablations, those are as others.
    """
    found: list[dict[str, Any]] = []
    ours = others = 0
    for method in methods:
        if method == "bayesagg" and ours < 2:
            found.append({"color": OURS, "linestyle": LINES[ours], "linewidth": 2.0, "zorder": 3})
            ours += 1
        else:
            colour, line = COLOURS[others % len(COLOURS)], LINES[others % len(LINES)]
            found.append({"color": colour, "linestyle": line, "linewidth": 1.2})
            others += 1
    return found


def typeset(text: str) -> str:
    """``"c_v"`` or ``"a0^3"`` with real subscripts and superscripts."""
    text = re.sub(r"(?<=\w)\^(\d+)", r"$^{\1}$", escaping.figure(text).replace("a0", "a_0"))
    return re.sub(r"(?<=\w)_([A-Za-z0-9]+)", r"$_{\\mathrm{\1}}$", text)


def log_axis(axes: Axes) -> None:
    """A logarithmic axis, if all is positive, with plain numbers even within one decade."""
    if axes.dataLim.y0 <= 0:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 6:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    else:
        subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def write_figure(
    make: Callable[[], Figure], path: Path, formats: Sequence[str] = ("png", "pdf")
) -> Path:
    """Draw a figure in the common style and write it as PNG, whose path it returns, and PDF.

    Raises:
        OutputError: It could not be written.
    """
    with matplotlib.rc_context(cast(Any, STYLE)):
        figure = make()
        FigureCanvasAgg(figure)
        if path.suffix in (".png", ".pdf"):
            path = path.with_suffix("")
        png, pdf = (path.with_name(path.name + end) for end in (".png", ".pdf"))
        write_atomically(png, lambda file: figure.savefig(file, format="png"))
        if "pdf" in formats:
            figure.set_layout_engine("none")  # it is laid out by now
            write_atomically(
                pdf,
                lambda file: figure.savefig(file, format="pdf", metadata={"CreationDate": None}),
            )
    return png
