"""The two kinds of figure that studies draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.report.style import COLOURS, looks

Line = tuple[Sequence[float], Sequence[float]]


def curves(
    lines: Mapping[str, Line],
    *,
    x: str,
    y: str,
    log: str = "",
    errors: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Lines with a legend beside them.

    Args:
        lines: ``{label: (x values, y values)}``.
        x: Label of the axis.
        y: Label of the axis.
        log: Axes on a logarithmic scale, of the letters x and y.
        errors: Half widths of bars around the points, for some lines.
    """
    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    styles = looks(["bayesagg" if label.startswith("BayesAgg") else label for label in lines])
    for (label, (xs, ys)), style in zip(lines.items(), styles, strict=True):
        axes.errorbar(
            xs,
            ys,
            yerr=(errors or {}).get(label),
            label=label,
            **style,
            marker="." if len(xs) < 12 else "",
            capsize=2,
        )
    for axis in log:
        getattr(axes, f"set_{axis}scale")("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    figure.legend(loc="outside right center")
    return figure


def bars(panels: Mapping[str, Mapping[str, float]]) -> Figure:
    """Panels of horizontal bars, ``{title: {label: value}}``, the labels of the first for all."""
    count = len(next(iter(panels.values())))
    figure = Figure(figsize=(2.0 + 1.9 * len(panels), 0.7 + 0.24 * count), layout="constrained")
    shared = None
    for number, (title, values) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), number + 1, sharey=shared)
        shared = shared or axes
        axes.barh(list(values), list(values.values()), color=COLOURS[number % len(COLOURS)])
        if number:
            axes.tick_params(labelleft=False)
        else:
            axes.invert_yaxis()
        axes.set_title(title)
    return figure
