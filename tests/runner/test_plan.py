"""Requests become jobs; folders tell configurations apart, and seeds of one apart from those."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.errors import SettingsError
from experiments.methods import METHODS, BayesAggOptions
from experiments.runner import Request, choose, estimate, fingerprint, grids, plan, plan_table
from experiments.runner.grids import QM9_POWERS, WEIGHT_DECAYS, expand
from experiments.runner.values import pairs, read
from experiments.settings import Settings

OUT = Path("store")


def test_methods_by_name() -> None:
    assert choose("all") == list(METHODS)
    assert choose("ensembles,ls") == ["ensemble-heads", "ensemble-networks", "ls"]
    assert choose("ls, bayesagg,ls") == ["ls", "bayesagg"]
    with pytest.raises(SettingsError, match=r"method = 'adam' is unknown: give one of .*ls"):
        choose("ls,adam")
    with pytest.raises(SettingsError, match="names no method"):
        choose(" , ")


def test_a_seed_decides_the_split_unless_it_is_set() -> None:
    jobs = plan(Request("digits", ["ls"], (0, 3)), OUT)
    assert [job.run.settings.seed for job in jobs] == [0, 3]
    assert [job.run.benchmark.options()["split_seed"] for job in jobs] == [0, 3]
    assert {job.folder.parent for job in jobs} == {
        OUT / "digits" / f"ls-{fingerprint(jobs[0].run)}"
    }
    assert [job.folder.name for job in jobs] == ["seed0", "seed3"]
    fixed = plan(Request("digits", ["ls"], (0, 3), changes={"split_seed": "5"}), OUT)
    assert [job.run.benchmark.options()["split_seed"] for job in fixed] == [5, 5]
    assert fixed[0].folder.parent != jobs[0].folder.parent


def test_every_choice_has_a_folder_of_its_own() -> None:
    changes = [
        {}, {"width": "16"}, {"epochs": "7"}, {"learning_rate": "0.1"}, {"bayesagg.pretrain": "2"},
    ]  # fmt: skip
    folders = {
        plan(Request("digits", ["bayesagg"], changes=change), OUT)[0].folder for change in changes
    }
    assert len(folders) == len(changes)
    here, there = (
        plan(Request("digits", ["ls"], settings={"device": device, "threads": 1}), OUT)[0]
        for device in ("cpu", "auto")
    )
    assert here.folder == there.folder  # where it runs decides nothing


def test_options_come_from_benchmark_preset_and_request_in_this_order() -> None:
    def options(**given: object) -> BayesAggOptions:
        (job,) = plan(Request("qm9", ["bayesagg"], **given), OUT)  # type: ignore[arg-type]
        assert isinstance(job.run.options, BayesAggOptions)
        return job.run.options

    assert options().pretrain == 50
    small = options(preset="small")
    assert (small.pretrain, small.scale, small.resolution) == (2, "sum", "task")
    assert options(preset="small", changes={"bayesagg.pretrain": "3"}).pretrain == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widht": "3"}, r"--set widht=3 is unknown: give METHOD.OPTION, or one of .*width"),
        ({"width": "wide"}, r"width = 'wide' cannot be read as int"),
        ({"bayesagg.s": "1"}, r"s = '1' has no meaning for BayesAggOptions: give one of pretrain"),
        ({"mine.s": "1"}, r"method = 'mine' is unknown"),
        ({"seed": "1"}, r"--set seed=1 is unknown"),
        ({"epochs": "0"}, r"epochs = 0 cannot work"),
    ],
)
def test_refused_changes(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan(Request("digits", ["bayesagg"], changes=changes), OUT)


def test_refused_requests() -> None:
    with pytest.raises(SettingsError, match=r"level = 'foo' is unknown: method bayesagg has no"):
        plan(Request("digits", ["bayesagg@foo"]), OUT)
    with pytest.raises(SettingsError, match=r"'foo' .* imtl-g has parameters and representation"):
        plan(Request("digits", ["imtl-g@foo"]), OUT)
    with pytest.raises(SettingsError, match="it weighs losses"):
        plan(Request("digits", ["ls@parameters"]), OUT)
    with pytest.raises(SettingsError, match=r"benchmark = 'mnist' is unknown: give one of digits"):
        plan(Request("mnist", ["ls"]), OUT)
    with pytest.raises(SettingsError, match=r"preset = 'tiny' is unknown for digits"):
        plan(Request("digits", ["ls"], preset="tiny"), OUT)
    with pytest.raises(SettingsError, match="names no seed"):
        plan(Request("digits", ["ls"], ()), OUT)


def test_text_becomes_values() -> None:
    given = {"epochs": "3", "threads": "none", "head_bias": "true", "learning_rate": "1e-2"}
    assert read(Settings, given) == {
        "epochs": 3, "threads": None, "head_bias": True, "learning_rate": 0.01,
    }  # fmt: skip
    powers = read(BayesAggOptions, {"power": '{"age": 0.5}'})
    assert powers == {"power": {"age": 0.5}}
    assert pairs(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    for bad, message in ((["a"], "cannot be read"), (["a=1", "a=2"], "given twice")):
        with pytest.raises(SettingsError, match=message):
            pairs(bad)


def test_the_papers_grids() -> None:
    searched = grids("qm9", ["bayesagg", "ls"])
    assert searched == {"bayesagg": [{"power": s} for s in QM9_POWERS], "ls": [{}]}
    assert len(grids("cifar-mtl", ["bayesagg"])["bayesagg"]) == 6
    assert len(grids("utkface", ["bayesagg"])["bayesagg"]) == 9
    assert grids("digits", ["ls"])["ls"] == [{"weight_decay": d} for d in WEIGHT_DECAYS]
    assert expand({}) == [{}]
    jobs = plan(Request("digits", ["ls"], (0, 1)), OUT, grids("digits", ["ls"]))
    assert len({job.folder for job in jobs}) == 2 * len(WEIGHT_DECAYS)
    assert jobs[0].folder.parent == plan(Request("digits", ["ls"]), OUT)[0].folder.parent


@pytest.mark.parametrize("prior", ["full-data", "fresh"])
def test_cost_is_known_before_anything_starts(tmp_path: Path, prior: str) -> None:
    methods = ["ls", "bayesagg"]
    given = {"settings": {"device": "cpu"}, "changes": {"bayesagg.prior": prior}}
    jobs = plan(Request("digits", methods, (0, 1), **given), tmp_path)
    cost = estimate(jobs, parallel=2, threads=1)
    assert set(cost.seconds) == set(jobs)
    assert all(value is not None and value > 0 for value in cost.seconds.values())
    assert cost.wall == pytest.approx(max(cost.work / 2, *filter(None, cost.seconds.values())))
    assert plan_table(jobs, cost).row_count == 2
    assert not list(tmp_path.iterdir())


def test_plan_on_the_command_line(tmp_path: Path) -> None:
    command = ["run", "digits", "--methods", "ls", "--seeds", "0", "1", "2", "--plan"]
    result = CliRunner().invoke(app, [*command, "--no-estimate", "--out", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    assert "3 runs" in result.output
    assert not (tmp_path / "x").exists()
    wrong = CliRunner().invoke(app, ["run", "digits", "--seeds", "--plan"])
    assert wrong.exit_code == 2
