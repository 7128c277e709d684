"""Figures of the documentation are what the code draws, and nobody touched them afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from numpy.typing import NDArray

from bayesagg_pyro.diagnostics import Calibration, plot_calibration
from experiments.comparisons.figure import league
from experiments.dense import figure as dense
from experiments.dense import rooms
from experiments.dense.frames import Frames, seen_depth, seen_label
from experiments.dense.predictions import Predicted, Trust
from experiments.report import shares
from experiments.report.curves import weights
from experiments.report.figures import calibration
from experiments.report.illustration import flow, update_directions
from experiments.report.style import write_figure
from experiments.studies import approximations, heads, missing, priors

DOCS = Path(__file__).resolve().parents[2] / "docs"

Pixels = NDArray[np.float64]


def pixels(path: Path) -> Pixels:
    """[height, width, 3], without the antialiasing that differs between fonts and versions."""
    image = np.asarray(imread(path), dtype=np.float64)[..., :3]
    height, width = (side // 4 * 4 for side in image.shape[:2])
    blocks = image[:height, :width].reshape(height // 4, 4, width // 4, 4, 3)
    return np.asarray(blocks.mean((1, 3)), dtype=np.float64)


def share_that_differs(one: Pixels, other: Pixels) -> float:
    return float((np.abs(one - other).max(-1) > 0.03).mean())


@pytest.mark.parametrize("draw", [update_directions, flow])
def test_drawn_by_the_code(draw: Callable[[], Figure], tmp_path: Path) -> None:
    drawn = pixels(write_figure(draw, tmp_path / "figure", formats=("png",)))
    kept = pixels(DOCS / "figures" / f"report_{draw.__name__}.png")
    assert kept.shape == drawn.shape
    assert share_that_differs(kept, drawn) < 0.02
    # A palette of 16 colours, which once took the outer contours away, is told.
    levels = np.round(drawn * 3) / 3
    assert share_that_differs(levels, drawn) > 0.02


def kept(name: str) -> Any:
    """The numbers behind a figure, which lie beside it."""
    return json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8"))


FROM_NUMBERS: dict[str, Callable[[Any], Figure]] = {
    "league-cifar": league,
    "league-digits": league,
    "league-rand": league,
    "league-tox21": league,
    "report_calibration_digits_digit": calibration,
    "report_weights_digits_bayesagg": weights,
    "study-approximations": lambda found: approximations.figure(found["tables"]["digits-1079"]),
    "study-heads": lambda found: heads.figure(found["tables"]["heads"]),
    "study-missing": lambda found: missing.figure(
        found["tables"]["missing"], "number", "test MSE of number"
    ),
    "study-priors": lambda found: priors.figure(found["settings"]["runs"]),
    "why": shares.figure,
}


@pytest.mark.parametrize("name", FROM_NUMBERS)
def test_drawn_from_the_numbers_beside_it(name: str, tmp_path: Path) -> None:
    drawn = pixels(
        write_figure(
            lambda: FROM_NUMBERS[name](kept(f"figures/{name}")),
            tmp_path / "figure",
            formats=("png",),
        )
    )
    shown = pixels(DOCS / "figures" / f"{name}.png")
    assert shown.shape == drawn.shape
    assert share_that_differs(shown, drawn) < 0.02


CALIBRATED = {row["case"]: row for row in kept("calibration/calibration")["tables"]["calibration"]}


@pytest.mark.parametrize("case", CALIBRATED)
def test_calibration_is_drawn_from_the_ranks(case: str, tmp_path: Path) -> None:
    row, draws = CALIBRATED[case], kept("calibration/calibration")["settings"]["draws"]
    ranks = torch.tensor(row["ranks"])
    found = Calibration(ranks, draws, torch.zeros(ranks.shape))
    assert float(found.p_value) == pytest.approx(row["p_value"], rel=1e-6)
    path = write_figure(
        lambda: plot_calibration(found, row["title"]), tmp_path / "figure", formats=("png",)
    )
    drawn, shown = pixels(path), pixels(DOCS / "calibration" / f"{case}.png")
    assert shown.shape == drawn.shape
    assert share_that_differs(shown, drawn) < 0.02


def test_rooms_are_those_of_their_seed(tmp_path: Path) -> None:
    """Images, classes and normals; what a network makes of them takes training."""
    test = rooms.draw(80, 2)  # beside 320 for training
    frames = rooms.with_gaps(rooms.render(test, rooms.Camera(72, 96)), test)
    figures = []

    def true(one: Frames, head: str, value: torch.Tensor, seen: torch.Tensor) -> Predicted:
        rest = torch.linspace(0.1, 1, one.label.numel()).view(one.label.shape)
        return Predicted(head, value, value, seen, rest, rest, rest)

    def truths() -> Figure:
        shown = []
        for one in (frames.rows(torch.tensor([place])) for place in (0, 1)):
            assert one.normal is not None
            label, depth = seen_label(one), seen_depth(one)
            parts = ("segmentation", one.label, label), ("depth", one.depth, depth)
            found = [true(one, *part) for part in (*parts, ("normal", one.normal, depth))]
            shown.append((one, found))
        line = torch.linspace(0.1, 1, 20)
        trust = dict.fromkeys(("segmentation", "depth", "normal"), Trust(line, line))
        figures.append(dense.draw(shown, trust, rooms.CLASSES, "m"))
        return figures[0]

    path = write_figure(truths, tmp_path / "figure", formats=("png",))
    drawn, shown = (imread(one)[..., :3] for one in (path, DOCS / "images" / "scenes.png"))
    assert shown.shape == drawn.shape
    height, width = drawn.shape[:2]
    for place in (0, 1, 11, 16, 17, 27):  # of two blocks of 16 axes the image, and two truths
        box = figures[0].axes[place].get_position()
        rows = slice(round(height * (1 - box.y1)), round(height * (1 - box.y0)))
        cell = rows, slice(round(width * box.x0), round(width * box.x1))
        apart = np.abs(shown[cell] - drawn[cell]).max(-1)
        assert apart.size > 10_000
        assert (apart > 0.03).mean() < 0.02


def test_every_figure_has_its_command() -> None:
    """Between a figure and the next heading or figure: the command that draws it."""
    missing = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for group in re.finditer(r"(?:^.*!\[.*\n)+", text, re.MULTILINE):
            below = text[group.end() : group.end() + 600]
            if not re.search(r"Drawn by `python -m|```bash\npython -m", below):
                missing.append(f"{page.name}: {group.group().strip()[:60]}")
    assert not missing
