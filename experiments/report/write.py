"""A report: all tables and figures that a store allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from experiments.errors import SettingsError
from experiments.files import prepare_folder, write_text
from experiments.report.collect import Setup, mean_std, setups
from experiments.report.comparison import build
from experiments.report.latex import document
from experiments.report.markdown import markdown
from experiments.report.plans import TABLES
from experiments.report.run_time import load, run_time
from experiments.report.table import Table
from experiments.runner import records

__all__ = ["FORMATS", "NAMES", "Format", "SingleTask", "tables", "write"]

Format = Literal["terminal", "md", "latex"]
SingleTask = Literal["published", "runs"]
FORMATS: Final = get_args(Format)
RUN_TIME: Final = "run-time"
NAMES: Final = (*TABLES, RUN_TIME)
_SUFFIX: Final = {"md": ".md", "latex": ".tex"}
_STL: Final = "stl"

Record = Mapping[str, Any]


def tables(
    folder: Path,
    names: Sequence[str] | None = None,
    single_task: SingleTask = "published",
    warn: Callable[[str], object] = warnings.warn,
) -> list[Table]:
    """The tables of a store.

    A store with several setups of a benchmark (the paper's, and a small one, say) gives its tables
    once for each.

    Args:
        folder: The store.
        names: Which; None for those that have something to show.
        single_task: Take Δm against the published single-task rows, or against STL runs; a setup
            without such runs keeps the published rows, and a note says so.
        warn: Is told of every results file that cannot be read.

    Raises:
        DataError: No such folder, or no table of a name.
        SettingsError: ``single_task="runs"`` and no setup has such runs.
    """
    found = setups(records(folder, warn))
    asked = {m.benchmark for n in names or TABLES if n in TABLES for m in TABLES[n].measures}
    relevant = [setup for setup in found if setup.benchmark in asked]
    if single_task == "runs" and relevant and not any(_STL in s.groups for s in relevant):
        benchmark = relevant[0].benchmark
        raise SettingsError(
            f"single-task = 'runs' needs STL runs of {benchmark} in the same setup: add them "
            f"with python -m experiments run {benchmark} --methods {_STL}, or take published"
        )
    made: list[Table] = []
    for name in names or TABLES:
        if name == RUN_TIME:
            continue
        wanted = [m.benchmark for m in TABLES[name].measures] if name in TABLES else []
        main = [s for s in found if wanted and s.benchmark == wanted[0]]
        if names is None and not any(s.benchmark in wanted for s in found):
            continue
        alternatives: list[Setup | None] = [*main] if main else [None]
        for shown in alternatives:
            by_name = {s.benchmark: s for s in reversed(found) if s.benchmark in wanted}
            if shown is not None:
                by_name[shown.benchmark] = shown
            rows = _single(by_name) if single_task == "runs" else None
            made.append(build(name, by_name, rows))
    timings = load(folder)
    if RUN_TIME in (names or ()) or (names is None and timings is not None):
        made.append(run_time(timings))
    return made


def write(made: Sequence[Table], form: Format, path: Path) -> Path:
    """All tables into one file; a LaTeX file is a document that compiles.

    Raises:
        SettingsError: The terminal is no file.
        OutputError: The file cannot be written.
    """
    if form == "terminal":
        raise SettingsError("format = 'terminal' has no file: give md or latex, or leave --out out")
    text = document(made) if form == "latex" else "\n".join(map(markdown, made))
    if path.suffix != _SUFFIX[form]:
        path = path / f"report{_SUFFIX[form]}"
    prepare_folder(path.parent)
    write_text(path, text)
    return path


def _single(found: Mapping[str, Setup]) -> dict[str, list[float | None]]:
    """Mean test metrics of the STL runs of each benchmark that has some.

    None where the split of a run cannot tell.
    """
    rows: dict[str, list[float | None]] = {}
    for benchmark, setup in found.items():
        group = setup.groups.get(_STL)
        if group is not None:
            names = [task["name"] for task in group.records[0]["tasks"]]
            rows[benchmark] = [
                mean_std([record["best"]["test"][name] for record in group.records])[0]
                for name in names
            ]
    return rows
