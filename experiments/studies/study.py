"""What a study is, and what is left of one: a results file, figures and tables."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.files import prepare_folder, write_json, write_text
from experiments.report.style import write_figure
from experiments.studies import question
from experiments.tables import table as report
from experiments.tables.render import markdown
from experiments.training.environment import environment

RESULTS = "results.json"
Row = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a study is run with.

    Attributes:
        folder: Where its runs may leave files.
        seed: The first seed.
        quick: The smallest setting: it shows that everything works, not what comes out.
        told: Is called with a line now and then.
    """

    folder: Path
    seed: int = 0
    quick: bool = False
    told: Callable[[str], object] = print


@dataclass(frozen=True)
class Table:
    """Numbers for people.

    Attributes:
        title: What they are.
        columns: ``{heading: (key of a row, format)}``. ``KEY_spread`` of a row, if there is one, is
            shown behind KEY.
        rows: The numbers; None where there is none.
        labels: How many of the first columns hold words.
    """

    title: str
    columns: Mapping[str, tuple[str, str]]
    rows: Sequence[Row]
    labels: int = 1

    def cells(self, row: Row) -> list[str]:
        """A row as text."""
        return [self._cell(row, key, spec) for key, spec in self.columns.values()]

    @staticmethod
    def _cell(row: Row, key: str, spec: str) -> str:
        if row.get(key) is None:
            return "–"
        around = row.get(f"{key}_spread")
        return format(row[key], spec) + ("" if around is None else f" ± {around:{spec}}")

    def shown(self) -> report.Table:
        """For the renderers of reports."""
        heads = list(self.columns)
        rows = []
        for row in self.rows:
            first, *others = self.cells(row)
            rows.append(report.Row(first, tuple(report.Cell(text=text) for text in others)))
        columns = [report.Column(h, words=n < self.labels) for n, h in enumerate(heads)]
        return report.Table("study", self.title, tuple(columns[1:]), tuple(rows))


@dataclass(frozen=True)
class Findings:
    """What came out.

    Attributes:
        settings: What decided the numbers.
        tables: The numbers, by name.
        figures: ``{name: maker}``.
        notes: What was left out, and why.
    """

    settings: Mapping[str, Any]
    tables: Mapping[str, Table]
    figures: Mapping[str, Callable[[], Figure]]
    notes: Sequence[str] = field(default=())


def conduct(name: str, context: Context) -> Findings:
    """Run the study called ``name`` and write ``results.json``, ``tables.md`` and its figures.

    Raises:
        SettingsError: There is no such study.
        OutputError: The folder cannot be written.
        DataError: A data set is missing.
    """
    asked = question(name)
    run: Callable[[Context], Findings] = importlib.import_module(f"experiments.studies.{name}").run
    prepare_folder(context.folder)
    wall, processor = time.perf_counter(), time.process_time()
    outcome = run(context)
    record = {
        "study": name,
        "question": asked,
        "quick": context.quick,
        "seed": context.seed,
        "settings": dict(outcome.settings),
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
        "environment": environment(torch.device("cpu")),
        "notes": list(outcome.notes),
        "tables": {name: list(table.rows) for name, table in outcome.tables.items()},
    }
    write_json(context.folder / RESULTS, record)
    text = "\n".join(markdown(table.shown()) for table in outcome.tables.values())
    write_text(context.folder / "tables.md", text)
    for figure, make in outcome.figures.items():
        write_figure(make, context.folder / figure)
    return outcome


def summary(runs: Sequence[Row], keys: Sequence[str]) -> Row:
    """Mean of each measure over runs, and its ``_spread``: the sample standard deviation."""
    found: Row = {}
    for key in keys:
        values = [run[key] for run in runs]
        found[key] = fmean(values)
        found[f"{key}_spread"] = stdev(values) if len(values) > 1 else None
    return found
