"""What a comparison is: entries that differ in one thing, and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmark import Benchmark
from experiments.errors import SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.run import Run
from experiments.settings import Settings

__all__ = ["Comparison", "Entry", "Job"]


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        label: Unique in its comparison; also the name of a folder.
        title: For the table.
        method: Name of the method.
        options: Of the method.
        settings: Of the trainer; seed, device and threads are the job's.
        benchmark: Another benchmark than the comparison's, for ablations of the network.
    """

    label: str
    title: str
    method: str
    options: MethodOptions
    settings: Settings
    benchmark: Benchmark | None = None


@dataclass(frozen=True)
class Job:
    """One run of a comparison: an entry with a seed.

    Attributes:
        label: The entry's.
        seed: The seed.
        run: What to train.
        folder: Where its files are, below the comparison's folder.
    """

    label: str
    seed: int
    run: Run
    folder: Path


@dataclass(frozen=True)
class Comparison:
    """Entries and seeds.

    Attributes:
        name: As on the command line.
        about: For people: what is compared at which scale.
        benchmark: Data and network.
        entries: In the order of the table, which is the order of the runs too.
        seeds: Every entry is run with each, the first seed of all entries first.
    """

    name: str
    about: str
    benchmark: Benchmark
    entries: Sequence[Entry]
    seeds: Sequence[int] = (0, 1, 2)

    def jobs(
        self,
        only: Sequence[str] = (),
        seeds: Sequence[int] = (),
        **everywhere: Any,
    ) -> list[Job]:
        """All runs, or those of some entries and seeds.

        Args:
            only: Labels; empty for all.
            seeds: Empty for the comparison's.
            **everywhere: Settings for all runs, such as ``device``; None leaves an entry's. With
                other ``epochs`` the pre-training keeps its share.

        Raises:
            SettingsError: An unknown label.
        """
        known = {entry.label: entry for entry in self.entries}
        for label in only:
            if label not in known:
                raise SettingsError(
                    f"only = {label!r} is unknown in comparison {self.name}: give one of "
                    f"{', '.join(known)}"
                )
        chosen = [known[label] for label in only] or list(self.entries)
        given = {name: value for name, value in everywhere.items() if value is not None}
        return [
            Job(
                entry.label,
                seed,
                self._run(entry, seed, given),
                Path(entry.label) / f"seed{seed}",
            )
            for seed in seeds or self.seeds
            for entry in chosen
        ]

    def at(self, data: str) -> Comparison:
        """The same with the data from another place, for benchmarks of entries too."""
        entries = [
            entry
            if entry.benchmark is None
            else dataclasses.replace(entry, benchmark=entry.benchmark.at(data))
            for entry in self.entries
        ]
        return dataclasses.replace(self, benchmark=self.benchmark.at(data), entries=entries)

    def _run(self, entry: Entry, seed: int, given: dict[str, Any]) -> Run:
        benchmark = entry.benchmark or self.benchmark
        if hasattr(benchmark, "split_seed"):
            benchmark = dataclasses.replace(benchmark, split_seed=seed)  # type: ignore[call-arg]
        settings = dataclasses.replace(entry.settings, seed=seed, **given)
        options = entry.options
        if isinstance(options, BayesAggOptions) and settings.epochs != entry.settings.epochs:
            share = options.pretrain / entry.settings.epochs
            pretrain = max(1, round(share * settings.epochs))
            options = dataclasses.replace(options, pretrain=pretrain)
        return Run(benchmark, entry.method, options, settings)
