"""Figures of a recorder's table: how training went."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bayesagg_pyro.diagnostics._report.figure import drawing, legend, limit, lines, log_scale
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS
from bayesagg_pyro.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
Theme: TypeAlias = Literal["training", "features", "gradients", "aggregation"]


@dataclass(frozen=True)
class _Panel:
    title: str
    columns: tuple[str, ...]
    scale: Literal["linear", "log", "symlog"] = "linear"
    threshold: str | None = None


#: Panels of the figures.
THEMES: dict[Theme, tuple[_Panel, ...]] = {
    "training": (
        _Panel("loss of each task", ("loss",), "log"),
        _Panel("norm of the posterior mean", ("head_norm",), "log"),
        _Panel("norm of the update", ("update_norm",), "log"),
    ),
    "features": (
        _Panel("live units, rank, effective rank", ("live_units", "rank", "effective_rank")),
        _Panel("mean norm of features", ("feature_norm",), "log"),
        _Panel("cost of a stale prior (of loss)", ("stale_cost",), "symlog", "stale_cost"),
        _Panel("distance of a stale prior", ("stale_distance",), "log"),
        _Panel("moved by a batch (prior sd)", ("moved",), "log"),
        _Panel("share of 2 S h in E g", ("uncertainty_pull",), "linear", "uncertainty_pull"),
    ),
    "gradients": (
        _Panel("signal to noise", ("snr",), "log", "snr"),
        _Panel("posterior standard deviation", ("posterior_std",), "log"),
        _Panel("condition number (bound)", ("condition",), "log"),
        _Panel("jitter", ("jitter",), "symlog"),
    ),
    "aggregation": (
        _Panel("effective tasks, and observed", ("effective_tasks", "observed_tasks")),
        _Panel("mean weight α", ("weight",)),
        _Panel("share of the update", ("share",)),
        _Panel("first-order change of loss", ("first_order",), "linear", "first_order"),
        _Panel("the same along the plain mean", ("first_order_mean",), "linear", "first_order"),
        _Panel("cosines between tasks", ("cosine_mean", "cosine_min")),
    ),
}


def plot_record(
    rows: Sequence[Row], theme: Theme, *, path: str | os.PathLike[str] | None = None
) -> Figure:
    """Curves of one group of columns over training steps; the warm-up is shaded.

    Args:
        rows: from `read`.
        theme: "training", "features", "gradients" or "aggregation".
        path: where to save the figure, if anywhere.

    Raises:
        SettingError: for another theme, or a table without rows or without this theme's columns.
    """
    if theme not in THEMES:
        raise SettingError(f"theme must be one of {sorted(THEMES)}, not {theme!r}")
    panels = [(panel, _series(rows, panel)) for panel in THEMES[theme]]
    panels = [(panel, series) for panel, series in panels if series]
    if not panels:
        raise SettingError(
            f"the table has no columns about {theme}: it holds {len(rows)} rows; record a run with "
            "Bayesian steps"
        )
    columns = min(3, len(panels))
    steps = [row["step"] for row in rows]
    warm = [row["step"] for row in rows if not row["bayesian"]]
    told: list[str] = []
    height = -(-len(panels) // columns)
    with drawing(path, columns, height, width=3.5, height=2.2) as (figure, axes):
        for index, (ax, (panel, series)) in enumerate(zip(axes, panels, strict=False)):
            _draw(ax, panel, steps, series)
            if warm:
                ax.axvspan(warm[0], warm[-1], color="grey", alpha=0.15, linewidth=0)
            if [*series] != told and (len(series) <= 4 or (index + 1) % columns == 0):
                legend(ax, len(series))  # once for as long as the names stay the same
                told = [*series]
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
    return figure


def _series(rows: Sequence[Row], panel: _Panel) -> dict[str, list[float]]:
    """{task, or column: values with NaN where a row lacks them}."""
    names: dict[str, None] = {}
    for row in rows:
        for key in row:
            if key.split("/")[0] in panel.columns:
                names[key] = None
    nan = float("nan")
    found = {
        _shown(name): [nan if row.get(name) is None else row[name] for row in rows]
        for name in names
    }
    return {name: values for name, values in found.items() if any(v == v for v in values)}


def _shown(column: str) -> str:
    """The task of a column, or of the whole step what it is."""
    name, _, task = column.partition("/")
    return task or name.replace("_", " ")


def _draw(ax: Axes, panel: _Panel, steps: list[float], series: dict[str, list[float]]) -> None:
    lines(ax, steps, series)  # type: ignore[arg-type]
    values = [v for line in series.values() for v in line if v == v]
    if panel.scale == "symlog":
        log_scale(ax, zero=0.1)
    elif panel.scale == "log" and min(values) > 0:
        log_scale(ax)
    if panel.threshold is not None:
        limit(ax, THRESHOLDS[panel.threshold].limit, horizontal=True)
    ax.set(title=panel.title, xlabel="step")
    ax.margins(x=0.01)
