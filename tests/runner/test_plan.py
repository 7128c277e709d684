"""Requests become jobs; folders tell configurations apart, and seeds of one apart from those."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli import app
from experiments.errors import SettingsError
from experiments.methods import METHODS, BayesAggOptions
from experiments.presets import WEIGHT_DECAYS, grids
from experiments.runner import (
    Ending,
    JobOutcome,
    Place,
    Request,
    Watcher,
    choose,
    estimate,
    fingerprint,
    plan,
    plan_table,
)
from experiments.runner.values import pairs, read
from experiments.settings import Settings
from experiments.tables.render import terminal
from experiments.tables.table import Table
from tests.runner.jobs import job

OUT = Path("store")


def test_methods_by_name() -> None:
    assert choose("all") == list(METHODS)
    assert choose("ensembles,ls") == ["ensemble-heads", "ensemble-networks", "ls"]
    assert choose("ls, bayesagg,ls") == ["ls", "bayesagg"]
    with pytest.raises(SettingsError, match=r"method = 'adam' is unknown: give one of .*ls"):
        choose("ls,adam")
    with pytest.raises(SettingsError, match=r"method = 'nowhere:Own' cannot be imported \(No mod"):
        choose("nowhere:Own")
    with pytest.raises(SettingsError, match=r"no subclass of experiments\.methods\.base\.Method"):
        choose("tests.experiments.toy:Toy")
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
        {"optimizer": "adamw"}, {"beta2": "0.9"},
    ]  # fmt: skip
    folders = {
        plan(Request("digits", ["bayesagg"], changes=change), OUT)[0].folder for change in changes
    }
    assert len(folders) == len(changes)
    here, there = (
        plan(Request("digits", ["ls"], changes={"device": device, "threads": 1}), OUT)[0]
        for device in ("cpu", "auto")
    )
    assert here.folder == there.folder  # where it runs decides nothing
    assert here.folder.parent.name == "ls-1676f55c"  # as before there were newer settings


def test_options_come_from_benchmark_preset_and_request_in_this_order() -> None:
    def options(**given: object) -> BayesAggOptions:
        (job,) = plan(Request("qm9", ["bayesagg"], **given), OUT)  # type: ignore[arg-type]
        assert isinstance(job.run.options, BayesAggOptions)
        return job.run.options

    assert options().pretrain == 50
    small = options(preset="small")
    assert (small.pretrain, small.reduction, small.resolution) == (2, "sum", "task")
    assert options(preset="small", changes={"bayesagg.pretrain": "3"}).pretrain == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widht": "3"}, r"widht = '3' has no meaning for method bayesagg, digits or .*, width"),
        ({"width": "wide"}, r"width = 'wide' cannot be read: give a whole number"),
        ({"bayesagg.s": "1"}, r"s = 1 has no meaning for method bayesagg: .* options are pretrain"),
        ({"mine.s": "1"}, r"method = 'mine' is unknown"),
        ({"seed": "1"}, r"seed = '1' has no meaning"),
        ({"scale": "sum"}, r"has no meaning for method bayesagg, .*: give reduction$"),
        ({"epochs": "0"}, r"epochs = 0 cannot work"),
        ({"rule": "default", "power": "0.3"}, r"power = 0.3 .* rule default .* reads none"),
        ({"rule": "default", "mean": "plug-in"}, r"mean = 'plug-in' .* reads none"),
        ({"aggregator": "Bargain", "resolution": "task"}, r"aggregator Bargain reads none"),
    ],
)
def test_refused_changes(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan(Request("digits", ["bayesagg"], changes=changes), OUT)


def test_a_seed_is_refused_by_the_name_that_it_was_given_under() -> None:
    with pytest.raises(SettingsError, match=r"^seed = -1 cannot work: give a whole number from 0"):
        plan(Request("digits", ["ls"], (-1,)), OUT)


def test_an_option_of_one_method_alone_goes_before_that_of_all() -> None:
    """However the latter is given: once, or as an axis."""
    own = {"ls.learning_rate": "0.5"}
    for given in ({"changes": {**own, "learning_rate": "0.1"}},
                  {"changes": own, "axes": {"learning_rate": ("0.1",)}}):  # fmt: skip
        jobs = plan(Request("digits", ["ls", "si"], **given), OUT)  # type: ignore[arg-type]
        assert [job.run.settings.learning_rate for job in jobs] == [0.5, 0.1]


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
    assert {name: read(Settings, name, text) for name, text in given.items()} == {
        "epochs": 3, "threads": None, "head_bias": True, "learning_rate": 0.01,
    }  # fmt: skip
    for text in ('{"age": 0.5, "sex": 1}', "age=0.5, sex=1"):
        assert read(BayesAggOptions, "power", text) == {"age": 0.5, "sex": 1}
    assert read(BayesAggOptions, "power", "[0.5, 1]") == [0.5, 1]
    assert (one := read(BayesAggOptions, "power", "1")) == 1
    assert isinstance(one, float)  # the same run as 1.0
    for text in ("a", "age=", "age=x", "age=1,0.5"):
        with pytest.raises(SettingsError, match="cannot be read: give a number or one for each"):
            read(BayesAggOptions, "power", text)
    with pytest.raises(SettingsError, match="twice"):
        read(BayesAggOptions, "power", "age=1,age=0.5")
    assert read(BayesAggOptions, "unheard", "[1, 2]") == [1, 2]
    assert read(BayesAggOptions, "unheard", "words") == "words"
    assert pairs(["a=1", "b = x=y", "a=2", "some-method.an-option=3"]) == {
        "a": ["1", "2"], "b": ["x=y"], "some-method.an_option": ["3"],
    }  # fmt: skip
    with pytest.raises(SettingsError, match="cannot be read"):
        pairs(["a"])


def test_the_papers_grids() -> None:
    assert grids("qm9", ["bayesagg", "ls"]) == {"bayesagg.power": (0.75, 0.85, 0.95)}

    def count(benchmark: str) -> int:
        request = Request(benchmark, ["bayesagg"], axes=grids(benchmark, ["bayesagg"]))
        return len(plan(request, OUT))

    assert (count("cifar-mtl"), count("utkface")) == (6, 9)
    assert grids("digits", ["ls"]) == {"ls.weight_decay": WEIGHT_DECAYS}
    jobs = plan(Request("digits", ["ls"], (0, 1), axes=grids("digits", ["ls"])), OUT)
    assert len({job.folder for job in jobs}) == 2 * len(WEIGHT_DECAYS)
    assert jobs[0].folder.parent == plan(Request("digits", ["ls"]), OUT)[0].folder.parent


def test_several_values_are_run_in_every_combination() -> None:
    """Those of a method are for its runs alone; the plan shows what differs, and nothing else."""
    request = Request(
        "digits",
        ["ls", "bayesagg", "imtl-g@representation"],
        axes={"power": ["0.3", "0.5"], "width": [8, 16]},
        changes={"level": "representation"},
    )
    jobs = plan(request, OUT)
    assert [job.run.method for job in jobs] == ["ls"] * 2 + ["bayesagg"] * 4 + ["imtl-g"] * 2
    assert [asdict(job.run.options)["power"] for job in jobs[2:6]] == [0.3, 0.3, 0.5, 0.5]
    table = plan_table(jobs, None)
    headers = [column.title for column in table.columns]
    assert headers == ["width", "power", "seeds", "done", "begun", "epochs"]
    cells = [(row.label, *map(str, row.cells[:2])) for row in table.rows]
    assert cells[1:3] == [("ls", "16", ""), ("bayesagg", "8", "0.3")]


def test_a_plan_says_nothing_of_what_a_rule_does_not_read() -> None:
    """As the powers of the benchmark under the library's own rule, which has others."""
    rules: list[dict[str, Any]] = [{"rule": "default"}, {"rule": "given", "power": "0.3"}]
    jobs = [
        job for given in rules for job in plan(Request("digits", ["bayesagg"], changes=given), OUT)
    ]
    told = [[str(cell) for cell in row.cells[:2]] for row in plan_table(jobs, None).rows]
    assert told == [["default", ""], ["given", "0.3"]]


def test_nothing_of_a_plan_is_cut() -> None:
    """In a narrow terminal it comes as several tables; words stay whole."""
    axes = {"width": [8, 16], "power": ["0.3", "0.5"], "prior_variance": ["1", "2"]}
    axes |= {"resolution": ["task", "dimension"], "reduction": ["sum", "mean"], "pretrain": [1, 2]}
    jobs = plan(Request("digits", ["bayesagg"], axes=axes), OUT)
    told = _told(plan_table(jobs, None), 60)
    for word in (
        "resolution dimension",
        "prior_variance 2",
        "pretrain 2",
        "reduction mean",
        "epochs",
    ):
        assert word in told
    assert "…" not in told


def test_a_table_of_what_is_at_work(tmp_path: Path) -> None:
    jobs = [job(tmp_path / f"one-of-a-long-name-{k}" / "seed0") for k in range(3)]
    watcher = Watcher(jobs, Console())
    for one in jobs[:2]:
        one.folder.mkdir(parents=True)
        Place(one.folder).say(state="training", epoch=3, epochs=20, score=1234.56, seconds=60.0)
    told = _told(watcher._table({jobs[0]: JobOutcome(Ending.FAILED, "")}), 40)
    for word in (
        "failed",
        "training",
        "3/20",
        "1,234.6",
        "17 min",
        "1 of 3 runs ended",
        "1 waiting",
    ):
        assert word in told


def _told(table: Table, width: int) -> str:
    told = io.StringIO()
    Console(width=width, file=told).print(terminal(table))
    return told.getvalue()


@pytest.mark.parametrize("prior", ["full-data", "fresh"])
def test_cost_is_known_before_anything_starts(tmp_path: Path, prior: str) -> None:
    methods = ["ls", "bayesagg"]
    given = {"device": "cpu", "bayesagg.prior": prior}
    jobs = plan(Request("digits", methods, (0, 1), changes=given), tmp_path)
    cost = estimate(jobs, parallel=2, threads=1)
    assert set(cost.seconds) == set(jobs)
    assert all(value is not None and value > 0 for value in cost.seconds.values())
    assert cost.wall == pytest.approx(max(cost.work / 2, *filter(None, cost.seconds.values())))
    assert len(plan_table(jobs, cost).rows) == 2
    assert not list(tmp_path.iterdir())


def test_plan_on_the_command_line(tmp_path: Path) -> None:
    command = ["run", "digits", "--method", "ls", "--seeds", "0", "1", "2", "--plan"]
    result = CliRunner().invoke(app, [*command, "--no-estimate", "--out", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    assert "3 runs" in result.output
    assert not (tmp_path / "x").exists()
    wrong = CliRunner().invoke(app, ["run", "digits", "--seeds", "--plan"])
    assert wrong.exit_code == 2
