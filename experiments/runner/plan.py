"""Which runs: benchmark, methods, settings and seeds, each with a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments import methods
from experiments.errors import SettingsError
from experiments.files import strict
from experiments.run import Run
from experiments.runner import benchmarks, values
from experiments.settings import Settings

__all__ = ["Job", "Request", "choose", "plan"]

SPLIT: Final = "split_seed"


@dataclass(frozen=True, eq=False)
class Job:
    """A run and the folder that belongs to it, by which jobs are told apart.

    Attributes:
        run: What is to be trained.
        folder: Where; a function of the settings, so that the same run always meets its own past.
    """

    run: Run
    folder: Path

    @property
    def label(self) -> str:
        """Method, configuration and seed, for tables and messages."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)


@dataclass(frozen=True)
class Request:
    """What somebody asks for.

    Attributes:
        benchmark: Name of the benchmark.
        methods: Names of methods, as :func:`choose` gives them; ``NAME@LEVEL`` for one level.
        seeds: A run for each; a seed decides the split too, unless ``split_seed`` is set.
        preset: Name of a preset of the benchmark.
        changes: Text by the name of a benchmark's option, of a setting, or ``METHOD.OPTION``.
        settings: Settings that are given as values, such as the device.
    """

    benchmark: str
    methods: Sequence[str]
    seeds: Sequence[int] = (0,)
    preset: str = benchmarks.PAPER
    changes: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def choose(text: str) -> list[str]:
    """Names of methods from text such as ``"all"``, ``"paper"`` or ``"ls,imtl-g@representation"``.

    ``all`` stands for every method with a name of its own, ``paper`` for those of the paper's main
    tables, ``ensembles`` for its two ensembles; TorchJD's others come by name, ``torchjd:UPGrad``.

    Raises:
        SettingsError: An unknown method, or none.
    """
    groups = {
        "all": tuple(methods.METHODS),
        "paper": methods.PAPER,
        "ensembles": methods.ENSEMBLES,
    }
    given = [name.strip() for name in text.split(",") if name.strip()]
    names = [name for word in given for name in groups.get(word, (word,))]
    if not names:
        raise SettingsError("methods = '' names no method: give all, or names such as ls,bayesagg")
    for name in names:
        methods.find(name.partition("@")[0])
    return list(dict.fromkeys(names))


def plan(
    request: Request, out: Path, grids: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> list[Job]:
    """The jobs of a request, methods in their order and seeds innermost.

    Args:
        request: What is asked for.
        out: Folder of the results store.
        grids: Options to try for each method, ``{method: [options, ...]}``, where ``weight_decay``
            and ``learning_rate`` are settings; nothing but the usual ones when None.

    Raises:
        SettingsError: Something does not fit; nothing has been written.
    """
    if not request.seeds:
        raise SettingsError("seeds = [] names no seed: give at least one, such as --seeds 0")
    kind = benchmarks.find(request.benchmark)
    chosen = benchmarks.preset(request.benchmark, request.preset)
    of_benchmark, of_settings, of_methods = _sort(request, kind)
    options = {**chosen.benchmark, **values.read(kind, of_benchmark)}
    settings = {
        **chosen.settings,
        **values.read(Settings, of_settings),
        **request.settings,
    }
    jobs = []
    for name in request.methods:
        plain, _, level = name.partition("@")
        usual = {
            **kind.method_options.get(plain, {}),
            **chosen.methods.get(plain, {}),
        }
        given = {
            **({"level": level} if level else {}),
            **values.read(methods.find(plain).options_type, of_methods.get(plain, {})),
        }
        for variant in (grids or {}).get(plain, [{}]):
            own = {key: value for key, value in variant.items() if key in _SEARCHED_SETTINGS}
            rest = {key: value for key, value in variant.items() if key not in own}
            for seed in dict.fromkeys(request.seeds):
                run = Run(
                    benchmark=kind(**{SPLIT: seed, **options}),
                    method=plain,
                    options=methods.options(plain, {**rest, **given}, {plain: usual}),
                    settings=dataclasses.replace(
                        kind.default_settings, **{**settings, **own, "seed": seed}
                    ),
                )
                jobs.append(Job(run, folder_of(run, out)))
    return _unique(jobs)


def folder_of(run: Run, out: Path) -> Path:
    """``OUT/BENCHMARK/METHOD-FINGERPRINT/seedS``."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", run.method)
    seed = run.settings.seed
    return out / run.benchmark.name / f"{name}-{fingerprint(run)}" / f"seed{seed}"


def fingerprint(run: Run) -> str:
    """A digest of all that decides the numbers, but the seed."""
    described = run.identity()
    described["settings"] = {**described["settings"], "epochs": run.settings.epochs}
    del described["settings"]["seed"]
    options = dict(described["benchmark"]["options"])
    if options.get(SPLIT) == run.settings.seed:
        options[SPLIT] = "seed"
    described["benchmark"]["options"] = options
    text = json.dumps(strict(described), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_SEARCHED_SETTINGS: Final = ("weight_decay", "learning_rate")


def _sort(
    request: Request, kind: type[Any]
) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, str]]]:
    """Changes by whose they are: the benchmark's, the trainer's, a method's."""
    settings = {item.name for item in dataclasses.fields(Settings)}
    options = {item.name for item in dataclasses.fields(kind)}
    of_benchmark: dict[str, str] = {}
    of_settings: dict[str, str] = {}
    of_methods: dict[str, dict[str, str]] = {}
    for name, text in request.changes.items():
        method, dot, option = name.rpartition(".")
        if dot:
            methods.find(method)
            of_methods.setdefault(method, {})[option] = text
        elif name in options:
            of_benchmark[name] = text
        elif name in settings and name != "seed":
            of_settings[name] = text
        else:
            known = sorted((settings | options) - {"seed"})
            raise SettingsError(
                f"--set {name}={text} is unknown: give METHOD.OPTION, or one of {', '.join(known)}"
            )
    return of_benchmark, of_settings, of_methods


def _unique(jobs: Iterable[Job]) -> list[Job]:
    """A grid can hold the usual settings twice."""

    def each() -> Iterator[Job]:
        seen = set()
        for job in jobs:
            if job.folder not in seen:
                seen.add(job.folder)
                yield job

    return list(each())
