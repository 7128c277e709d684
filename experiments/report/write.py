"""A report: all tables and figures that a store allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from experiments.errors import DataError, SettingsError
from experiments.files import prepare_folder, write_text
from experiments.report.calibration import calibration
from experiments.report.collect import Setup, mean_std, setups
from experiments.report.comparison import build
from experiments.report.plans import TABLES, Plan, of_records
from experiments.report.recorded import recorded
from experiments.report.run_time import load, run_time
from experiments.runner import records
from experiments.tables.render import document, markdown
from experiments.tables.table import Table

Format = Literal["terminal", "md", "latex"]
SingleTask = Literal["published", "runs"]
FORMATS: Final = get_args(Format)
RUN_TIME: Final = "run-time"
#: Tables of more than results, which are made where they are asked for.
BESIDE: Final = {"calibration": calibration, "record": recorded}
NAMES: Final = (*TABLES, RUN_TIME)
"""Tables of the paper; those of other benchmarks have the benchmark's name."""
SUFFIX: Final = {"md": ".md", "latex": ".tex"}
_STL: Final = "stl"

Record = Mapping[str, Any]


def tables(
    folder: Path,
    names: Sequence[str] | None = None,
    single_task: SingleTask = "published",
    warn: Callable[[str], object] = warnings.warn,
    *,
    everything: bool = False,
) -> list[Table]:
    """The tables of a store; of a league without the trials that chose its values.

    A store with several setups of a benchmark (the paper's, and a small one, say) gives its tables
    once for each. A benchmark that no table of the paper shows has one of its own, of all tasks.

    Args:
        folder: The store.
        names: Which, of :data:`NAMES`, benchmarks in the store, ``"calibration"``, which takes
            seconds a run, or ``"record"``; None for the others that have something to show.
        single_task: Take Δm against the published single-task rows, or against STL runs; a setup
            without such runs keeps the published rows, and a note says so.
        warn: Is told of every results file that cannot be read.
        everything: Also the rows of the paper's tables that were not run.

    Raises:
        DataError: No such folder, or no table of a name.
        SettingsError: ``single_task="runs"`` and no setup has such runs.
    """
    found = setups(records(folder, warn, trials=False))
    known = {**{s.benchmark: of_records(s.records, s.title) for s in found}, **TABLES}
    wanted = [n for n in names or _with_runs(known, found) if n not in (RUN_TIME, *BESIDE)]
    if unknown := [name for name in wanted if name not in known]:
        raise DataError(
            f"no table {unknown[0]!r}: give one of {', '.join([*known, RUN_TIME, *BESIDE])}"
        )
    asked = {m.benchmark for name in wanted for m in known[name].measures}
    _require_single(single_task, [setup for setup in found if setup.benchmark in asked])
    made: list[Table] = []
    for name in wanted:
        plan = known[name]
        benchmarks = [m.benchmark for m in plan.measures]
        main = [s for s in found if s.benchmark == benchmarks[0]]
        usual = {s.benchmark: s for s in reversed(found) if s.benchmark in benchmarks}
        for by_name in [usual | {s.benchmark: s} for s in main] or [usual]:
            if name not in TABLES:
                plan = of_records(by_name[name].records, by_name[name].title)
            rows = _single(by_name) if single_task == "runs" else None
            made.append(build(name, plan, by_name, rows, everything=everything))
    timings = load(folder)
    if RUN_TIME in (names or ()) or (names is None and timings is not None):
        made.append(run_time(timings, everything=everything))
    for name, make in BESIDE.items():
        if name in (names or ()):
            made += make(folder, warn)
    return made


def _with_runs(known: Mapping[str, Plan], found: Sequence[Setup]) -> list[str]:
    """Tables of the paper that have something to show, then benchmarks that none of them shows."""
    run = {setup.benchmark for setup in found}
    shown = {m.benchmark for name in TABLES for m in TABLES[name].measures}
    paper = [name for name in TABLES if run & {m.benchmark for m in TABLES[name].measures}]
    return [*paper, *(name for name in known if name in run - shown)]


def _require_single(single_task: SingleTask, setups: Sequence[Setup]) -> None:
    if single_task == "runs" and setups and not any(_STL in setup.groups for setup in setups):
        benchmark = setups[0].benchmark
        raise SettingsError(
            f"single-task = 'runs' needs STL runs of {benchmark} in the same setup: add them "
            f"with python -m experiments run {benchmark} --method {_STL}, or take published"
        )


def write(made: Sequence[Table], form: Literal["md", "latex"], path: Path) -> Path:
    """All tables into one file; a LaTeX file is a document that compiles.

    Raises:
        OutputError: The file cannot be written.
    """
    text = document(made) if form == "latex" else "\n".join(map(markdown, made))
    if path.suffix != SUFFIX[form]:
        path = path / f"report{SUFFIX[form]}"
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
