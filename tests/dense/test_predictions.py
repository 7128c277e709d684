"""Commands: rendered files, and the figure of what a run predicts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments import methods
from experiments.cli import app
from experiments.dense.figure import draw
from experiments.dense.predictions import predicted
from experiments.dense.public import Cityscapes
from experiments.dense.scenes import Scenes
from experiments.errors import SettingsError
from experiments.run import Run
from experiments.training import Trainer
from experiments.training.checkpoints import restore

CPU = torch.device("cpu")


def invoke(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ls"
    benchmark = Scenes(
        images=16, height=16, image_width=24, width=6, levels=2, regression="heteroscedastic"
    )
    settings = dataclasses.replace(benchmark.default_settings, epochs=2, device="cpu")
    Trainer(Run(benchmark, "ls", methods.options("ls", {}), settings), out).train()
    return out


def test_a_run_is_restored(folder: Path) -> None:
    """Its best epoch's network, whose metrics are those of the record."""
    from experiments.training.evaluation import evaluate

    run, method = restore(folder, CPU)
    record = json.loads((folder / "results.json").read_text())
    assert run.describe()["benchmark"] == record["benchmark"]
    data = run.benchmark.load(CPU)
    found = evaluate(method, data, data.test, 8)
    assert found.values == pytest.approx([*record["best"]["test"].values()], rel=1e-5)


def test_predictions_of_pixels(folder: Path) -> None:
    run, method = restore(folder, CPU)
    data = run.benchmark.load(CPU)
    shown, trust = predicted(method, data, [2, 0])
    assert {*shown} == {0, 2}
    frames, found = shown[2]
    segmentation, depth, normal = found
    assert segmentation.value.shape == frames.label.shape == depth.error.shape
    assert (segmentation.shown <= np.log(5) + 1e-6).all()
    assert torch.equal(segmentation.error > 0, segmentation.value != frames.label)
    # Means of a posterior around the learned weights are close to the network's own.
    expected = method.predict(frames.image)
    mean = data.about["depth_log_mean"] + data.about["depth_log_std"] * expected["depth"][:, 0, 0]
    assert (depth.value.flatten().log() - mean).abs().median() < 0.2
    torch.testing.assert_close(normal.value.norm(dim=1), torch.ones_like(depth.value))
    for head in ("segmentation", "depth", "normal"):
        assert trust[head].error.shape == trust[head].expected.shape
        assert (trust[head].expected > 0).all()
    with pytest.raises(SettingsError, match=r"image = 4 .*0 to 3"):
        predicted(method, data, [4])


def test_the_figure_is_drawn(folder: Path, tmp_path: Path) -> None:
    text = invoke("predictions", str(folder), "--image", "1", "--out", str(tmp_path / "figure"))
    assert "figure" in text
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def names_of_classes_are_whole(folder: Path) -> None:
    """No image lies on them, however few rows a block has."""
    run, method = restore(folder, CPU)
    assert isinstance(run.benchmark, Cityscapes)
    shown, trust = predicted(method, run.benchmark.load(CPU), [0])
    figure = draw([shown[0], shown[0]], trust, run.benchmark.class_names, "")
    figure.draw_without_rendering()
    first, second = (
        axes
        for axes in figure.axes
        if axes.get_gridspec().ncols == 7 and axes.get_subplotspec().colspan.start == 0
    )
    legend = first.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= second.get_window_extent().y1


def test_rendered_files_train(tmp_path: Path) -> None:
    size = ("--train", "4", "--val", "1", "--height", "16", "--image-width", "16")
    for layout, columns in (("nyuv2", 4), ("cityscapes", 3)):
        invoke("render", str(tmp_path / layout), "--layout", layout, *size)
        assert len([*(tmp_path / layout / "train").iterdir()]) == columns
    near = np.load(tmp_path / "nyuv2/val/depth/0.npy")
    inverse = np.load(tmp_path / "cityscapes/val/depth/0.npy")
    np.testing.assert_allclose((near * inverse)[near > 0], 1, rtol=1e-6)
    words = ["--width", "4", "--levels", "2", "--epochs", "1", "--method", "ls", "--no-figures"]
    data, out = str(tmp_path / "cityscapes"), str(tmp_path / "out")
    text = invoke("cityscapes", "--data", data, *words, "--out", out)
    assert "mIoU" in text
    assert "Test segmentation and inverse depth of pixels" in text
    names_of_classes_are_whole(Path(out))
    text = invoke("render", data, "--layout", "cityscapes", *size, "--seeds", "1", code=2)
    assert "train exists already: remove it" in text  # those of another seed are not mixed in
    invoke("render", str(tmp_path), "--layout", "kitti", code=2)
