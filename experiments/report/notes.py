"""Notes below the tables: what ours and the paper's numbers stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments import published, registry
from experiments.report.collect import Setup
from experiments.report.plans import DELTA_M, Plan
from experiments.training.results import contents


def notes_of(
    plan: Plan, found: Mapping[str, Setup], single: Mapping[str, Sequence[float | None]] | None
) -> list[str]:
    """What a table's readers must know, benchmark by benchmark; arguments as for `build`."""
    notes = []
    for benchmark in dict.fromkeys(measure.benchmark for measure in plan.measures):
        setup, table = found.get(benchmark), published.find(benchmark)
        if setup is None:
            notes.append(f"{registry.find(benchmark).title}: not run.")
            continue
        title = setup.title
        count = " or ".join(f"{n:,}" for n in setup.examples) or "an unknown number of"
        paper = f" (the paper's: about {table.training_examples:,})" if table else ""
        seeds = sorted({len(group.records) for group in setup.groups.values()})
        runs = "1 seed" if seeds == [1] else f"{'/'.join(map(str, seeds))} seeds"
        notes.append(
            f"{title}, ours: {count} training examples{paper}; {setup.describe()}; {runs}; test "
            "split, best epoch on validation."
        )
        first = setup.records[0]
        notes.append(f"{title}, data of seed {first['settings']['seed']}: {contents(first)}.")
        if table and not setup.same_tasks:
            notes.append(f"{title}: these are not the paper's tasks, so its numbers are left out.")
        elif table and not setup.comparable:
            notes.append(
                f"{title}: this is not the paper's setup, so ours and the paper's do not compare."
            )
        notes += [
            f"{group.title}: the store holds seed {', '.join(map(str, group.repeated))} more than "
            "once; shown is the last in the order of folders."
            for group in setup.groups.values()
            if group.repeated
        ]
        notes += [
            f"{group.title}: best on validation of {group.tried} configurations."
            for group in setup.groups.values()
            if group.tried > 1
        ]
        if any(m.what == DELTA_M and m.benchmark == benchmark for m in plan.measures):
            own = single is not None and benchmark in single
            row = "our STL runs" if own else setup.records[0].get("single_task_source")
            without = "no STL runs in this setup, so " if single is not None and not own else ""
            notes.append(f"{title}: {without}Δm of ours is relative to {row}.")
        if table and setup.same_tasks:
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
