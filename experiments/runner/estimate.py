"""What a plan will cost, from a few steps of each method on the real data."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from bayesagg_pyro.errors import BayesAggError
from experiments.benchmark import Batch, Data
from experiments.errors import ExperimentError
from experiments.files import strict
from experiments.randomness import isolated_random
from experiments.run import Run, limited_threads
from experiments.runner.plan import Job
from experiments.runner.store import Place, State
from experiments.settings import resolve_device
from experiments.training.optimizers import optimizer_of
from experiments.training.stepping import Step

_STEPS = 3
_WARM = 1


@dataclass(frozen=True)
class Cost:
    """Seconds that a plan takes, roughly.

    Attributes:
        seconds: By job, of those not done; None where a method could not be tried.
        parallel: Jobs side by side.
    """

    seconds: Mapping[Job, float | None]
    parallel: int

    @property
    def work(self) -> float:
        """Seconds of all jobs, one after the other."""
        return sum(value for value in self.seconds.values() if value is not None)

    @property
    def wall(self) -> float:
        """Seconds on the clock: the longest job, or an even share."""
        known = [value for value in self.seconds.values() if value is not None]
        return max([*known, self.work / self.parallel], default=0.0)


def estimate(jobs: Sequence[Job], parallel: int, threads: int) -> Cost:
    """Try every configuration on a few batches; seeds of one configuration cost the same.

    Evaluation and fresh priors are counted as forward passes; other processes on the machine are
    not known of.

    Raises:
        DataError: The data set is missing or damaged, before anything has been started.
    """
    seconds: dict[Job, float | None] = {}
    loaded: dict[str, Data] = {}
    by_configuration: dict[str, float | None] = {}
    for job in jobs:
        place = Place(job.folder)
        if place.state() is State.DONE:
            continue
        run = job.run
        left = run.settings.epochs - int(place.status().get("epoch", 0))
        key = job.configuration
        if key not in by_configuration:
            data = _data(run, loaded)
            with isolated_random(torch.device("cpu")), limited_threads(threads):
                try:
                    by_configuration[key] = _epochs(run, data)
                except (ExperimentError, BayesAggError):
                    by_configuration[key] = None  # the run itself will say what is wrong
        every = by_configuration[key]
        seconds[job] = None if every is None else every * left / run.settings.epochs
    return Cost(seconds, parallel)


def _data(run: Run, loaded: dict[str, Data]) -> Data:
    key = json.dumps(strict(run.benchmark.options()), sort_keys=True)
    if key not in loaded:
        loaded.clear()  # one data set at a time
        loaded[key] = run.benchmark.load(resolve_device(run.settings.device))
    return loaded[key]


def _epochs(run: Run, data: Data) -> float:
    """Seconds of all epochs: steps of every phase, evaluations, and features for fresh priors."""
    settings = run.settings
    method = run.build(resolve_device(settings.device))
    optimizer = optimizer_of(
        method.parameters(), settings, resolve_device(settings.device), captured=False
    )
    step = Step(method, optimizer, list(data.constants), settings.clip_norm)
    method.train()
    steps = data.train.steps(settings.batch_size)
    phases: dict[str, list[int]] = {}
    for epoch in range(settings.epochs):
        phases.setdefault(method.phase(epoch), []).append(epoch)
    total = 0.0
    for epochs in phases.values():
        method.start_epoch(epochs[0])
        times = _times(run, data, step)
        total += len(epochs) * steps * statistics.median(times[_WARM:] or times)
        if method.fresh_share(epochs[0]) > 0:
            method.refresh(_some(run, data))
        method.end_epoch(epochs[0])
    forward: float = settings.epochs * data.validation.steps(settings.batch_size)
    forward += sum(method.fresh_share(epoch) for epoch in range(settings.epochs)) * steps
    method.train(False)
    with torch.no_grad():
        times = _times(run, data, lambda batch: method.predict(batch.inputs))
    return total + forward * statistics.median(times)


def _times(run: Run, data: Data, call: Callable[[Batch], object]) -> list[float]:
    """Seconds of a call for each of a few batches."""
    times = []
    for batch in _some(run, data):
        began = time.perf_counter()
        call(batch)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times


def _some(run: Run, data: Data) -> Iterator[Batch]:
    order = torch.Generator().manual_seed(0)
    return itertools.islice(data.train.batches(run.settings.batch_size, order), _WARM + _STEPS)
