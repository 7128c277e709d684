"""Values that validation chooses for each entry of a comparison, before its own runs.

Two comparisons are made of one: of the trials, whose seeds take no part in the table, and of the
entries with what the trials chose.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.comparisons.entries import Comparison, Entry
from experiments.runner import values
from experiments.runner.plan import Job, configurations
from experiments.runner.store import Place, State
from experiments.settings import require

Point = Mapping[str, Any]


def trials(comparison: Comparison) -> Comparison:
    """Every entry with every combination of the values, on the seeds that choose.

    Raises:
        SettingsError: A seed of the table would choose.
    """
    for seed in comparison.tuning_seeds:
        require(seed not in comparison.seeds, "seeds", seed, "its runs choose: give others")
    entries = [
        replace(
            entry,
            label=_label(entry, point),
            title=f"{entry.title}, {values.shown(point)}",
            changes={**entry.changes, **point},
        )
        for entry in comparison.entries
        for point in _points(comparison)
    ]
    return replace(
        comparison, entries=entries, seeds=comparison.tuning_seeds, tuned={}, tuning_seeds=()
    )


def best(comparison: Comparison, jobs: Sequence[Job]) -> dict[str, Point]:
    """What was best on validation, by the label of an entry, the mean over seeds; the first of two.

    A run that failed, or whose score is not finite, rules its values out. Entries with a trial that
    has not ended, or with none that ended well, are not in it.
    """
    scores = {group[0].configuration: _score(group) for group in configurations(jobs)}
    found: dict[str, Point] = {}
    for entry in comparison.entries:
        tried = [(scores.get(_label(entry, point)), point) for point in _points(comparison)]
        ended = [(score, point) for score, point in tried if score is not None]
        if len(ended) == len(tried):
            score, point = min(ended, key=lambda one: one[0])
            if math.isfinite(score):
                found[entry.label] = point
    return found


def settled(comparison: Comparison, chosen: Mapping[str, Point]) -> Comparison:
    """The entries for which something was chosen, with it."""
    entries = [
        replace(entry, changes={**entry.changes, **chosen[entry.label]})
        for entry in comparison.entries
        if entry.label in chosen
    ]
    return replace(comparison, entries=entries)


def without(comparison: Comparison, given: Collection[str]) -> Comparison:
    """The same with options left alone that somebody gives for all."""
    return replace(comparison, tuned={k: v for k, v in comparison.tuned.items() if k not in given})


def _points(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for point in itertools.product(*comparison.tuned.values()):
        yield dict(zip(comparison.tuned, point, strict=True))


def _label(entry: Entry, point: Point) -> str:
    return "-".join([entry.label, *map(values.shown, point.values())])


def _score(group: Sequence[Job]) -> float | None:
    """Mean of the validation scores; infinite where a run went wrong; None where one is left."""
    found = []
    for job in group:
        place = Place(job.folder)
        state = place.state()
        if state is State.FAILED:
            found.append(math.inf)
        elif state is State.DONE and not place.differences(job.run):
            score = float(place.load()["best"]["validation_score"])
            found.append(score if math.isfinite(score) else math.inf)
        else:
            return None
    return statistics.fmean(found)
