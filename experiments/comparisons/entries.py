"""What a named comparison is made of: entries, which are the rows of its table, and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from experiments.errors import SettingsError

QM9_SMALL: Final[Mapping[str, Any]] = {
    "molecules": 6000,
    "max_atoms": 17,
    "width": 32,
    "edge_width": 16,
    "passes": 2,
    "groups": 1,
    "epochs": 200,
    "batch_size": 60,
    "schedule": "cosine",
    "threads": 1,
}
"""6,000 molecules of at most 17 atoms and a narrow network: minutes on one core, not hours."""


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        label: Unique in its comparison; also the name of a folder.
        title: For the table.
        method: Name of the method.
        changes: Options of the benchmark, of training and of the method, by name.
        preset: What they start from; None for the comparison's.
    """

    label: str
    title: str
    method: str = "bayesagg"
    changes: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Entries and seeds.

    Attributes:
        name: As on the command line.
        about: For people: what is compared at which scale.
        benchmark: Its name.
        entries: In the order of the table, which is the order of the runs too.
        changes: Options of the benchmark and of training for all entries, by name.
        preset: What they start from.
        seeds: Every entry is run with each, the first seed of all entries first.
        tuned: Several values by the name of an option, of which each entry takes what is best on
            validation.
        tuning_seeds: Those whose runs choose; none of them is one of ``seeds``.
        tuning_changes: What their runs change beside, such as fewer epochs, by name; nobody's
            options change it.
        ours: Label of the entry with which the others are compared, which makes it a league: its
            table is sorted, and tells seed by seed who is ahead; None for none.
    """

    name: str
    about: str
    benchmark: str
    entries: Sequence[Entry]
    changes: Mapping[str, Any] = field(default_factory=dict)
    preset: str = "paper"
    seeds: Sequence[int] = (0, 1, 2)
    tuned: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tuning_seeds: Sequence[int] = ()
    tuning_changes: Mapping[str, Any] = field(default_factory=dict)
    ours: str | None = None

    def chosen(self, labels: Sequence[str]) -> list[Entry]:
        """The entries with these labels, or all.

        Raises:
            SettingsError: An unknown label.
        """
        known = {entry.label: entry for entry in self.entries}
        for label in labels:
            if label not in known:
                raise SettingsError(
                    f"only = {label!r} is unknown in comparison {self.name}: give one of "
                    f"{', '.join(known)}"
                )
        return [known[label] for label in labels] or list(self.entries)
