"""The runs of a named comparison, and the values that validation chooses for its entries before.

Of a comparison with values to choose, two are made: of the trials, whose seeds take no part in the
table, and of the entries with what the trials chose. Runs are in folders of the entries' names.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.comparisons.entries import Comparison, Entry
from experiments.methods import BayesAggOptions
from experiments.run import Run
from experiments.runner import values
from experiments.runner.plan import Job, Request, configurations
from experiments.runner.store import Place, State
from experiments.settings import Settings, require

Point = Mapping[str, Any]


def compared(
    comparison: Comparison,
    out: Path,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
    record: int | None = None,
    log: Sequence[str] = (),
) -> list[Job]:
    """The jobs of a comparison, each once, the first seed of all entries first.

    The folder is ``OUT/LABEL/seedS``.

    Args:
        comparison: What is compared.
        out: Its folder.
        only: Labels; empty for all.
        seeds: Empty for the comparison's.
        changes: Options for all entries that they concern. With other ``epochs`` the pre-training
            keeps its share; ``data`` is looked at for what it is.
        record: As for :class:`Job`.
        log: Likewise.

    Raises:
        SettingsError: An unknown label, or something does not fit; nothing has been written.
    """
    given = dict(changes or {})
    data = given.get("data")
    require(data is None or Path(data).exists(), "data", data, "there is no such file or folder")
    entries = comparison.chosen(only)
    everybody = Request(comparison.benchmark, [entry.method for entry in entries], changes=given)
    everybody.require_known()
    jobs = []
    for seed in seeds or comparison.seeds:
        for entry in entries:
            own = {k: v for k, v in given.items() if everybody.owner(k, entry.method)}
            run = _entry(comparison, entry, seed, own)
            if data is not None:
                run = replace(run, benchmark=run.benchmark.at(str(data)))
            folder = out / entry.label / f"seed{seed}"
            jobs.append(Job(run, folder, entry.title, record, tuple(log)))
    return list(dict.fromkeys(jobs))


def _entry(comparison: Comparison, entry: Entry, seed: int, own: dict[str, Any]) -> Run:
    def run(changes: Mapping[str, Any]) -> Run:
        preset = entry.preset or comparison.preset
        planned = {**comparison.changes, **entry.changes, **changes}
        request = Request(comparison.benchmark, [entry.method], (seed,), preset, planned)
        return next(request.runs())

    planned = run({})
    if isinstance(planned.options, BayesAggOptions) and "epochs" in own and "pretrain" not in own:
        share = planned.options.pretrain / planned.settings.epochs
        epochs = values.read(Settings, "epochs", own["epochs"])
        own["pretrain"] = max(1, round(share * epochs))
    return run(own)


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
        comparison,
        entries=entries,
        changes={**comparison.changes, **comparison.tuning_changes},
        seeds=comparison.tuning_seeds,
        tuned={},
        tuning_seeds=(),
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


def untuned(comparison: Comparison, given: Collection[str]) -> Comparison:
    """The same, not tuned in what somebody gives for all.

    Raises:
        SettingsError: It would be for one method, whose trials would not be what they are called.
    """
    for name in given:
        option = name.rpartition(".")[2]
        right = option == name or option not in comparison.tuned
        require(right, "set", name, f"each entry's is chosen on validation; give {option} for all")
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
