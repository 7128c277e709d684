"""The sampler itself: which faults it finds, and that it can tell a test that sees one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import mutant, places, planted
from tests.mutation.report import reasons, write
from tests.mutation.verdict import chosen

SOURCE = '''"""Docstring 1."""
LIMIT: int = 3

def total(values: list[int] | None, *, scale: float = 2.0) -> float:
    """Sum of 1 or 2 values."""
    if values is None or len(values) < 1:
        raise ValueError(f"{1 + 1} values, not {values}")
    return scale * sum(values) - LIMIT

def idle(x):
    return x + 1
'''


def test_faults_are_small_and_spare_what_does_not_run() -> None:
    found = [mutant("a.py", SOURCE, n) for numbers in places(SOURCE) for n in numbers]
    changes = {(one.function, one.before, one.after) for one in found if one is not None}
    head = "def total(values: list[int] | None, *, scale: float={})->float:".replace(")->", ") -> ")
    test, last = "if values is None or len(values) < 1:", "return scale * sum(values) - LIMIT"
    assert changes >= {
        ("", "LIMIT: int = 3", "LIMIT: int = 4"),
        ("total", head.format("2.0"), head.format("4.0")),
        ("total", test, "if values is None and len(values) < 1:"),
        ("total", test, "if len(values) < 1:"),
        ("total", test, "if values is not None or len(values) < 1:"),
        ("total", test, "if values is None or len(values) <= 1:"),
        ("total", test, "if values is None or len(values) < 2:"),
        ("total", test, "if not (values is None or len(values) < 1):"),
        ("total", last, "return scale * sum(values) + LIMIT"),
        ("total", last, "return scale / sum(values) - LIMIT"),
        ("total", last, "return scale * sum(values)"),
        ("idle", "return x + 1", "return x"),
    }
    assert all("Docstring" not in before and "Sum" not in before for _, before, _ in changes)
    assert all("list[int] | None" in after for _, _, after in changes if "values: list" in after)
    raised = [after for _, before, after in changes if before.startswith("raise")]
    assert raised == ["pass"]


def test_a_planted_fault_keeps_the_lines_of_the_file() -> None:
    where = [node.lineno for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Return)]
    for numbers in places(SOURCE):
        tree = planted(SOURCE, numbers[0])
        returns = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)]
        assert returns == where


def test_tests_that_killed_come_first_then_cheap_ones() -> None:
    seconds = {"slow": 9.0, "cheap": 0.1, "known": 1.0, "middle": 2.0}
    assert chosen(list(seconds), seconds, {"known": 1}, 4.0) == ["known", "cheap", "middle"]
    assert chosen(["slow"], seconds, {}, 4.0) == ["slow"]  # one always runs


PACKAGE = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "bayesagg_pyro/__init__.py": "",
    "bayesagg_pyro/engine.py": SOURCE,
    "tests/test_total.py": """
import pytest
from bayesagg_pyro.engine import total

@pytest.mark.parametrize("values", [[1, 2], [5]])
def test_total(values):
    assert total(values) == 2.0 * sum(values) - 3

def test_nothing():
    with pytest.raises(ValueError):
        total(None)

def test_wrong():
    assert total([1]) == 0
""",
}
JUDGE = """
import json, sys
from pathlib import Path
from tests.mutation.__main__ import judge, sample, sources
from tests.mutation.tracing import recorded
root = Path(sys.argv[1])
coverage = recorded(root, root / "lines", sources(root))
found = sample(root, 16, 0, "")
results = judge(root, found, coverage, {}, 5.0, 1)
print(json.dumps([sorted(coverage.seconds), list(results.values())]))
"""


def test_a_tree_whose_tests_see_some_faults(tmp_path: Path) -> None:
    """In a process of its own, which has not imported the package."""
    root = tmp_path.resolve()
    for name, text in PACKAGE.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    # What `make coverage` does, of the one test file; a failing test is no test of the package.
    pytest.importorskip("pytest_cov")
    plugins = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # seconds in every process
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_cov", "--cov=bayesagg_pyro",
         "--cov-context=test", "--cov-report=", "--junitxml=lines/tests.xml", "tests"],
        cwd=root, env={**plugins, "COVERAGE_FILE": "lines/lines"}, check=False,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(root)],
        cwd=Path(__file__).parents[2],
        env=plugins,
        capture_output=True,
        text=True,
        check=True,
    )
    tests, results = json.loads(done.stdout)
    assert tests == [f"tests/test_total.py::{name}" for name in
                     ("test_nothing", "test_total[values0]", "test_total[values1]")]  # fmt: skip
    status = {(one["function"], one["kind"]): one["status"] for one in results}
    assert {one["function"] for one in results} == {"", "total", "idle"}
    assert all(state == "survived" for (name, _), state in status.items() if name == "idle")
    killed = [one for one in results if one["status"] == "killed"]
    assert {one["function"] for one in killed} >= {"", "total"}
    assert all(one["by"] in tests for one in killed)
    assert (root / "bayesagg_pyro/engine.py").read_text(encoding="utf-8") == SOURCE


def test_reasons_stay_when_the_page_is_written_anew(tmp_path: Path) -> None:
    found = [mutant("a.py", SOURCE, numbers[0]) for numbers in places(SOURCE)]
    found = [one for one in found if one is not None]
    page = tmp_path / "survivors.md"
    write(page, found, {one.key: {"status": "survived"} for one in found})
    text = page.read_text(encoding="utf-8")
    assert set(reasons(text).values()) == {""}
    page.write_text(text.replace(f"`{found[0].key}`: ", f"`{found[0].key}`: The same."))
    statuses = {one.key: {"status": "killed"} for one in found[1:]}
    write(page, found, statuses | {found[0].key: {"status": "survived"}})
    assert reasons(page.read_text(encoding="utf-8")) == {found[0].key: "The same."}
