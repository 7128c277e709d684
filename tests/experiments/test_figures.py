"""Figures come out, whatever the run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.errors import OutputError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.report import curves as figures
from experiments.report import style
from experiments.report.curves import weights
from experiments.report.style import typeset
from experiments.run import Run
from experiments.settings import Settings
from experiments.tables.table import Cell
from experiments.training import Trainer
from tests.experiments.toy import Toy


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs")
    settings = Settings(epochs=4, batch_size=32, device="cpu")
    options = {
        "ls": MethodOptions(),
        "bayesagg": BayesAggOptions(pretrain=1, prior_variance=1.0),
    }
    return [
        Trainer(Run(Toy(), name, options[name], settings), folder / name).train()
        for name in options
    ]


def test_every_figure_is_drawn(records: list[dict[str, Any]], tmp_path: Path) -> None:
    written = figures.draw(records, tmp_path)
    names = {path.name for path in written}
    assert names == {"errors.png", "weights_bayesagg.png"}
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        pdf = path.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        assert b"/FontFile2" in pdf  # TrueType, as publishers want it


def test_curves_hold_the_history(records: list[dict[str, Any]]) -> None:
    figure = figures.errors(records)
    panels = figure.axes
    assert [axes.get_title() for axes in panels[1:4]] == ["sin", "sq (m)", "prod (meV)"]
    curve = panels[3].lines[0]
    expected = [epoch["validation"]["product"] for epoch in records[0]["history"]]
    np.testing.assert_allclose(curve.get_ydata(), expected)
    np.testing.assert_allclose(curve.get_xdata(), [1, 2, 3, 4])
    assert all(axes.get_yscale() == "log" for axes in panels[1:4])


@pytest.mark.parametrize(("low", "scale"), [(-2.0, "linear"), (0.0, "linear"), (0.1, "log")])
def test_only_what_is_positive_has_a_logarithmic_axis(low: float, scale: str) -> None:
    """Δm is negative where a method beats single tasks."""
    axes = Figure().subplots()
    axes.plot([1, 2], [30.0, low])
    style.log_axis(axes)
    assert axes.get_yscale() == scale


def test_legends_of_many_runs_fit(records: list[dict[str, Any]]) -> None:
    """Nothing is cut off at the figure's edge."""
    many = [records[-1] | {"title": f"Aligned-MTL-UB {n}"} for n in range(5)]
    with matplotlib.rc_context(cast(Any, style.STYLE)):
        figure = figures.errors(many)
        FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) >= 7
    inside, box = figure.bbox, legend.get_window_extent()
    assert inside.x0 <= box.x0
    assert box.x1 <= inside.x1
    assert box.y1 <= inside.y1


def test_weights_show_three_stages(records: list[dict[str, Any]]) -> None:
    figure = weights(records[1])
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [stage["epoch"] for stage in records[1]["weights"]] == [2, 3, 4]
    for shown, stage in zip(maps, records[1]["weights"], strict=True):
        np.testing.assert_allclose(shown, stage["by_example"])
    titles = [axes.get_title() for axes in figure.axes]
    assert "start (epoch 2)" in titles
    assert "end (epoch 4)" in titles


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("alike", [False, True])
def test_weights_of_short_and_coarse_runs(
    stages: int, alike: bool, records: list[dict[str, Any]]
) -> None:
    record = records[1] | {"weights": records[1]["weights"][:stages]}
    if alike:  # power 0: no example differs from another
        record["weights"] = [
            stage | {"by_example": [stage["applied"]] * 20} for stage in record["weights"]
        ]
    figure = weights(record)
    assert isinstance(figure, Figure)
    assert any(axes.images for axes in figure.axes) is not alike


def test_unwritable_folder(records: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        figures.draw(records, tmp_path / "file" / "figures")


def test_typeset() -> None:
    assert typeset("c_v") == r"c$_{\mathrm{v}}$"
    assert typeset("a0^3") == r"a$_{\mathrm{0}}$$^{3}$"
    assert typeset("meV") == "meV"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.06712, "0.0671"),
        (1.23456, "1.235"),
        (60.576, "60.58"),
        (143.44, "143.4"),
        (7894, "7,894"),
        (3.2e-6, "0.000003200"),
        (0.0, "0.0000"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert str(Cell.number(value)) == text


def test_names_of_figures_may_hold_dots(tmp_path: Path) -> None:
    """An ending is not what follows the last dot, unless it is one of a figure."""
    for name, made in (("s-0.85", "s-0.85.png"), ("a.png", "a.png"), ("b.pdf", "b.png")):
        assert style.write_figure(Figure, tmp_path / name) == tmp_path / made
        assert (tmp_path / made).with_name(made[:-4] + ".pdf").is_file()


def test_weights_without_a_target_stay_empty(records: list[dict[str, Any]]) -> None:
    record = {**records[1], "weights": [dict(stage) for stage in records[1]["weights"]]}
    for stage in record["weights"]:
        rows = [list(row) for row in stage["by_example"]]
        rows[0][0] = None
        for row in rows:
            row[1] = None
        stage["by_example"] = rows
        stage["applied"] = [stage["applied"][0], None, *stage["applied"][2:]]
    figure = weights(record)
    images = [image for axes in figure.axes for image in axes.get_images()]
    drawn = cast(Any, images[0].get_array())
    assert np.ma.getmaskarray(drawn)[0, 0]
    assert np.ma.getmaskarray(drawn)[:, 1].all()
    figure.canvas.draw()
