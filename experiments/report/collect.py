"""Records of a store, sorted: setups of a benchmark, methods, configurations, seeds."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from experiments import published, registry
from experiments.files import strict
from experiments.methods import METHODS
from experiments.report.frame import method_key
from experiments.run import defaults_of
from experiments.runner import records
from experiments.runner.plan import SPLIT
from experiments.runner.store import TRIALS
from experiments.settings import Settings
from experiments.training.results import training_examples

Record = Mapping[str, Any]

#: Options and settings that say where, or that a seed decides; what `data` holds and a split that
#: does not follow the seed are looked at apart.
_FREE: Final = ("data", "groups", SPLIT, "seed", "device", "threads", "graph")
#: Settings that are the problem's; the others are part of a configuration that may be searched.
_SETUP: Final = ("epochs", "batch_size")
_FOLLOWS: Final = "follows the seed"
#: Share by which the number of training examples may differ from the paper's: images that cannot
#: be read, splits by patient.
_NEARLY: Final = 0.05


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
    def records(self) -> list[Record]:
        """Of all groups."""
        return [record for group in self.groups.values() for record in group.records]

    @property
    def title(self) -> str:
        """Of the benchmark, in print."""
        kind = registry.built_in(self.benchmark)
        usual = kind.title if kind else self.benchmark
        return str(self.records[0].get("benchmark_title", usual))

    @property
    def examples(self) -> list[int]:
        """Numbers of training examples; one, as a rule."""
        counts = {training_examples(record) for record in self.records}
        return sorted(count for count in counts if count is not None)

    @property
    def as_published(self) -> bool:
        """Whether nothing differs from the published setup."""
        return not self.changes

    @property
    def same_tasks(self) -> bool:
        """Whether the tasks are those of the published table."""
        table = published.find(self.benchmark)
        own = {task["name"] for task in self.records[0]["tasks"]}
        if table is None or "source" in self.changes or len(own) != table.trained_tasks:
            return False
        return len(table.tasks) != len(own) or {*table.tasks} == own

    @property
    def comparable(self) -> bool:
        """Whether a difference to the published numbers means something."""
        table = published.find(self.benchmark)
        return (
            table is not None
            and self.as_published
            and self.same_tasks
            and bool(self.examples)
            and all(abs(count / table.training_examples - 1) <= _NEARLY for count in self.examples)
        )

    def describe(self) -> str:
        """``"as published"``, or what differs."""
        plain = "as published" if published.find(self.benchmark) else "as by default"
        parts = [f"{name} {value}" for name, value in self.changes.items()] or [plain]
        return ", ".join([*parts, self.data] if self.data else parts)


def setups(records: Sequence[Record]) -> list[Setup]:
    """Comparisons in a store, those in the published setup first, then by number of records."""
    if not records:
        return []
    keys = pd.DataFrame([_keys(record) for record in records])
    made = []
    for (benchmark, _), alike in keys.groupby(["benchmark", "changes"], sort=False):
        by_data = alike.groupby("contents", sort=False)
        for _, same in by_data:
            first = records[same.index[0]]
            data = _place(first) if len(by_data) > 1 else ""
            for changes, found in _by_split(same, _changes(first)):
                made.append(Setup(benchmark, changes, _groups(records, found), data))
    return sorted(made, key=lambda setup: (not setup.as_published, -len(setup.records)))


def located(
    folder: Path, file: str, warn: Callable[[str], object]
) -> Iterator[tuple[Setup, dict[str, list[Path]]]]:
    """The setups of the runs beside whose results a file lies, and by group the runs' folders.

    Args:
        folder: The store, with or without such runs.
        file: Name of the file.
        warn: Is told of every results file that cannot be read.
    """
    places: dict[int, tuple[Record, Path]] = {}
    for path in sorted(folder.rglob(file)):
        if TRIALS not in path.relative_to(folder).parts:
            places |= {id(one): (one, path.parent) for one in records(path.parent, warn)}
    for setup in setups([record for record, _ in places.values()]):
        yield (
            setup,
            {
                key: [places[id(record)][1] for record in group.records]
                for key, group in setup.groups.items()
            },
        )


def symbols(record: Record) -> list[str]:
    """Of what is trained: the tasks, or the losses where tasks are measured in other ways."""
    known = {task["name"]: task["symbol"] for task in record["tasks"]}
    losses = record.get("losses", known)
    return [known.get(name, name.replace("_", " ")) for name in losses]


def _keys(record: Record) -> dict[str, Any]:
    """What decides to which setup, method and configuration a record belongs."""
    split, seed = record["benchmark"]["options"].get(SPLIT), record["settings"]["seed"]
    # What a version did not have counts as its default: seeds of before belong to those of after.
    whole, name = {**defaults_of(Settings), **record["settings"]}, record["method"]["name"]
    settings = {k: v for k, v in whole.items() if k not in _FREE}
    usual = defaults_of(METHODS[name].options_type) if name in METHODS else {}
    options = {**usual, **record["method"]["options"]}
    return {
        "benchmark": record["benchmark"]["name"],
        "changes": json.dumps(strict(_changes(record)), sort_keys=True),
        "contents": json.dumps(_contents(record), sort_keys=True),
        "split": _FOLLOWS if split in (None, seed) else split,
        "seed": seed,
        "method": method_key(record),
        "configuration": json.dumps(strict([name, options, settings]), sort_keys=True),
        "score": record["best"]["validation_score"],
    }


def _by_split(
    same: pd.DataFrame, changes: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Records by the split that is set for them, or that follows the seed.

    The run of seed 0 is the same whether its split is set to 0 or follows, so it belongs to both.
    """
    follows = same["split"] == _FOLLOWS
    following, splits = same[follows], same[~follows]["split"].unique()
    seeds = following["seed"].unique()
    if len(seeds) > 1 or not {*seeds} <= {*splits}:  # else all of them are shown with a set split
        yield changes, following
    for split in splits:
        found = same[(same["split"] == split) | (follows & (same["seed"] == split))]
        yield changes | {SPLIT: split}, found


def _groups(records: Sequence[Record], found: pd.DataFrame) -> dict[str, Group]:
    """Of each method the configuration that is best on validation, the last run of each seed.

    Compared are the seeds that all have, if there are any: other seeds may have easier splits.
    """
    groups = {}
    for method, mine in found.groupby("method", sort=False):
        tried = mine.groupby("configuration", sort=False)
        ways = [one.drop_duplicates("seed", keep="last").sort_values("seed") for _, one in tried]
        common = set.intersection(*({*one["seed"]} for one in ways))
        runs = min(
            ways,
            key=lambda one: one[one["seed"].isin(common or {*one["seed"]})]["score"].mean(),
        )
        every = tried.get_group(found.loc[runs.index[0], "configuration"])["seed"]
        groups[method] = Group(
            method,
            title_of(method),
            tuple(records[place] for place in runs.index),
            len(tried),
            tuple(sorted(every[every.duplicated()].unique().tolist())),
        )
    return groups


def title_of(key: str) -> str:
    """Name in print of a method with or without ``@LEVEL``, which no other of ours has."""
    name, _, level = key.partition("@")
    title = METHODS[name].title if name in METHODS else name.rpartition(":")[2]
    if name not in METHODS and title in {method.title for method in METHODS.values()}:
        title = name  # TorchJD's DWA is not ours
    return f"{title} ({level})" if level else title


def mean_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; the latter needs two values."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None


def _contents(record: Record) -> dict[str, Any]:
    """What tells data apart wherever they lie, the same for every split of them."""
    about = record.get("data", {})
    return {
        "tasks": [task["name"] for task in record.get("tasks", ())],
        "examples": about.get("molecules") or sum(about.get("sizes", {}).values()) or None,
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
    kind = registry.built_in(record["benchmark"]["name"])
    usual: dict[str, Any] = dict(record.get("usual", {}))
    if kind is not None:
        usual = {item.name: item.default for item in dataclasses.fields(kind)}
        usual |= {key: getattr(kind.default_settings, key) for key in _SETUP}
    own = {**record["benchmark"]["options"], **{key: record["settings"][key] for key in _SETUP}}
    return {
        key: value for key, value in own.items() if key not in _FREE and value != usual.get(key)
    }
