"""Notes below the tables: what ours and the paper's numbers stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments import published
from experiments.report.collect import Setup
from experiments.report.plans import Plan
from experiments.runner import BENCHMARKS

__all__ = ["notes_of"]


def notes_of(
    plan: Plan, found: Mapping[str, Setup], single: Mapping[str, Sequence[float | None]] | None
) -> list[str]:
    """What a table's readers must know, benchmark by benchmark; arguments as for `build`."""
    notes = []
    for benchmark in dict.fromkeys(measure.benchmark for measure in plan.measures):
        title = BENCHMARKS[benchmark].title
        setup = found.get(benchmark)
        if setup is None:
            notes.append(f"{title}: not run.")
            continue
        seeds = sorted({len(group.records) for group in setup.groups.values()})
        text = "1 seed" if seeds == [1] else f"{'/'.join(map(str, seeds))} seeds"
        notes.append(
            f"{title}, ours: {setup.describe()}; {text}; test split, best epoch on validation."
        )
        if not setup.as_published and benchmark != "digits":
            notes.append(f"{title}: this is not the paper's setup, so ours and the paper's differ.")
        notes += [
            f"{group.title}: the store holds seed {', '.join(map(str, group.repeated))} more than "
            "once; shown is the last in the order of folders."
            for group in setup.groups.values()
            if group.repeated
        ]
        searched = [g for g in setup.groups.values() if g.tried > 1]
        notes += [
            f"{group.title}: best on validation of {group.tried} configurations."
            for group in searched
        ]
        if any(m.what == "delta_m" and m.benchmark == benchmark for m in plan.measures):
            own = single is not None and benchmark in single
            row = "our STL runs" if own else BENCHMARKS[benchmark].single_task_source
            without = "no STL runs in this setup, so " if single is not None and not own else ""
            notes.append(f"{title}: {without}Δm of ours is relative to {row}.")
        if benchmark != "digits":
            table = published.load(benchmark)
            notes += [
                f"{title}: {e.row} {e.task} is printed as {e.printed:g}; "
                f"shown is {e.corrected:g}, since {e.reason}."
                for e in table.errata
            ]
            notes += [
                f"{title}: Δm of {d.row} is printed as {d.printed:g}; {d.reason}."
                for d in table.doubts
            ]
    return notes
