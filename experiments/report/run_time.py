"""The paper's table of run times, beside what ``python -m benchmarks.methods`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from experiments import published
from experiments.files.reading import NUMBER, json_file
from experiments.report.collect import title_of
from experiments.tables.table import MISSING, NOT_RUN, Cell, Column, Row, Table

FILE: Final = "run-time.json"
"""Name of the file with the timings, in a store."""

CASES: Final = {"cifar": "CIFAR-MTL", "qm9": "QM9"}

_TIMED: Final = {"seconds": NUMBER, "over_ls": [NUMBER]}
_PATTERN: Final = {
    "machine": str,
    "torch": str,
    "rounds": NUMBER,
    "rounds_of_parameters?": NUMBER,
    "rows": [{"method": str, "level": str, "cifar?": _TIMED, "qm9?": _TIMED}],
}

_LEVELS: Final = {
    "losses": "losses",
    "parameters": "gradients of shared parameters",
    "representation": "gradients of the representation",
}


def load(folder: Path) -> Mapping[str, Any] | None:
    """The timings in a store; None when there are none.

    Raises:
        DataError: The file is not in order, or cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    remedy = f"measure again with python -m benchmarks.methods --out {path}"
    found: Mapping[str, Any] = json_file(path, remedy, _PATTERN)
    return found


def run_time(timings: Mapping[str, Any] | None, *, everything: bool = False) -> Table:
    """Milliseconds of a step and the ratio to LS, ours beside the paper's ratio."""
    paper = published.other("run_time")
    base = next(row for row in paper["rows"] if row["method"] == "ls")
    printed = {(row["method"], row["level"]): row for row in paper["rows"]}
    measured = {(row["method"], row["level"]): row for row in (timings or {}).get("rows", ())}
    places = [place for place in printed if everything or place in measured]
    places += [place for place in measured if place not in printed]
    columns = []
    for case in CASES.values():
        columns += [Column(name, case) for name in ("ours, ms", "ours / LS", "paper / LS")]
    rows: list[Row] = []
    for level, name in _LEVELS.items():
        first = True
        for place in places:
            if place[1] != level:
                continue
            cells: list[Cell] = []
            for case in CASES:
                own = measured.get(place, {}).get(case)
                row = printed.get(place)
                cells += [
                    Cell(1e3 * own["seconds"], decimals=1) if own else NOT_RUN,
                    Cell(own["over_ls"][0], decimals=2) if own else NOT_RUN,
                    Cell(row[case] / base[case], decimals=2) if row else MISSING,
                ]
            title = title_of(place[0])
            rows.append(Row(f"{title}  [{name}]" if first else title, tuple(cells), rule=first))
            first = False
    return Table(
        "run-time",
        "Time of a training step, as a multiple of that of LS",
        tuple(columns),
        tuple(rows),
        tuple(_notes(timings, str(paper["source"]))),
    )


def _slow(timings: Mapping[str, Any]) -> str:
    rounds = timings.get("rounds_of_parameters", timings["rounds"])
    return "" if rounds == timings["rounds"] else f" ({rounds} for gradients of shared parameters)"


def _notes(timings: Mapping[str, Any] | None, source: str) -> list[str]:
    notes = [f"Paper: {source}."]
    if timings is None:
        notes.append("Ours: not measured; python -m benchmarks.methods --out DIR/run-time.json")
    else:
        notes.append(
            f"Ours: {timings['machine']}, torch {timings['torch']}; medians of "
            f"{timings['rounds']} interleaved rounds{_slow(timings)}, forward, backward and Adam "
            "on the benchmark's network and batch; ratios are medians within rounds."
        )
    return notes
