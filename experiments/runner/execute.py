"""All jobs of a plan to their end, whatever happens to single ones."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError

from experiments.runner.engines import Engine, Handle, MakeEngine
from experiments.runner.plan import Job
from experiments.runner.store import Place, State
from experiments.runner.worker import Ending, JobOutcome

_POLL_SECONDS = 0.5
_WAIT_SECONDS = 5.0

Tick = Callable[[Mapping[Job, JobOutcome]], None]


def execute(
    jobs: Sequence[Job],
    make_engine: MakeEngine,
    parallel: int,
    tick: Tick | None = None,
    *,
    deadline: float | None = None,
    wait_for_others: bool = True,
) -> dict[Job, JobOutcome]:
    """Bring every job to its end.

    Jobs whose process died (killed, or out of memory) are tried again as long as they get on: one
    that dies twice without an epoch in between is recorded as failed. Where a process takes others
    along, all that were at work are tried alone, to find the one to blame. A job that another
    process works on is waited for, and taken over should that process die.

    Args:
        jobs: What to do; jobs done before cost no process.
        make_engine: Makes an engine for so many jobs side by side.
        parallel: Jobs side by side.
        tick: Is told the outcomes so far, a few times a second.
        deadline: When to stop, at ends of epochs, in seconds as ``time.time`` counts them.
        wait_for_others: Whether to wait for other processes' jobs.

    Raises:
        KeyboardInterrupt: After stopping what was running; finished epochs are on the disk.
    """
    outcomes: dict[Job, JobOutcome] = {
        job: JobOutcome(Ending.SKIPPED, place.other_data(job.run))
        for job in jobs
        if (place := Place(job.folder)).state() is State.DONE
    }
    report = tick or (lambda found: None)
    todo = [job for job in jobs if job not in outcomes]
    report(outcomes)
    strikes: Counter[Job] = Counter()
    suspects: deque[Job] = deque()
    while todo or suspects:
        batch = todo or [suspects.popleft()]
        before = {job: Place(job.folder).epochs() for job in batch}
        engine = make_engine(min(parallel, len(batch)))
        began = time.time()
        died = _round(engine, batch, outcomes, report, deadline)
        # Only jobs in progress can be to blame.
        begun = [job for job in died if Place(job.folder).status().get("time", 0.0) >= began]
        blamed = begun or died
        todo = [job for job in died if job not in blamed]
        for job in blamed:
            got_on = Place(job.folder).epochs() > before[job]
            strikes[job] = 0 if got_on else strikes[job] + 1
            if strikes[job] >= 2 and (engine.isolated or len(batch) == 1):
                message = "its process died twice: killed from outside, or out of memory"
                Place(job.folder).fail(message)
                outcomes[job] = JobOutcome(Ending.FAILED, message)
                report(outcomes)
            else:
                (todo if engine.isolated else suspects).append(job)
    others = [job for job, found in outcomes.items() if found.ending is Ending.ELSEWHERE]
    if others and wait_for_others:
        _wait_for(others, report, outcomes, deadline)
        rest = execute(
            others,
            make_engine,
            parallel,
            lambda found: report({**outcomes, **found}),
            deadline=deadline,
            wait_for_others=deadline is None,
        )
        outcomes.update(rest)
    return outcomes


def _round(
    engine: Engine,
    jobs: Sequence[Job],
    outcomes: dict[Job, JobOutcome],
    tick: Tick,
    deadline: float | None,
) -> list[Job]:
    """One engine's worth of work; gives back the jobs whose process died."""
    died: list[Job] = []
    waiting: dict[Job, Handle] = {}
    todo = list(jobs)
    stop = True
    try:
        while todo or waiting:
            room = len(todo) if engine.room is None else engine.room - len(waiting)
            next_ones, todo = todo[:room], todo[room:]
            if next_ones:
                handles = engine.submit(next_ones, deadline)
                waiting.update(zip(next_ones, handles, strict=True))
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


def _wait_for(
    jobs: Sequence[Job], tick: Tick, outcomes: Mapping[Job, JobOutcome], deadline: float | None
) -> None:
    """Until no other process holds any of these jobs, or time is over."""
    while any(_held(job) for job in jobs) and (deadline is None or time.time() < deadline):
        tick(outcomes)
        time.sleep(_WAIT_SECONDS)


def _held(job: Job) -> bool:
    with Place(job.folder).locked() as free:
        return not free
