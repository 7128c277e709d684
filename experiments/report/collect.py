"""Records of a store, sorted: setups of a benchmark, methods, configurations, seeds."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments.files import strict
from experiments.methods import METHODS
from experiments.runner import BENCHMARKS
from experiments.runner.plan import SPLIT

__all__ = ["Group", "Setup", "mean_std", "method_key", "setups", "title_of"]

Record = Mapping[str, Any]

#: Options and settings that say where, or that a seed decides; what `data` holds and a split that
#: does not follow the seed are looked at apart.
_FREE: Final = ("data", "groups", SPLIT, "seed", "device", "threads", "graph")
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
        repeated: Seeds that the store holds more than once; their last record is taken.
    """

    key: str
    title: str
    records: tuple[Record, ...]
    tried: int = 1
    repeated: tuple[int, ...] = ()

    @property
    def score(self) -> float:
        """Mean over seeds of the validation score, by which configurations are chosen."""
        return statistics.fmean(record["best"]["validation_score"] for record in self.records)


@dataclass(frozen=True)
class Setup:
    """What all methods of one comparison share: data, split, network, epochs, size of a batch.

    Attributes:
        benchmark: Name of the benchmark.
        changes: Where it differs from the published setup, ``{name: value}``.
        groups: The configuration of each method that is best on validation, by key.
        data: What tells its data from those of another setup with the same changes; empty when
            there is none.
    """

    benchmark: str
    changes: Mapping[str, Any]
    groups: Mapping[str, Group]
    data: str = ""

    @property
    def as_published(self) -> bool:
        """Whether nothing differs from the published setup."""
        return not self.changes

    def describe(self) -> str:
        """``"as published"``, or what differs."""
        parts = [f"{name} {value}" for name, value in self.changes.items()] or ["as published"]
        return ", ".join([*parts, self.data] if self.data else parts)


def setups(records: Sequence[Record]) -> list[Setup]:
    """Comparisons in a store, those in the published setup first, then by number of records."""
    alike: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        shared = [record["benchmark"]["name"], _changes(record)]
        by_data = alike.setdefault(json.dumps(strict(shared), sort_keys=True), {})
        by_data.setdefault(json.dumps(_contents(record), sort_keys=True), []).append(record)
    made = []
    for by_data in alike.values():
        for same in by_data.values():
            data = _place(same[0]) if len(by_data) > 1 else ""
            for split, found in _by_split(same).items():
                changes = _changes(found[0]) | ({} if split is None else {SPLIT: split})
                made.append(Setup(found[0]["benchmark"]["name"], changes, _groups(found), data))
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
    by_method: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        configuration = {
            "method": record["method"],
            "settings": {k: v for k, v in record["settings"].items() if k not in _FREE},
        }
        text = json.dumps(configuration, sort_keys=True)
        by_method.setdefault(method_key(record), {}).setdefault(text, []).append(record)
    groups = {}
    for key, configurations in by_method.items():
        tried = [_group(key, found, len(configurations)) for found in configurations.values()]
        groups[key] = min(tried, key=lambda group: group.score)
    return groups


def _group(key: str, records: Sequence[Record], tried: int) -> Group:
    seeds = {record["settings"]["seed"]: record for record in records}
    count = Counter(record["settings"]["seed"] for record in records)
    return Group(
        key,
        title_of(key),
        tuple(seeds[seed] for seed in sorted(seeds)),
        tried,
        tuple(seed for seed in sorted(seeds) if count[seed] > 1),
    )


def _by_split(records: Sequence[Record]) -> dict[int | None, list[Record]]:
    """Records by the split that is set for them; None where it follows the seed.

    The run of seed 0 is the same whether its split is set to 0 or follows, so it belongs to both.
    """
    found: dict[int | None, list[Record]] = {}
    for record in records:
        split, seed = record["benchmark"]["options"].get(SPLIT), record["settings"]["seed"]
        found.setdefault(None if split == seed else split, []).append(record)
    following = found.get(None, [])
    for split, same in found.items():
        if split is not None:
            same += [record for record in following if record["settings"]["seed"] == split]
    seeds = {record["settings"]["seed"] for record in following}
    if len(seeds) == 1 and seeds <= found.keys():  # all of them are shown with the set split
        del found[None]
    return found


def _contents(record: Record) -> dict[str, Any]:
    """What tells data apart wherever they lie, the same for every split of them."""
    about = record.get("data", {})
    return {
        "tasks": [task["name"] for task in record.get("tasks", ())],
        "examples": sum(about.get("sizes", {}).values()) or about.get("molecules"),
        "digest": about.get("images", about.get("sha256")),
    }


def _place(record: Record) -> str:
    """Where the data were, and what they are, for people."""
    contents, place = _contents(record), record["benchmark"]["options"].get("data")
    parts = [f"{len(contents['tasks'])} tasks"]
    if contents["examples"] is not None:
        parts.append(f"{contents['examples']:,} examples")
    if contents["digest"] is not None:
        parts.append(f"checksum {contents['digest'][:8]}")
    return f"data {place or 'in the default place'} ({'; '.join(parts)})"


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
