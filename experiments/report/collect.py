"""Records of a store, sorted: setups of a benchmark, methods, configurations, seeds."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments.files import strict
from experiments.methods import METHODS
from experiments.runner import BENCHMARKS

__all__ = ["Group", "Setup", "mean_std", "method_key", "setups", "title_of"]

Record = Mapping[str, Any]

#: Options and settings that say where, or that a seed decides.
_FREE: Final = ("data", "groups", "split_seed", "seed", "device", "threads", "graph")
#: Settings that are the problem's; the others are part of a configuration that may be searched.
_SETUP: Final = ("epochs", "batch_size")


@dataclass(frozen=True)
class Group:
    """Seeds of one configuration of one method.

    Attributes:
        key: Name of the method, with ``@LEVEL`` where that is not its usual one.
        title: Its name in print.
        records: One for each seed, in the order of seeds.
        tried: How many configurations validation chose this one from.
    """

    key: str
    title: str
    records: tuple[Record, ...]
    tried: int = 1

    @property
    def score(self) -> float:
        """Mean over seeds of the validation score, by which configurations are chosen."""
        return statistics.fmean(record["best"]["validation_score"] for record in self.records)


@dataclass(frozen=True)
class Setup:
    """What all methods of one comparison share: data, network, epochs, size of a batch.

    Attributes:
        benchmark: Name of the benchmark.
        changes: Where it differs from the published setup, ``{name: value}``.
        groups: The configuration of each method that is best on validation, by key.
    """

    benchmark: str
    changes: Mapping[str, Any]
    groups: Mapping[str, Group]

    @property
    def as_published(self) -> bool:
        """Whether nothing differs from the published setup."""
        return not self.changes

    def describe(self) -> str:
        """``"as published"``, or what differs."""
        if self.as_published:
            return "as published"
        return ", ".join(f"{name} {value}" for name, value in self.changes.items())


def setups(records: Sequence[Record]) -> list[Setup]:
    """Comparisons in a store, those in the published setup first, then by number of records."""
    found: dict[str, list[Record]] = {}
    for record in records:
        shared = [record["benchmark"]["name"], _changes(record)]
        found.setdefault(json.dumps(strict(shared), sort_keys=True), []).append(record)
    made = [
        Setup(same[0]["benchmark"]["name"], _changes(same[0]), _groups(same))
        for same in found.values()
    ]
    size = {id(setup): sum(len(g.records) for g in setup.groups.values()) for setup in made}
    return sorted(made, key=lambda setup: (not setup.as_published, -size[id(setup)]))


def method_key(record: Record) -> str:
    """Name of the method, with ``@LEVEL`` where that is not its usual one."""
    name = str(record["method"]["name"])
    level = record["method"]["options"].get("level")
    kind = METHODS.get(name)
    usual = getattr(kind, "level", None)
    if level is None or usual is None or level == usual.key:
        return name
    return f"{name}@{level}"


def title_of(key: str) -> str:
    """Name in print of a method with or without ``@LEVEL``."""
    name, _, level = key.partition("@")
    title = METHODS[name].title if name in METHODS else name.removeprefix("torchjd:")
    return f"{title} ({level})" if level else title


def mean_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; the latter needs two values."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None


def _groups(records: Sequence[Record]) -> dict[str, Group]:
    by_method: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        configuration = {
            "method": record["method"],
            "settings": {k: v for k, v in record["settings"].items() if k not in _FREE},
        }
        text = json.dumps(configuration, sort_keys=True)
        seeds = by_method.setdefault(method_key(record), {}).setdefault(text, {})
        seeds[record["settings"]["seed"]] = record
    groups = {}
    for key, configurations in by_method.items():
        tried = [
            Group(key, title_of(key), tuple(seeds[s] for s in sorted(seeds)), len(configurations))
            for seeds in configurations.values()
        ]
        groups[key] = min(tried, key=lambda group: group.score)
    return groups


def _changes(record: Record) -> dict[str, Any]:
    """Options of the benchmark and settings of the problem that are not the published ones."""
    name = record["benchmark"]["name"]
    kind = BENCHMARKS.get(name)
    usual: dict[str, Any] = {}
    if kind is not None:
        usual = {item.name: item.default for item in dataclasses.fields(kind)}
        usual |= {key: getattr(kind.default_settings, key) for key in _SETUP}
    own = {
        **record["benchmark"]["options"],
        **{key: record["settings"][key] for key in _SETUP},
    }
    return {
        key: value for key, value in own.items() if key not in _FREE and value != usual.get(key)
    }
