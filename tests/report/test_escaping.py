"""Names that are code in some format are text in every one."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bayesagg_pyro.diagnostics._report.page import Section, write_page
from experiments.files import write_json
from experiments.report import curves as figures
from experiments.report.figures import draw
from experiments.report.runs import comparison
from experiments.report.style import typeset
from experiments.studies.study import Table as StudyTable
from experiments.tables import escaping
from experiments.tables.render import latex, markdown, terminal
from experiments.tables.table import Cell, Column, Row, Table
from tests.compat.as_windows import refused
from tests.report.records import qm9, record

HOSTILE = (
    "a|b`c`\nd <img src=x onerror=alert(1)> & \" ' % $x$ # {y} ~ ^ \\input{z} _u_ *v* [w](x)"
    " [red]\x1b[2J\u202e\ud800"
)


def hostile_table() -> Table:
    cells = (Cell(text=HOSTILE), Cell(1.0))
    return Table(
        "t", HOSTILE, (Column(HOSTILE, HOSTILE), Column("x")), (Row(HOSTILE, cells),), (HOSTILE,)
    )


def test_markdown() -> None:
    text = markdown(hostile_table())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert "<" not in text.replace("&lt;", "")
    assert not re.search(r"(?<!\\)[`\[$~]", text)
    assert "\x1b" not in text
    text.encode()
    study = StudyTable("t", {"name": ("n", ""), "x": ("x", ".1f")}, [{"n": HOSTILE, "x": 1.0}])
    assert len([line for line in markdown(study.shown()).splitlines() if line[:1] == "|"]) == 3
    assert escaping.markdown("a_b ε_HOMO c-d") == "a_b ε_HOMO c-d"


def test_latex() -> None:
    text = latex(hostile_table())
    plain = text.replace(r"\textbackslash{}", "").replace(r"\{", "").replace(r"\}", "")
    assert plain.count("{") == plain.count("}")
    assert r"\input" not in text
    assert not re.search(r"(?<!\\)[%#]", text.replace("{%\n", ""))
    assert all(ord(letter) < 0x180 for letter in text)
    assert escaping.latex("\\_^~") == r"\textbackslash{}\_\textasciicircum{}\textasciitilde{}"
    # The star or bracket after the end of a row would be an argument of it.
    assert escaping.latex("[2pt]").startswith("{}[")
    assert escaping.latex("*").startswith("{}*")
    assert escaping.latex("猫") == "U+732B"


def shown(what: Any, console: type[Console] = Console) -> str:
    file = io.StringIO()
    console(file=file, width=1000, force_terminal=True, color_system=None).print(what)
    return file.getvalue()


def test_terminal() -> None:
    text = shown(terminal(hostile_table()))
    assert text.count("[red]") == 6
    assert "\u202e" not in text
    assert "\x1b[2J" not in text
    text.encode()
    for given in ("[red]x[/]", ":cat: [/nothing]", "\x1b[2J\x07"):
        assert given[:4] in shown(given, escaping.PlainConsole) or "\\x1b" in shown(
            given, escaping.PlainConsole
        )


def test_a_page_of_diagnostics(tmp_path: Path) -> None:
    section = Section(HOSTILE, [HOSTILE], notes=[HOSTILE])
    write_page(tmp_path / "page.html", HOSTILE, [section])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "\x1b" not in text
    assert text.count("&lt;img") == 6


@pytest.mark.usefixtures("plain_fonts")
def test_figures_and_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["$\\frac$ {_", "../../up", "../../up"]
    made = []
    for name in names:
        entry = record("ls", 0, qm9(2.0))
        entry["tasks"] = entry["tasks"][:2]
        for task in entry["tasks"]:
            task["symbol"] = "$ a\\_b^2 _c"
            task["unit"] = "$"
        validation = {task["name"]: 1.0 for task in entry["tasks"]}
        epoch = {"epoch": 1, "phase": "x", "score": 1.0, "validation": validation}
        stage = {"epoch": 1, "by_example": [[0.4, 0.6], [0.5, 0.5]], "applied": [0.4, 0.6]}
        entry |= {
            "title": name,
            "score_name": "$s",
            "metric": "$m$ \\x",
            "history": [epoch],
            "weights": [stage],
            "constant": {"validation": validation},
        }
        made.append(entry)
    paths = figures.draw(made, tmp_path / "figures")
    assert len(paths) == len(set(paths)) == 4
    assert {path.parent for path in paths} == {tmp_path / "figures"}
    assert [p.name for p in tmp_path.iterdir()] == ["figures"]
    made[0]["method"] = {**made[0]["method"], "name": "../../../evil"}
    monkeypatch.setattr("experiments.report.figures.write_figure", lambda _, path: path)
    for path in draw(made[:1], tmp_path / "report"):
        assert path.parent == tmp_path / "report"
    assert escaping.figure("_x $y$") == r" _x \$y\$"
    assert typeset("c_v") == r"c$_{\mathrm{v}}$"


@pytest.mark.parametrize(
    "name", ["../up", "..", "/etc/x", "a\0b", "", "x" * 500, "猫", "a/../b", "a:b", "NUL", "con.x"]
)
def test_file_names(name: str, tmp_path: Path) -> None:
    made = escaping.file_name(name)
    assert not refused(made)
    write_json(tmp_path / f"{made}.json", {})
    assert len(list(tmp_path.iterdir())) == 1
    assert escaping.file_name(name, {made}) != made


def test_a_title_from_a_file_in_the_terminal() -> None:
    entry = record("ls", 0, qm9(2.0))
    values = entry["best"]["test"]
    entry |= {
        "title": "[bold]x\x1b[2J",
        "metric": "[red]",
        "score_name": "[/]",
        "single_task_source": "[/nothing]",
        "timing": {"seconds": 1.0, "seconds_per_step": {"x": 1.0}},
        "history": [{"phase": "x"}],
        "constant": {"test": values, "test_figures": {}, "test_score": 1.0},
    }
    entry["best"] |= {"test_score": 1.0}
    text = shown(terminal(comparison([entry])))
    assert "[bold]x\\x1b[2J" in text
    assert "[red]" in text
