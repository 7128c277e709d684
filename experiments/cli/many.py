"""Many runs, by one scheduler: a request or a sweep; ``compare`` has comparisons."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

from experiments import presets, runner
from experiments.cli.launch import friendly
from experiments.cli.single import given_values
from experiments.errors import SettingsError
from experiments.files import prepare_folder
from experiments.runner import Ending, Job, JobOutcome, Place
from experiments.runner.engines import MakeEngine
from experiments.runner.values import ends, pairs
from experiments.settings import require
from experiments.tables.escaping import PlainConsole
from experiments.tables.render import terminal
from experiments.training import results
from experiments.training.reporting import loggers

STOPPED = 3
"""Exit status when runs are left: give the same command again."""

_LEFT = {Ending.STOPPED, Ending.ELSEWHERE, Ending.INTERRUPTED}
_CLUSTERS = {"slurm": "slurm", "submitit-local": "local"}


def run(benchmark: str, given: Mapping[str, Any], names: Collection[str], *, sweep: bool) -> None:
    """Every combination of what was given; of a sweep, also of what the paper searched."""
    with friendly(given["debug"]) as console:
        out: Path = given["out"] or Path("results/store")
        methods = runner.choose(given["method"] or ("bayesagg" if sweep else "all"))
        values = given_values(given, names)
        trials = given.get("search")
        require(trials is None or trials >= 1, "search", trials, "give at least 1 trial")
        axes: dict[str, Sequence[Any]] = {
            k: v for k, v in values.items() if len(v) > 1 or (trials and ends(v[0]) is not None)
        }
        if sweep:
            told = {name.rpartition(".")[2] for name in values}
            paper = presets.grids(benchmark, methods)
            axes |= {k: v for k, v in paper.items() if k.rpartition(".")[2] not in told}
        request = runner.Request(
            benchmark,
            methods,
            seeds(given["seeds"]) or (0,),
            given["preset"] or presets.PAPER,
            {name: several[0] for name, several in values.items() if name not in axes},
            axes,
        )
        if trials is None:
            todo = runner.plan(request, out.resolve(), given["record"], given["log"] or ())
            outcomes = conduct(todo, given, out, console, tried=given["engine"] == "local")
        else:
            outcomes = _search(request, trials, given, out, console)
        leave(outcomes, console, store=out)


def _search(
    request: runner.Request, total: int, given: Mapping[str, Any], out: Path, console: PlainConsole
) -> Mapping[Job, JobOutcome]:
    """So many trials of each method, as many side by side as there are jobs for their seeds."""
    _engine(given, None, out)
    outcomes: dict[Job, JobOutcome] = {}
    began, minutes = time.time(), given["minutes"]
    side_by_side = max(1, given["jobs"] // len(request.seeds))
    log = given["log"] or ()
    studies = [runner.Study(one, out.resolve(), given["record"], log) for one in request.alone()]
    if given["plan"]:
        for study in studies:
            console.say(study.plan(total))
        return {}
    for study in studies:
        while trials := study.next(side_by_side, total):
            for trial in trials:
                console.say(f"{study.method}, trial {trial.number + 1} of {total}: {trial}")
            todo = [job for trial in trials for job in trial.jobs]
            found = conduct(todo, {**given, "minutes": left(minutes, began)}, out, console)
            outcomes |= found
            for trial in trials:
                study.tell(trial, found)
            if {ending for ending, _ in found.values()} & _LEFT:
                return outcomes
        console.say(study.best())
    return outcomes


def left(minutes: float | None, began: float) -> float | None:
    """Of so many minutes since the beginning."""
    return None if minutes is None else max(minutes - (time.time() - began) / 60, 1e-3)


def conduct(
    todo: Sequence[Job],
    given: Mapping[str, Any],
    out: Path,
    console: PlainConsole,
    *,
    tried: bool = False,
    loaded: bool = False,
) -> Mapping[Job, JobOutcome]:
    """Show the plan and carry it out; nothing with ``--plan``.

    Args:
        todo: The plan.
        given: What the command was given.
        out: Folder of the store.
        console: Where to.
        tried: Whether the cost is estimated where nobody says.
        loaded: Whether this process has loaded the data, so that what is built of it is there.
    """
    for job in todo:
        other = Place(job.folder).differences(job.run)
        if other:
            raise SettingsError(
                f"{job.folder} holds a finished run with other settings ({'; '.join(other)}): "
                "choose another --out, or delete it"
            )
    make, parallel = _engine(given, todo[0].run.settings.threads, out), given["jobs"]
    minutes = given["minutes"]
    deadline = None if minutes is None else time.time() + 60 * minutes
    cost = None
    if tried if given["estimate"] is None else given["estimate"]:
        with console.status("a few steps of each method"):
            engine = make(parallel)
            cost = engine.call(runner.estimate, todo, parallel, engine.threads)
            engine.close(stop=False)
    console.print(terminal(runner.plan_table(todo, cost)))
    if given["plan"]:
        return {}
    prepare_folder(out)
    if given.get("figure") is not None:  # before hours of work, not after
        prepare_folder(given["figure"].parent)
    try:
        if given["engine"] == "local" and cost is None and not loaded:
            todo[0].run.benchmark.load(torch.device("cpu"))  # built before several want it
        with runner.Watcher(todo, console) as watcher:
            return runner.execute(todo, make, parallel, watcher, deadline=deadline)
    except KeyboardInterrupt:
        console.print("interrupted; finished epochs are kept, the same command goes on")
        raise typer.Exit(130) from None


def leave(
    outcomes: Mapping[Job, JobOutcome], console: PlainConsole, *, store: Path | None = None
) -> None:
    """Say how all ended, and exit unless it is done.

    With 130 after Ctrl-C, 1 where a run failed, 3 where runs are left.
    """
    if outcomes:
        done = [j for j, found in outcomes.items() if found.ending in (Ending.DONE, Ending.SKIPPED)]
        if done:
            told = results.contents(Place(done[0].folder).load())
            console.say(f"data of {done[0].label}: {told}")
        place = "" if store is None else f"; store: {store}"
        console.say(f"{runner.summary(outcomes)}{place}")
    if outcomes and store is not None:
        console.say(f"next: python -m experiments report {store}")
    endings = [found.ending for found in outcomes.values()]
    for job, found in outcomes.items():
        if found.ending is Ending.FAILED:
            console.say(f"failed: {job.folder}: {found.message}", "red")
    if Ending.INTERRUPTED in endings:
        raise typer.Exit(130)
    if Ending.FAILED in endings:
        raise typer.Exit(1)
    left = sum(ending in _LEFT for ending in endings)
    if left:
        console.print(f"{left} runs are left: give the same command again")
        raise typer.Exit(STOPPED)


def _engine(given: Mapping[str, Any], threads: int | None, out: Path) -> MakeEngine:
    """What makes the engine; refuses whatever would fail in every run."""
    loggers(given["log"] or (), out)
    minutes, parallel, name = given["minutes"], given["jobs"], given["engine"]
    require(minutes is None or minutes > 0, "minutes", minutes, "give a positive number")
    require(parallel >= 1, "jobs", parallel, "give at least 1")
    if name not in ("local", "dask", *_CLUSTERS):
        raise SettingsError(
            f"engine = {name!r} is unknown: give local, slurm, submitit-local or dask"
        )
    own = {
        key: given[key]
        for key in ("partition", "account", "time_limit", "gpus", "memory")
        if given[key] is not None
    }
    more = {
        key: int(values[-1]) if values[-1].isdigit() else values[-1]
        for key, values in pairs(given["queue"] or [], "queue").items()
    }
    if name == "local":
        for option, value in {**own, **more}.items():
            require(False, option, value, "give --engine slurm as well, or leave it out")
        return lambda parallel: runner.Local(parallel, threads)
    if name == "dask":
        minutes = own.pop("time_limit", 1440)
        for option, value in {**own, **more}.items():
            require(False, option, value, "leave it out: a Dask cluster brings its workers")
        return lambda parallel: runner.Dask(parallel, threads, minutes)
    queue = runner.Queue(**own, more=more)
    return lambda parallel: runner.Submitit(
        out.resolve() / "submitit", parallel, _CLUSTERS[name], threads, queue
    )


def seeds(words: Sequence[str] | None) -> list[int]:
    """What ``--seeds 0 1,2`` names."""
    try:
        return [int(part) for word in words or () for part in word.split(",") if part.strip()]
    except ValueError as error:
        raise SettingsError(
            f"seeds = {' '.join(words or ())!r} cannot be read: give whole numbers, such as "
            "--seeds 0 1 2"
        ) from error
