"""Which runs: benchmark, methods, options and seeds, each with a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments import methods, presets, registry
from experiments.benchmark import Benchmark
from experiments.errors import SettingsError
from experiments.files import strict
from experiments.methods import BayesAggOptions
from experiments.methods.torchjd_classes import PREFIX
from experiments.run import Run
from experiments.runner import values
from experiments.settings import Settings, require, require_seed

SPLIT: Final = "split_seed"
_NEWER: Final = ("fitted_bias", "optimizer", "beta2")  # earlier folders were named without these


@dataclass(frozen=True, eq=False)
class Job:
    """A run and the folder that belongs to it, by which jobs are told apart.

    Attributes:
        run: What is to be trained.
        folder: Where, ``.../CONFIGURATION/seedS``.
        title: Of the configuration, for tables; the method's where it is empty.
        record: Write diagnostics of one training step in so many; None for none.
        log: Names of :data:`experiments.training.reporting.LOGGERS`, which are told of every epoch.
    """

    run: Run
    folder: Path
    title: str = ""
    record: int | None = None
    log: tuple[str, ...] = ()

    @property
    def configuration(self) -> str:
        """What the runs that differ by the seed alone share: the name of a folder."""
        return self.folder.parent.name

    @property
    def label(self) -> str:
        """Configuration and seed, for tables and messages."""
        return f"{self.configuration}/{self.folder.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)


@dataclass(frozen=True)
class Request:
    """What somebody asks for.

    Options go by their names: the benchmark's, those of training, those of a method that is run,
    or ``METHOD.OPTION`` for one method alone, which goes before the others. Values may be text.

    Attributes:
        benchmark: Name of the benchmark, or ``module:Class``.
        methods: Names of methods, as :func:`choose` gives them; ``NAME@LEVEL`` for one level.
        seeds: A run for each; a seed decides the split too, unless ``split_seed`` is set.
        preset: Name of a preset of the benchmark.
        changes: One value by the name of an option.
        axes: Several values by the name of an option: every combination is run.
    """

    benchmark: str
    methods: Sequence[str]
    seeds: Sequence[int] = (0,)
    preset: str = presets.PAPER
    changes: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def runs(self) -> Iterator[Run]:
        """The runs, methods in their order and seeds innermost.

        Raises:
            SettingsError: Something does not fit.
        """
        if not self.seeds:
            raise SettingsError("seeds = [] names no seed: give at least one, such as --seeds 0")
        for seed in self.seeds:
            require_seed("seed", seed)
        kind = registry.find(self.benchmark)
        preset = presets.find(self.benchmark, self.preset)
        self.require_known()
        for name in self.methods:
            method, _, level = name.partition("@")
            level_given = {f"{method}.level": level} if level else {}
            axes = {k: v for k, v in self.axes.items() if self.owner(k, method)}
            for point in itertools.product(*axes.values()):
                given = {**self.changes, **level_given, **dict(zip(axes, point, strict=True))}
                for seed in dict.fromkeys(self.seeds):
                    yield self._run(kind, preset, method, seed, given)

    def _run(
        self,
        kind: type[Benchmark],
        preset: presets.Preset,
        method: str,
        seed: int,
        given: Mapping[str, Any],
    ) -> Run:
        options: dict[str, Any] = {SPLIT: seed} if SPLIT in _names(kind) else {}
        settings: dict[str, Any] = {}
        own: dict[str, Any] = {}
        parts = {kind: options, Settings: settings, methods.find(method).options_type: own}
        every = {**preset.changes, **given}
        for name in sorted(every, key=lambda name: "." in name):  # METHOD.OPTION has the last word
            value, owner = every[name], self.owner(name, method)
            if owner is not None:
                option = name.rpartition(".")[2]
                parts[owner][option] = values.read(owner, option, value)
        benchmark = kind(**options)
        usual = {**kind.method_options.get(method, {}), **preset.methods.get(method, {})}
        chosen = methods.options(method, own, {method: usual})
        if isinstance(chosen, BayesAggOptions):
            chosen = _powers_of_heads(benchmark, chosen, given="power" in own)
            for option in sorted(chosen.unread() & own.keys()):
                who = f"rule {chosen.rule} with aggregator {chosen.aggregator}"
                remedy = f"{who} reads none: leave it out, or give another of these"
                require(own[option] is None, option, own[option], remedy)
        return Run(
            benchmark,
            method,
            chosen,
            dataclasses.replace(kind.default_settings, **{**settings, "seed": seed}),
        )

    def owner(self, name: str, method: str) -> type[Any] | None:
        """The class whose field an option is in a run of a method; None where it is another's."""
        kind = registry.find(self.benchmark)
        wanted, dot, option = name.rpartition(".")
        if dot and wanted != method:
            return None
        if not dot and option in _names(kind):
            return kind
        takes = _takes(method, option)
        if option in _SETTINGS and not (dot and takes):
            return Settings
        # Of one method alone anything may be an option that the method itself has to look at.
        alone = len(self.methods) == 1 and (option == "level" or method.startswith(PREFIX))
        return methods.find(method).options_type if dot or takes or alone else None

    def alone(self) -> list[Request]:
        """A request for each method, with what concerns it.

        Raises:
            SettingsError: An option concerns none.
        """
        self.require_known()

        def own(given: Mapping[str, Any], method: str) -> dict[str, Any]:
            return {k: v for k, v in given.items() if self.owner(k, method)}

        return [
            dataclasses.replace(
                self,
                methods=[name],
                changes=own(self.changes, name.partition("@")[0]),
                axes=own(self.axes, name.partition("@")[0]),
            )
            for name in self.methods
        ]

    def require_known(self) -> None:
        """Raise a ``SettingsError`` for an option that concerns no method."""
        names = [name.partition("@")[0] for name in self.methods]
        for name, value in {**self.changes, **self.axes}.items():
            wanted, dot, option = name.rpartition(".")
            if dot:
                methods.find(wanted)
                require(wanted in names, "set", name, f"{wanted} is not run: leave {option} out")
            elif not any(self.owner(name, method) for method in names):
                types = [methods.find(method).options_type for method in names]
                known = _SETTINGS.union(*map(_names, [registry.find(self.benchmark), *types]))
                renamed = {old: new for one in types for old, new in one.renamed.items()}
                among = f"one of {', '.join(sorted(known))}"
                raise SettingsError(
                    f"{name} = {value!r} has no meaning for method {', '.join(names)}, "
                    f"{self.benchmark} or its training: give {renamed.get(name) or among}"
                )


def _names(kind: type[Any]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


_SETTINGS: Final = _names(Settings) - {"seed"}


def _takes(method: str, option: str) -> bool:
    """Whether an option is one of a method's."""
    kind = methods.find(method)
    return len(kind.levels) > 1 if option == "level" else option in _names(kind.options_type)


def choose(given: str | Iterable[str]) -> list[str]:
    """Names of methods from words such as ``"all"``, ``"paper"`` or ``"ls,imtl-g@parameters"``.

    ``all`` stands for every method with a name of its own, ``paper`` for those of the paper's main
    tables, ``ensembles`` for its two ensembles; TorchJD's others come by name, ``torchjd:UPGrad``.

    Raises:
        SettingsError: An unknown method, or none.
    """
    groups = {"all": tuple(methods.METHODS), "paper": methods.PAPER, "ensembles": methods.ENSEMBLES}
    words = ",".join([given] if isinstance(given, str) else given).split(",")
    given = [name.strip() for name in words if name.strip()]
    names = [name for word in given for name in groups.get(word, (word,))]
    if not names:
        raise SettingsError("method = '' names no method: give all, or names such as ls,bayesagg")
    for name in names:
        methods.find(name.partition("@")[0])
    return list(dict.fromkeys(names))


def plan(
    request: Request, out: Path, record: int | None = None, log: Sequence[str] = ()
) -> list[Job]:
    """The jobs of a request, each once.

    The folder is ``OUT/BENCHMARK/METHOD-FINGERPRINT/seedS``, a function of the settings, so that
    the same run always meets its own past. ``record`` and ``log`` are those of :class:`Job`.

    Raises:
        SettingsError: Something does not fit; nothing has been written.
    """
    jobs = [Job(run, folder_of(run, out), record=record, log=tuple(log)) for run in request.runs()]
    return list(dict.fromkeys(jobs))


def configurations(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs of each configuration, which differ by the seed alone."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.configuration, []).append(job)
    return [*groups.values()]


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
    # Earlier versions' folders keep their names.
    described["method"]["options"] = run.options.former(described["method"]["options"])
    for name in _NEWER:  # as before there was the option
        if described["settings"][name] == getattr(Settings, name):
            del described["settings"][name]
    text = json.dumps(strict(described), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _powers_of_heads(
    benchmark: Benchmark, options: BayesAggOptions, *, given: bool
) -> BayesAggOptions:
    """Powers by head, of the heads that there are.

    The benchmark's usual powers are for all heads, of which an option may leave some out; those
    that somebody gives have to be for the heads that there are.
    """
    power = options.power
    if not isinstance(power, Mapping):
        return options
    names = list(benchmark.heads(True))
    if given and set(power) != set(names):
        raise SettingsError(
            f"power is given for {', '.join(power)}; the heads are {', '.join(names)}: give one "
            "for each, or one number for all"
        )
    return dataclasses.replace(
        options, power={name: value for name, value in power.items() if name in names}
    )
