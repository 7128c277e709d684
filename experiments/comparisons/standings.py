"""A league: scores of every entry by seed, sorted, and who is ahead of whom."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.comparisons import Comparison
from experiments.runner import Job, Place, State, configurations

Record = Mapping[str, Any]
Standings = Mapping[str, Any]
Scores = Mapping[str, float]


def finished(jobs: Sequence[Job]) -> tuple[dict[str, list[Record]], list[str]]:
    """Records of the finished runs of each configuration that has some, and a line for the others.

    A run that was set to something else is none of these.
    """
    found: dict[str, list[Record]] = {}
    missing = []
    for group in configurations(jobs):
        for job in group:
            place, title = Place(job.folder), f"{job.title}, seed {job.run.settings.seed}"
            other, state = place.differences(job.run), place.state()
            epochs = f"{place.epochs()}/{job.run.settings.epochs} epochs"
            if other:
                missing.append(f"{title}: other settings ({'; '.join(other)})")
            elif state is State.DONE:
                found.setdefault(job.configuration, []).append(place.load())
            elif state is State.FAILED:
                missing.append(f"{title}: failed after {epochs} ({place.why()})")
            else:
                missing.append(f"{title}: {epochs}")
    return found, missing


def standings(comparison: Comparison, jobs: Sequence[Job]) -> dict[str, Any]:
    """Test scores at the best validation epoch, as plain values: what a figure is drawn from.

    Entries without a finished run are left out.
    """
    entries = {entry.label: entry for entry in comparison.entries}
    benchmark = jobs[0].run.benchmark
    rows = []
    for label, records in finished(jobs)[0].items():
        entry, found = entries[label], {str(one["settings"]["seed"]): one for one in records}
        tests = {seed: record["best"]["test"] for seed, record in found.items()}
        rows.append(
            {
                "label": entry.label,
                "title": entry.title,
                "chosen": {name: entry.changes[name] for name in comparison.tuned},
                "scores": {seed: record["best"]["test_score"] for seed, record in found.items()},
                "tasks": {
                    task.name: {seed: test.get(task.name) for seed, test in tests.items()}
                    for task in benchmark.tasks
                },
            }
        )
    return {
        "name": comparison.name,
        "ours": comparison.ours,
        "score": benchmark.score_name,
        "tasks": {task.name: task.higher_is_better for task in benchmark.tasks},
        "entries": sorted(rows, key=lambda row: statistics.fmean(row["scores"].values())),
    }


def differences(ours: Scores, theirs: Scores) -> list[float]:
    """Theirs minus ours with each seed that both have."""
    return [theirs[seed] - ours[seed] for seed in ours if seed in theirs]


def ahead(ours: Scores, theirs: Scores) -> str:
    """With how many of the seeds that both have ours has the lower score: ``4 of 5``."""
    found = differences(ours, theirs)
    return f"{sum(difference > 0 for difference in found)} of {len(found)}"


def behind(found: Standings, reference: str = "ls") -> list[str]:
    """A line for each task: how far ours is from the reference in standard errors, who is ahead."""
    rows = {row["label"]: row for row in found["entries"]}
    ours = rows.get(found["ours"])
    if ours is None:
        return []
    told = []
    for task, higher in found["tasks"].items():
        sign = 1.0 if higher else -1.0
        means = {label: _mean(row["tasks"][task]) for label, row in rows.items()}
        mine = means[ours["label"]]
        if math.isnan(mine):  # such as an AUC where the test has no positive example
            told.append(f"{task}: ours has no test score")
            continue
        better = [label for label in means if sign * (means[label] - mine) > 0]
        text = f"{task}: "
        plain = _known(rows[reference]["tasks"][task]) if reference in rows else []
        if len(plain) > 1 and statistics.stdev(plain) > 0:
            error = statistics.stdev(plain) / math.sqrt(len(plain))
            apart = sign * (mine - means[reference]) / error
            where = "ahead of it" if apart >= 0 else "behind it"
            text += f"{abs(apart):.1f} standard errors of {rows[reference]['title']} {where}; "
        best = max(better, key=lambda label: sign * means[label], default=None)
        text += (
            "no other is ahead"
            if best is None
            else f"{len(better)} of {len(rows) - 1} others are ahead, {rows[best]['title']} most "
            f"({means[best]:.4g})"
        )
        told.append(text)
    return told


def _mean(values: Mapping[str, float | None]) -> float:
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _known(values: Mapping[str, float | None]) -> list[float]:
    return [value for value in values.values() if value is not None]
