"""From records to tables, and tables as text."""

from __future__ import annotations

import io
import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments import registry
from experiments.cli import app
from experiments.errors import DataError, SettingsError
from experiments.report.collect import setups
from experiments.report.figures import draw
from experiments.report.frame import load_frame
from experiments.report.write import NAMES, tables, write
from experiments.tables.escaping import latex as escaped
from experiments.tables.render import document, latex, markdown, terminal
from experiments.tables.table import Cell, Column, Row, Table
from tests.report.records import qm9, record, store

WEIGHTS = [{"epoch": 1, "by_example": [[1.0] * 11] * 20, "applied": [1.0] * 11}]


def rows(table: Table) -> dict[str, Row]:
    return {row.label: row for row in table.rows}


def test_ours_beside_the_papers(tmp_path: Path) -> None:
    found = [record("ls", seed, qm9(2.0 + 0.1 * seed)) for seed in range(3)]
    found += [record("bayesagg", 0, qm9(1.5))]
    (table,) = tables(store(tmp_path, found), ["qm9"])
    assert [column.title for column in table.columns] == ["ours", "paper", "ours − paper"]
    by_label = rows(table)
    assert list(by_label) == ["LS", "BayesAgg-MTL"]
    ours, paper, difference = by_label["LS"].cells
    assert ours.parts() == ("110.0", "10.0")
    assert paper.parts() == ("177.6", "3.4")
    assert difference.parts() == ("-67.6",)
    alone, printed, _ = by_label["BayesAgg-MTL"].cells
    assert (alone.mean, alone.std, alone.bold) == (pytest.approx(50.0), None, True)
    assert printed.bold
    assert not ours.bold
    assert any("1/3 seeds" in note for note in table.notes)
    assert any("110,831 training examples" in note for note in table.notes)
    (whole,) = tables(tmp_path, ["qm9"], everything=True)
    assert len(whole.rows) == 13
    assert rows(whole)["UW"].cells[0].text == "not run"
    assert rows(whole)["UW"].cells[2].mean is None
    assert any("0.98" in note and "0.098" in note for note in table.notes)


def test_validation_chooses_the_configuration_and_test_does_not(tmp_path: Path) -> None:
    chosen = record("bayesagg", 0, qm9(3.0), validation=10.0)
    other = record("bayesagg", 0, qm9(1.1), validation=20.0, changes={"bayesagg.power": "0.5"})
    (table,) = tables(store(tmp_path, [other, chosen]), ["qm9"])
    assert rows(table)["BayesAgg-MTL"].cells[0].mean == pytest.approx(200.0)
    assert any("best on validation of 2 configurations" in note for note in table.notes)


def test_configurations_are_compared_by_the_seeds_that_all_have(tmp_path: Path) -> None:
    """A sweep that was stopped has tried some with seed 0 alone, whose split may be easy."""
    whole = [record("bayesagg", s, qm9(2.0), validation=(8.0, 20.0)[s]) for s in (0, 1)]
    begun = record("bayesagg", 0, qm9(3.0), validation=10.0, changes={"bayesagg.power": "0.5"})
    (table,) = tables(store(tmp_path / "a", [*whole, begun]), ["qm9"])
    assert rows(table)["BayesAgg-MTL"].cells[0].mean == pytest.approx(100.0)
    begun["settings"]["seed"] = begun["benchmark"]["options"]["split_seed"] = 2  # none in common
    (table,) = tables(store(tmp_path / "b", [*whole, begun]), ["qm9"])
    assert rows(table)["BayesAgg-MTL"].cells[0].mean == pytest.approx(200.0)


def test_seeds_from_before_there_was_an_option_are_of_its_default(tmp_path: Path) -> None:
    """Not a configuration of their own, from which validation would have chosen."""
    found = [record("bayesagg", seed, qm9(1.0 + seed), validation=9.0 - seed) for seed in range(3)]
    for older in found[:2]:
        for name in ("optimizer", "beta2", "fitted_bias"):
            del older["settings"][name]
        del older["method"]["options"]["noise"]
    (table,) = tables(store(tmp_path, found), ["qm9"])
    assert rows(table)["BayesAgg-MTL"].cells[0].parts() == ("100.0", "100.0")
    assert not any("configurations" in note for note in table.notes)


def test_trials_of_a_league_are_no_runs_of_the_table(tmp_path: Path) -> None:
    """Neither their seed beside the others, nor a lucky one of another setting in their place."""
    store(tmp_path, [record("ls", seed, qm9(1.0 + seed), validation=9.0) for seed in (0, 1)])
    lucky = {"learning_rate": "0.5"}
    tried = [record("ls", 5, qm9(9.0), validation=9.0),
             record("ls", 5, qm9(9.0), validation=1.0, changes=lucky)]  # fmt: skip
    store(tmp_path / "trials", tried)
    (table,) = tables(tmp_path, ["qm9"])
    assert rows(table)["LS"].cells[0].parts() == ("50.0", "70.7")
    assert not any("configurations" in note for note in table.notes)
    (chosen,) = tables(tmp_path / "trials", ["qm9"])  # which can be asked for
    assert rows(chosen)["LS"].cells[0].mean == pytest.approx(800.0)


def test_methods_of_one_title_have_a_row_each(tmp_path: Path) -> None:
    pytest.importorskip("torchjd")
    found = [record("dwa", 0, qm9(2.0)), record("torchjd:DWA", 0, qm9(3.0)),
             record("torchjd:UPGrad", 0, qm9(4.0))]  # fmt: skip
    (table,) = tables(store(tmp_path, found), ["qm9"])
    shown = {label: row.cells[0].mean for label, row in rows(table).items()}
    assert shown == pytest.approx({"DWA": 100.0, "torchjd:DWA": 200.0, "UPGrad": 300.0})


def test_setups_are_not_mixed(tmp_path: Path) -> None:
    small = {"molecules": "1000", "epochs": "60"}
    found = [record("ls", 0, qm9(9.0), changes=small), record("ls", 0, qm9(2.0))]
    whole, reduced = setups(found)
    assert whole.as_published
    assert reduced.describe() == "molecules 1000, epochs 60"
    first, second = tables(store(tmp_path, found), ["qm9"])
    assert rows(first)["LS"].cells[0].mean == pytest.approx(100.0)
    assert rows(second)["LS"].cells[0].mean == pytest.approx(800.0)
    assert any("not the paper's setup" in note for note in second.notes)
    assert [column.title for column in second.columns] == ["ours", "paper"]
    assert not any("not the paper's setup" in note for note in first.notes)


def test_a_set_split_is_a_setup_of_its_own(tmp_path: Path) -> None:
    fixed = {"split_seed": "5"}
    found = [record("ls", seed, qm9(2.0)) for seed in (0, 1)]
    found += [record("ls", seed, qm9(4.0), changes=fixed) for seed in (0, 1, 7)]
    follows, other = setups(found)
    assert follows.as_published
    assert other.describe() == "split_seed 5"
    assert [len(setup.groups["ls"].records) for setup in (follows, other)] == [2, 3]
    first, second = tables(store(tmp_path, found), ["qm9"])
    assert rows(first)["LS"].cells[0].mean == pytest.approx(100.0)
    assert rows(second)["LS"].cells[0].mean == pytest.approx(300.0)


def test_a_set_split_takes_in_the_seed_that_equals_it() -> None:
    """Seed 0 with split 0 is the same run whether the split was set or follows the seed."""
    fixed = {"split_seed": "0"}
    found = [record("ls", seed, qm9(2.0), changes=fixed) for seed in (0, 1, 2)]
    (setup,) = setups(found)
    assert [run["settings"]["seed"] for run in setup.groups["ls"].records] == [0, 1, 2]
    assert setup.changes == {"split_seed": 0}
    follows, both = sorted(
        setups([*found, record("ls", 3, qm9(2.0))]), key=lambda setup: not setup.as_published
    )
    assert [len(one.groups["ls"].records) for one in (follows, both)] == [2, 3]


def test_a_repeated_seed_is_named(tmp_path: Path) -> None:
    found = [record("ls", 0, qm9(2.0)), record("ls", 0, qm9(3.0)), record("ls", 1, qm9(3.0))]
    (table,) = tables(store(tmp_path, found), ["qm9"])
    assert rows(table)["LS"].cells[0].mean == pytest.approx(200.0)
    assert any("LS: the store holds seed 0 more than once" in note for note in table.notes)


@pytest.mark.usefixtures("undrawn")
def test_data_are_not_mixed(tmp_path: Path) -> None:
    """What is in a folder tells data apart, and not where it lies."""

    def on(place: str, seed: int, factor: float, **about: Any) -> dict[str, Any]:
        made = record("ls", seed, qm9(factor), changes={"data": place})
        return made | {"data": about}

    found = [
        on("a", 0, 2.0, sizes={"train": 6, "test": 4}),
        on("moved", 1, 2.0, sizes={"train": 7, "test": 3}),  # another split of the same
        on("b", 0, 3.0, sizes={"train": 6, "test": 5}),
        on("c", 0, 4.0, sizes={"train": 6, "test": 5}, images="0123456789abcdef"),
    ]
    made = setups(found)
    assert [len(setup.groups["ls"].records) for setup in made] == [2, 1, 1]
    assert made[0].describe() == "as published, data a (11 tasks; 10 examples)"
    assert made[2].describe().endswith("data c (11 tasks; 11 examples; checksum 01234567)")
    assert len(tables(store(tmp_path / "s", found), ["qm9"])) == 3
    other = found[0] | {"tasks": found[0]["tasks"][:-1]}
    assert len(setups([found[0], other])) == 2
    weighty = [run | {"weights": WEIGHTS} for run in found]
    names = [path.stem for path in draw(weighty, tmp_path / "figures")]
    assert sum(name.startswith("weights_qm9") for name in names) == 3


def test_levels_are_rows_of_their_own(tmp_path: Path) -> None:
    found = [record("imtl-g", 0, qm9(2.0)), record("imtl-g@representation", 0, qm9(3.0))]
    (table,) = tables(store(tmp_path, found), ["qm9"])
    assert rows(table)["IMTL-G"].cells[0].mean == pytest.approx(100.0)
    extra = rows(table)["IMTL-G (representation)"]
    assert extra.cells[0].mean == pytest.approx(200.0)
    assert extra.cells[1].text == "–"


def test_delta_m_against_own_single_task_runs(tmp_path: Path) -> None:
    found = [record("ls", 0, qm9(3.0)), record("stl", 0, qm9(2.0)), record("stl", 1, qm9(2.5))]
    (table,) = tables(store(tmp_path, found), ["qm9"], "runs")
    expected = 100 * (3.0 / statistics.fmean([2.0, 2.5]) - 1)
    assert rows(table)["LS"].cells[0].mean == pytest.approx(expected)
    assert any("relative to our STL runs" in note for note in table.notes)
    (tmp_path / "2" / "results.json").unlink()
    (tmp_path / "1" / "results.json").unlink()
    with pytest.raises(SettingsError, match=r"needs STL runs of qm9 .*--method stl"):
        tables(tmp_path, ["qm9"], "runs")


def test_single_task_runs_that_cannot_tell(tmp_path: Path) -> None:
    """A task without a value in one STL run leaves Δm unknown."""
    unknown = qm9(2.0) | {"mu": None}
    found = [record("ls", 0, qm9(3.0)), record("stl", 0, qm9(2.0)), record("stl", 1, unknown)]
    (table,) = tables(store(tmp_path, found), ["qm9"], "runs")
    assert rows(table)["LS"].cells[0].mean is None
    assert rows(table)["LS"].cells[0].text == "unknown"


def test_a_setup_without_single_task_runs(tmp_path: Path) -> None:
    found = [record("ls", 0, qm9(3.0)), record("stl", 0, qm9(2.0))]
    found += [record("ls", 0, qm9(3.0), changes={"molecules": "1000"})]
    first, second = tables(store(tmp_path, found), ["qm9"], "runs")
    assert rows(first)["LS"].cells[0].mean == pytest.approx(50.0)
    assert rows(second)["LS"].cells[0].mean == pytest.approx(200.0)
    assert any("no STL runs in this setup, so Δm of ours is" in note for note in second.notes)
    assert not any("no STL runs" in note for note in first.notes)


def test_full_table_has_a_row_for_each(tmp_path: Path) -> None:
    (table,) = tables(store(tmp_path, [record("ls", 0, qm9(2.0))]), ["qm9-full"])
    by_label = rows(table)
    assert by_label["LS, ours"].cells[2].parts() == ("121.15",)
    assert by_label["LS, paper"].cells[2].parts() == ("73.57",)
    assert "UW, ours" not in by_label
    (whole,) = tables(tmp_path, ["qm9-full"], everything=True)
    assert [cell.text for cell in rows(whole)["UW, ours"].cells] == ["not run"] * 12
    assert rows(whole)["Aligned-MTL-UB, paper"].cells[10].parts() == ("0.098",)


def test_faces_are_printed_times_ten(tmp_path: Path) -> None:
    test = {"age": 0.135, "gender": 93.0, "ethnicity": 84.0}
    entry = record("ls", 0, test, benchmark="utkface")
    (table,) = tables(store(tmp_path, [entry]), ["utkface"])
    assert rows(table)["LS"].cells[0].parts() == ("1.35",)
    assert any("RLW is printed as -0.31" in note for note in table.notes)


def test_delta_m_is_explained_where_it_is_shown(tmp_path: Path) -> None:
    classes = dict.fromkeys((task.name for task in registry.find("cifar-mtl")().tasks), 90.0)
    entry = record("ls", 0, classes, benchmark="cifar-mtl", figures={"accuracy": 70.0})
    (table,) = tables(store(tmp_path, [entry]), ["cifar-chest"])
    assert rows(table)["LS"].cells[0].parts() == ("70.00",)
    assert not any("Δm of ours" in note for note in table.notes)


def test_every_table_of_the_paper_without_any_run(tmp_path: Path) -> None:
    made = tables(tmp_path, list(NAMES), everything=True)
    assert [table.name for table in made] == list(NAMES)
    for table in made:
        assert all(len(row.cells) == len(table.columns) for row in table.rows)
        assert "not run" in markdown(table)
    for table in tables(tmp_path, list(NAMES)):
        assert (table.rows, table.columns[6:]) == ((), ())
        assert "not run" in markdown(table) or "not measured" in markdown(table)
        assert "tabular" in latex(table)
    assert tables(tmp_path) == []
    with pytest.raises(DataError, match="no table 'qm11': give one of qm9"):
        tables(tmp_path, ["qm11"])


def test_run_time(tmp_path: Path) -> None:
    timings = {
        "machine": "2 CPU cores",
        "torch": "2",
        "rounds": 12,
        "rounds_of_parameters": 3,
        "rows": [
            {"method": "ls", "level": "losses", "qm9": {"seconds": 0.05, "over_ls": [1, 1, 1]}},
            {
                "method": "mgda",
                "level": "parameters",
                "qm9": {"seconds": 0.5, "over_ls": [9.5, 9, 10]},
            },
        ],
    }
    (tmp_path / "run-time.json").write_text(json.dumps(timings))
    assert len(tables(tmp_path)[0].rows) == 2
    (table,) = tables(tmp_path, ["run-time"], everything=True)
    by_label = {label.split("  [")[0]: row for label, row in rows(table).items()}
    assert [cell.parts() for cell in by_label["MGDA"].cells[3:]] == [
        ("500.0",),
        ("9.50",),
        ("10.06",),
    ]
    assert by_label["MGDA"].cells[0].text == "not run"
    assert by_label["BayesAgg"].cells[5].parts() == ("1.06",)
    assert "12 interleaved rounds (3 for gradients of shared parameters)" in " ".join(table.notes)


def test_text_in_latex() -> None:
    assert escaped("ε_HOMO (meV)") == r"$\epsilon_{\mathrm{HOMO}}$ (meV)"
    assert escaped("100 % of a_long_name & more") == r"100 \% of a\_long\_name \& more"
    assert escaped("R^2") == r"$R^{\mathrm{2}}$"
    assert Cell(-1234.56, 7.0, 1).parts() == ("-1,234.6", "7.0")


def every(folder: Path) -> list[Table]:
    found = [record("ls", seed, qm9(2.0 + seed)) for seed in (0, 1)] + [record("uw", 0, qm9(1.5))]
    return tables(store(folder, found), list(NAMES), everything=True)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    path = write(every(tmp_path / "store"), "latex", tmp_path / "out")
    assert path.name == "report.tex"
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", path.name],
        cwd=path.parent, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("no booktabs here")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_latex_is_balanced(tmp_path: Path) -> None:
    made = every(tmp_path)
    for table in made:
        text = latex(table)
        lines = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len(lines) >= len(table.rows)
        for line in lines[-len(table.rows) :]:
            assert line.count(" & ") == len(table.columns)
        assert text.count("{") == text.count("}")
        assert all(ord(letter) < 0x2000 for letter in text), "a sign that pdfLaTeX does not know"
    assert document(made).count(r"\begin{table}") == len(made)


def test_forms_on_the_command_line(tmp_path: Path) -> None:
    folder = store(tmp_path / "s", [record("ls", 0, qm9(2.0)), record("ls", 1, qm9(3.0))])
    command = ["report", str(folder), "--table", "qm9"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "150.0 ± 70.7" in shown.output
    text = CliRunner().invoke(app, [*command, "--format", "md"]).output
    assert "| LS | **150.0 ± 70.7** | 177.6 ± 3.4 |" in text
    assert (
        r"$\mathbf{150.0 \pm 70.7}$"
        in CliRunner().invoke(app, [*command, "--format", "latex"]).output
    )
    wrong = CliRunner().invoke(app, [*command, "--format", "html"])
    assert wrong.exit_code == 2
    assert CliRunner().invoke(app, ["report", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.usefixtures("undrawn")
def test_a_table_without_a_row_is_not_shown_and_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    out = tmp_path / "out"
    command = ["report", str(tmp_path / "s"), "--table", "qm9", "--table", "run-time"]
    for more in ([], ["--format", "md", "--out", str(out / "own.md")]):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 0, done.output
        assert "no tables" in done.output
        assert "QM9" not in done.output
    assert not (out / "own.md").exists()
    assert "QM9" in CliRunner().invoke(app, [*command, "--all-rows"]).output


@pytest.mark.parametrize(("form", "name"), [("md", "own.md"), ("latex", "own.tex")])
@pytest.mark.usefixtures("undrawn")
def test_figures_lie_beside_a_file_of_tables(form: str, name: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "s", [record("ls", 0, qm9(2.0))])
    out = tmp_path / "out" / name
    command = ["report", str(folder), "--out", str(out)]
    for given in (["--format", form], []):  # which the name of the file says
        done = CliRunner().invoke(app, [*command, *given])
        assert done.exit_code == 0, done.output
        assert out.is_file()
        assert (tmp_path / "out" / "figures" / "flow.png").is_file()
        out.unlink()
    other = {"md": "latex", "latex": "md"}[form]
    done = CliRunner().invoke(app, [*command, "--format", other])
    assert done.exit_code == 2
    assert f"format = '{other}' is not what" in done.output
    assert not out.exists()


@pytest.mark.usefixtures("undrawn")
def test_unreadable_results_are_named_once(tmp_path: Path) -> None:
    folder = store(tmp_path / "s", [record("ls", 0, qm9(2.0)), record("ls", 1, qm9(3.0))])
    (folder / "1" / "results.json").write_text("{")
    command = ["report", str(folder), "--table", "qm9", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.output.count("warning: left out: no readable results file at") == 1
    assert str(folder / "1" / "results.json") in done.output


def shown(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(table))
    return cast(io.StringIO, console.file).getvalue()


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_nothing_is_cut_in_a_terminal(width: int, tmp_path: Path) -> None:
    """Every number in one piece in a block that has the row's name, whatever the width."""
    found = [record("ls", seed, qm9(200.0 + seed)) for seed in (0, 1)]
    for table in tables(store(tmp_path, found), ["qm9", "qm9-full"]):
        text = shown(table, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert {str(cell) for row in table.rows for cell in row.cells if cell.parts()} <= {
            number for line in text.splitlines() for number in re.findall(r"\S+(?: ± \S+)?", line)
        }
        blocks = text.count("───\n")
        if width > 30:  # else names of rows take two lines
            assert all(text.count(f"\n{row.label} ") == blocks for row in table.rows)
        if width == 80:
            assert (blocks > 1) == (table.name == "qm9-full")
        words = " ".join(text.split())
        assert all(note in words for note in table.notes)


def test_rows_of_one_name_are_told_apart_in_every_part_of_a_table() -> None:
    columns = [Column("method", words=True), *map(Column, ("error", "seconds", "minutes"))]
    numbers = [Cell(float(number), decimals=1) for number in range(3)]
    rows = tuple(Row("linear", (Cell(text=name), *numbers)) for name in ("LS", "UW"))
    table = Table("t", "t", tuple(columns), rows)
    assert "linear  LS        0.0      1.0      2.0\n" in shown(table, 40)
    parts = shown(table, 36)
    for name in ("LS", "UW"):
        assert f"linear, method {name}    0.0      1.0\n" in parts
        assert f"linear, method {name}      2.0\n" in parts


def test_columns_of_a_group_stay_together() -> None:
    columns = [Column(title, group) for group in ("first", "second") for title in ("ours", "paper")]
    rows = (Row("a", tuple(Cell(1000.0 + n) for n in range(4))),)
    heads = [line.split() for line in shown(Table("t", "t", tuple(columns), rows), 35).splitlines()]
    assert heads.count(["first", "first"]) == heads.count(["second", "second"]) == 1


def test_no_difference_to_other_data(tmp_path: Path) -> None:
    """Fewer faces, in the same setup otherwise: 150 of them are no 16,595."""
    test = {"age": 0.135, "gender": 93.0, "ethnicity": 84.0}
    whole = record("ls", 0, test, benchmark="utkface")
    few = record("ls", 0, test, benchmark="utkface", examples=105)
    for entry, heads in ((whole, 3), (few, 2)):
        folder = store(tmp_path / str(heads), [entry])
        (table,) = tables(folder, ["utkface"])
        assert [c.title for c in table.columns if c.group.startswith("Δm")] == [
            "ours", "paper", "ours − paper"][:heads]  # fmt: skip
        (told,) = [note for note in table.notes if "training examples" in note]
        assert f"{16595 if heads == 3 else 105:,} training examples (the paper's: about" in told


def test_other_tasks_have_nothing_of_the_papers_beside_them(tmp_path: Path) -> None:
    ten = {"source": "cifar10"}
    classes = registry.find("cifar-mtl")(source="cifar10").tasks  # type: ignore[call-arg]
    test = dict.fromkeys((task.name for task in classes), 90.0)
    entry = record(
        "ls", 0, test, benchmark="cifar-mtl", figures={"accuracy": 70.0}, changes=ten
    )  # fmt: skip
    (table,) = tables(store(tmp_path, [entry]), ["cifar-chest"])
    assert [column.title for column in table.columns] == ["CIFAR-MTL: accuracy (%) ↑"]
    assert any("not the paper's tasks" in note for note in table.notes)
    (every,) = tables(tmp_path, ["cifar-mtl"])  # the benchmark's own: each task, then the figure
    assert [column.title for column in every.columns][-2:] == ["truck ↑", "accuracy ↑"]


def test_a_benchmark_of_ones_own_has_a_table(tmp_path: Path) -> None:
    """Nothing is known of it but what its record says."""
    entry = record("ls", 0, {"age": 0.1, "gender": 93.0, "ethnicity": 84.0}, benchmark="utkface")
    options = {"depth": 4, "data": "here"}
    entry |= {
        "benchmark": {"name": "mine", "options": options},
        "benchmark_title": "Mine",
        "usual": {"depth": 4, **{k: entry["settings"][k] for k in ("epochs", "batch_size")}},
    }
    for task in entry["tasks"]:
        task["single_task"] = None
    entry["best"]["test_delta_m"] = None
    (table,) = tables(store(tmp_path, [entry]))
    assert (table.name, table.title.partition(":")[0]) == ("mine", "Mine")
    assert [column.title for column in table.columns] == [
        "age (×0.1) ↓",
        "gender ↑",
        "ethnicity ↑",
    ] or [column.title for column in table.columns] == ["age ↓", "gender ↑", "ethnicity ↑"]
    assert [cell.parts() for cell in table.rows[0].cells] == [("0.1000",), ("93.00",), ("84.00",)]
    assert "as by default" in table.notes[0]
    # Nor do digits hang on how a single-task number is written: 1e-06 has no point.
    entry["tasks"][0]["single_task"], entry["tasks"][1]["single_task"] = 1e-6, 1.0
    entry["best"]["test"] |= {"age": 1.234e-6, "gender": 0.4321}
    (table,) = tables(store(tmp_path / "small", [entry]))
    assert [str(cell) for cell in table.rows[0].cells[:2]] == ["0.000001234", "0.432"]


def test_runs_as_a_frame(tmp_path: Path) -> None:
    found = [record("ls", seed, qm9(2.0 + seed)) for seed in (0, 1)]
    found += [record("imtl-g@representation", 0, qm9(1.5))]
    frame = load_frame(store(tmp_path, found))
    assert list(frame["method"]) == ["ls", "ls", "imtl-g@representation"]
    assert list(frame["seed"]) == [0, 1, 0]
    assert set(frame["training_examples"]) == {110831}
    means = frame.groupby("method")["delta_m"].mean()
    assert means["ls"] == pytest.approx(150.0)
    assert frame["test.mu"].tolist() == [record["best"]["test"]["mu"] for record in found]
    assert {"benchmark.width", "settings.learning_rate", "method.level"} <= {*frame.columns}
