"""The dense benchmarks in the trainer: they learn, every kind of method runs, files serve too."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesagg_pyro.predictive import _calibrate
from experiments import methods
from experiments.dense.benchmark import Dense
from experiments.dense.public import Cityscapes, NyuV2
from experiments.dense.release import write
from experiments.dense.rooms import Camera, draw, render, with_gaps
from experiments.dense.scenes import Scenes
from experiments.errors import DataError, SettingsError
from experiments.methods.branches import read_by
from experiments.report.curves import weights
from experiments.report.runs import single
from experiments.report.write import tables
from experiments.run import Run
from experiments.training import Trainer, results

SMALL = Scenes(images=16, height=16, image_width=16, width=4, levels=2)


def trained(
    benchmark: Dense,
    method: str,
    folder: Path,
    options: dict[str, Any] | None = None,
    record: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    settings = dataclasses.replace(
        benchmark.default_settings, **{"device": "cpu", "batch_size": 4, **changes}
    )
    chosen = methods.options(method, options or {}, benchmark.method_options)
    return Trainer(Run(benchmark, method, chosen, settings), folder, record=record).train()


def test_it_learns(tmp_path: Path) -> None:
    benchmark = Scenes(images=32, height=16, image_width=24, width=8, levels=3)
    record = trained(benchmark, "ls", tmp_path, epochs=8, learning_rate=1e-2)
    found, constant = record["best"]["validation"], record["constant"]["validation"]
    assert found["miou"] > constant["miou"] + 10
    assert found["pixel_accuracy"] > constant["pixel_accuracy"] + 10
    assert found["depth_relative"] < 0.9 * constant["depth_relative"]
    assert found["normal_mean"] < constant["normal_mean"] - 7


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("uw", {}),
        ("imtl-g", {"level": "representation"}),
        ("imtl-g", {"level": "parameters"}),
        ("stl", {}),
        ("bayesagg", {"pretrain": 1}),
        ("bayesagg", {"pretrain": 1, "resolution": "example", "prior": "fresh"}),
    ],
)
def test_methods_take_pixels_with_gaps(
    method: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_calibrate, "_POINTS", 2)  # not 28 times over all pixels
    monkeypatch.setattr(_calibrate, "_STEPS", 1)
    record = trained(SMALL, method, tmp_path, options, epochs=2)
    assert record["losses"] == ["segmentation", "depth", "normal_x", "normal_y", "normal_z"]
    assert [*record["history"][-1]["train_loss"]] == record["losses"]
    assert len(record["tasks"]) == 9
    read = results.load_whole(tmp_path / "results.json")
    assert single(read)
    if options in ({}, {"pretrain": 1}):  # one of each kind
        (table,) = tables(tmp_path, ["calibration"])
        assert [row.label.partition(": ")[2] for row in table.rows] == record["losses"]
    if read["weights"]:
        assert len(read["weights"][0]["by_example"]) == 20
        path = tmp_path / "results.json"
        saved = json.loads(path.read_text())
        saved["weights"][0]["by_example"][3][0] = None  # a pixel without a label
        path.write_text(json.dumps(saved))
        assert weights(results.load_whole(path)).axes


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ls", {}),
        ("imtl-g", {"level": "representation"}),
        ("pcgrad", {"level": "parameters"}),
        ("bayesagg", {"pretrain": 1}),
    ],
)
def test_a_decoder_for_each_head(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    benchmark = dataclasses.replace(SMALL, decoders="task")
    record = trained(benchmark, method, tmp_path, options, epochs=2, record=4)
    losses = [sum(epoch["train_loss"].values()) for epoch in record["history"]]
    assert losses[1] < losses[0]
    recorded = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert {"rank/depth", "rank/normal", "loss/depth"} <= recorded[-1].keys()


def test_a_dilated_residual_network(tmp_path: Path) -> None:
    """Beside SegNet, by one option, with Bayesian heads on a decoder for each of them."""
    benchmark = dataclasses.replace(SMALL, images=4, network="resnet", decoders="task")
    options = methods.options("bayesagg", {"pretrain": 1}, benchmark.method_options)
    settings = dataclasses.replace(benchmark.default_settings, epochs=2)
    method: Any = Run(benchmark, "bayesagg", options, settings).build(torch.device("cpu"))
    (batch,) = benchmark.load(torch.device("cpu")).train.batches(4)
    for epoch in range(2):
        method.start_epoch(epoch)
        losses = method.backward(batch.inputs, batch.targets)
        method.end_epoch(epoch)
    assert method.mtl.info.bayesian
    assert all(loss.isfinite().all() for loss in losses.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.backbone.parameters())
    with pytest.raises(SettingsError, match="depth = 18 cannot be dilated"):
        dataclasses.replace(benchmark, depth=18).backbone()
    with pytest.raises(DataError, match="there is no weights file"):
        dataclasses.replace(benchmark, weights=str(tmp_path / "none.pt")).backbone()
    assert "network" not in SMALL.identity()  # records made before there was a choice go on


@pytest.mark.parametrize("decoders", ["shared", "task"])
def test_normals_have_one_network_of_their_own(decoders: Any) -> None:
    """Three coordinates are one task: STL trains three networks, each of which gives all of one."""
    benchmark = dataclasses.replace(SMALL, decoders=decoders)
    options = methods.options("stl", {}, {})
    run = Run(benchmark, "stl", options, SMALL.default_settings)
    method: Any = run.build(torch.device("cpu"))
    assert len(method.backbone) == 3
    (batch,) = benchmark.load(torch.device("cpu")).train.batches(16)
    method.train(False)
    predicted = method.predict(batch.inputs)
    for (name, outputs), backbone in zip(predicted.items(), method.backbone, strict=True):
        features = read_by(name, backbone(batch.inputs))
        assert torch.equal(outputs, method.by_name[name](features))
    losses = method.backward(batch.inputs, batch.targets)
    assert [len(loss) for loss in losses.values()] == [1, 1, 3]
    assert all(weight.grad is not None for weight in method.backbone.parameters())


def test_branches_descend_their_own_loss_alone() -> None:
    """Gradients of decoders are those of plain descent, whatever the rule for what is shared."""
    benchmark = dataclasses.replace(SMALL, decoders="task")
    (batch,) = benchmark.load(torch.device("cpu")).train.batches(16)
    grads = []
    for name in ("ls", "mgda"):
        options = methods.options(name, {}, {})
        method = Run(benchmark, name, options, benchmark.default_settings).build(
            torch.device("cpu")
        )
        method.backward(batch.inputs, batch.targets)
        parameters = dict(method.backbone.named_parameters())
        assert all(parameter.grad is not None for parameter in parameters.values())
        grads.append({key: parameter.grad for key, parameter in parameters.items()})
    for key, grad in grads[0].items():
        same = torch.allclose(grad, grads[1][key], rtol=1e-4, atol=1e-6)
        assert same == ("decoders" in key), key


def test_heads_of_an_ensemble_share_features() -> None:
    benchmark = dataclasses.replace(SMALL, decoders="task")
    options = methods.options("ensemble-heads", {}, {})
    run = Run(benchmark, "ensemble-heads", options, benchmark.default_settings)
    with pytest.raises(SettingsError, match="its members share features"):
        run.build(torch.device("cpu"))


def test_files_of_both_layouts(tmp_path: Path) -> None:
    rooms = draw(8, seed=0)
    frames = with_gaps(render(rooms, Camera(16, 16)), rooms)
    write(frames, tmp_path / "nyu", "train")
    write(frames.rows(torch.arange(2)), tmp_path / "nyu", "val")
    inverse = frames.depth.reciprocal()
    streets = frames._replace(depth=torch.where(inverse.isfinite(), inverse, 0.0), normal=None)
    write(streets, tmp_path / "city", "train")
    write(streets.rows(torch.arange(2)), tmp_path / "city", "val")
    nyu = NyuV2(data=str(tmp_path / "nyu"), width=4, levels=2)
    record = trained(nyu, "ls", tmp_path / "one", epochs=1)
    assert record["data"]["sizes"] == {"train": 7, "validation": 1, "test": 2}
    assert record["best"]["test_delta_m"] is not None
    city = Cityscapes(data=str(tmp_path / "city"), width=4, levels=2)
    record = trained(city, "bayesagg", tmp_path / "two", {"pretrain": 1}, epochs=2)
    assert [*record["best"]["test"]] == [
        "miou",
        "pixel_accuracy",
        "depth_absolute",
        "depth_relative",
    ]
    assert record["best"]["test_delta_m"] is not None
    nobody = dataclasses.replace(city, classes=9)  # of which no single-task metrics are known
    record = trained(nobody, "ls", tmp_path / "three", epochs=1)
    assert record["best"]["test_delta_m"] is None
    assert record["best"]["test_score"] == pytest.approx(100 - record["best"]["test"]["miou"])


def test_one_head_alone(tmp_path: Path) -> None:
    benchmark = dataclasses.replace(SMALL, only="normal")
    record = trained(benchmark, "ls", tmp_path, epochs=1)
    assert [*record["best"]["test"]][:2] == ["normal_mean", "normal_median"]
    assert benchmark.losses == ["normal_x", "normal_y", "normal_z"]


def test_published_rows() -> None:
    """Their own Δm is 0, and that of published LS on NYUv2 is as printed (Liu et al., 2021)."""
    nyu = NyuV2()
    assert [task.single_task for task in nyu.tasks][:2] == [38.30, 63.76]
    assert nyu.delta_m([task.single_task for task in nyu.tasks]) == pytest.approx(0.0)
    ls = [39.29, 65.33, 0.5493, 0.2263, 28.15, 23.96, 22.09, 47.50, 61.08]
    assert nyu.delta_m(ls) == pytest.approx(5.59, abs=0.01)
    seven, nineteen = Cityscapes(), Cityscapes(classes=19)
    assert [task.single_task for task in seven.tasks] == [74.01, 93.16, 0.0125, 27.77]
    assert [task.single_task for task in nineteen.tasks] == [None] * 4


def test_options_are_checked() -> None:
    with pytest.raises(SettingsError, match=r"task = 'normal'.*segmentation, depth"):
        Cityscapes(only="normal")
    with pytest.raises(SettingsError, match=r"height = 4 .*4 levels need at least 16"):
        Scenes(height=4)
    with pytest.raises(SettingsError, match="levels = 6"):
        NyuV2(levels=6)
