"""All jobs of a plan to their end, whatever happens to single ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError

from experiments.runner.engines import Engine, Handle, MakeEngine
from experiments.runner.plan import Job
from experiments.runner.store import Place, State
from experiments.runner.worker import Ending, Outcome

__all__ = ["execute"]

_POLL_SECONDS = 0.5
_WAIT_SECONDS = 5.0

Tick = Callable[[Mapping[Job, Outcome]], None]


def execute(
    jobs: Sequence[Job],
    make_engine: MakeEngine,
    parallel: int,
    tick: Tick | None = None,
    *,
    wait_for_others: bool = True,
) -> dict[Job, Outcome]:
    """Bring every job to its end.

    Jobs whose process died (killed, or out of memory) are tried once more, each alone, to find the
    one to blame: only that one is recorded as failed. A job that another process works on is waited
    for, and taken over should that process die.

    Args:
        jobs: What to do; jobs done before cost no process.
        make_engine: Makes an engine for so many jobs side by side.
        parallel: Jobs side by side.
        tick: Is told the outcomes so far, a few times a second.
        wait_for_others: Whether to wait for other processes' jobs.

    Raises:
        KeyboardInterrupt: After stopping what was running; finished epochs are on the disk.
    """
    outcomes: dict[Job, Outcome] = {
        job: Outcome(Ending.SKIPPED) for job in jobs if Place(job.folder).state() is State.DONE
    }
    report = tick or _nobody
    todo = [job for job in jobs if job not in outcomes]
    report(outcomes)
    if not todo:
        return outcomes
    suspects: list[Job] = []
    while todo:
        began = time.time()
        died = _round(todo, make_engine, min(parallel, len(todo)), outcomes, report)
        # A process that dies takes its engine along; only jobs in progress can be to blame.
        begun = [job for job in died if Place(job.folder).status().get("time", 0.0) >= began]
        suspects += begun or died
        todo = [job for job in died if job not in begun] if begun else []
    for job in suspects:
        again = _round([job], make_engine, 1, outcomes, report)
        if again:
            message = "its process died twice: killed from outside, or out of memory"
            Place(job.folder).fail(message)
            outcomes[job] = Outcome(Ending.FAILED, message)
            report(outcomes)
    others = [job for job, found in outcomes.items() if found.ending is Ending.ELSEWHERE]
    if others and wait_for_others:
        _wait_for(others, report, outcomes)
        rest = execute(others, make_engine, parallel, lambda found: report({**outcomes, **found}))
        outcomes.update(rest)
    return outcomes


def _round(
    jobs: Sequence[Job],
    make_engine: MakeEngine,
    parallel: int,
    outcomes: dict[Job, Outcome],
    tick: Tick,
) -> list[Job]:
    """One engine's worth of work; gives back the jobs whose process died."""
    engine: Engine = make_engine(parallel)
    died: list[Job] = []
    stop = True
    try:
        waiting: dict[Job, Handle] = {}
        for job in jobs:
            try:
                waiting[job] = engine.submit(job)
            except BrokenExecutor:  # an earlier one took the engine with it
                died.append(job)
        while waiting:
            for job in [job for job, handle in waiting.items() if handle.done()]:
                handle = waiting.pop(job)
                try:
                    outcomes[job] = handle.result()
                except (Exception, CancelledError):
                    died.append(job)
            tick(outcomes)
            if waiting:
                time.sleep(_POLL_SECONDS)
        stop = False
    finally:
        engine.close(stop=stop)
    return died


def _wait_for(jobs: Sequence[Job], tick: Tick, outcomes: Mapping[Job, Outcome]) -> None:
    """Until no other process holds any of these jobs."""
    while any(_held(job) for job in jobs):
        tick(outcomes)
        time.sleep(_WAIT_SECONDS)


def _held(job: Job) -> bool:
    with Place(job.folder).locked() as free:
        return not free


def _nobody(outcomes: Mapping[Job, Outcome]) -> None:
    """Nobody wants to know."""
