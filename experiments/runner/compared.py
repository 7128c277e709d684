"""The runs of a named comparison: each entry with every seed, in folders of their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.comparisons.entries import Comparison, Entry
from experiments.methods import BayesAggOptions
from experiments.run import Run
from experiments.runner import values
from experiments.runner.plan import Job, Request
from experiments.settings import Settings, require


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
    """The jobs of a comparison, the first seed of all entries first.

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
    data = given.pop("data", None)
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
                run = dataclasses.replace(run, benchmark=run.benchmark.at(str(data)))
            folder = out / entry.label / f"seed{seed}"
            jobs.append(Job(run, folder, entry.title, record, tuple(log)))
    return jobs


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
