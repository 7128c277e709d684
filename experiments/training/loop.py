"""The one trainer: any benchmark, any method."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics import Recorder
from experiments import processes
from experiments.benchmark import Batch
from experiments.errors import (
    CheckpointError,
    DivergenceError,
    ExperimentError,
    OutOfTime,
    OutputError,
    RunInterrupted,
)
from experiments.randomness import isolated_random, seed_of
from experiments.run import Run, limited_threads
from experiments.settings import require
from experiments.training import checkpoints, evaluation, results
from experiments.training.checkpoints import CHECKPOINT, RECORD, RESULTS, claim
from experiments.training.environment import environment
from experiments.training.optimizers import load_state, optimizer_of, schedule_of, set_rate
from experiments.training.reporting import Reporter, Several, loggers
from experiments.training.stepping import Step, Stepper, backend_for
from models.files import finite, reason

_WEIGHT_ROWS = 20
_FRESH_TO_WATCHED = 50

Record = dict[str, Any]


class Trainer:
    """Trains one run and leaves ``checkpoint.pt`` and ``results.json`` in its output folder.

    A checkpoint follows every epoch, so an interruption costs at most the epoch in progress, and a
    resumed run equals one that never stopped, bit for bit on the CPU.

    Args:
        run: What to train.
        out: Output folder; made when missing, and left where a run cannot begin, for the caller.
        resume: Go on from the checkpoint there.
        overwrite: Start anew even if the folder holds a run.
        reporter: Is told how it goes; nobody when None.
        record: Write diagnostics of one step in so many into ``record.jsonl``; None writes none.
        minutes: Stop at the end of the last epoch that fits into so many, counted from now; at
            least one epoch is trained. None trains to the end.
        log: Names of :data:`.reporting.LOGGERS`, which are told of every epoch, too.

    Raises:
        OutputError: The folder is not writable, or holds a run already.
        CheckpointError: ``resume`` was asked for and there is no fitting, intact checkpoint.
        SettingsError: The device does not exist, the checkpoint holds more epochs already, both
            ``resume`` and ``overwrite`` are asked for, or a logger's package is not installed.
    """

    def __init__(
        self,
        run: Run,
        out: Path,
        *,
        resume: bool = False,
        overwrite: bool = False,
        reporter: Reporter | None = None,
        record: int | None = None,
        minutes: float | None = None,
        log: Sequence[str] = (),
    ) -> None:
        require(record is None or record >= 1, "record", record, "give 1 or more steps")
        require(minutes is None or minutes > 0, "minutes", minutes, "give a positive number")
        self._began, self._longest = time.monotonic(), 0.0
        self._minutes = minutes
        self.run = run
        self.reporter: Reporter = reporter or Reporter()
        if log:
            self.reporter = Several([self.reporter, *loggers(log, out)])
        self.device = processes.device(run.settings.device)
        self.checkpoint = out / CHECKPOINT
        self.results = out / RESULTS
        self._every, self._overwrite = record, overwrite
        self._recorder: Recorder | None = None
        self._saved = claim(run, out, resume=resume, overwrite=overwrite)
        self.history: list[Record] = []
        self.best: Record | None = None
        self.weights: list[Record] = []

    def train(self) -> Record:
        """Train to the last epoch, evaluate the test split, and write the results file.

        Returns:
            The results, as in the file.

        Raises:
            DataError: The data set is missing or damaged.
            DivergenceError: A loss or a validation error is not finite; the checkpoint of the
                epoch before is kept.
            RunInterrupted: Ctrl-C; the last finished epoch is on disk.
            OutOfTime: The minutes are over; likewise.
            CheckpointError: The content of the checkpoint does not fit this run.
            OutputError: A file could not be written.
        """
        try:
            with isolated_random(self.device), limited_threads(self.run.settings.threads):
                self._prepare()
                for epoch in range(len(self.history), self.run.settings.epochs):
                    self._require_time(epoch)
                    began = time.monotonic()
                    self._epoch(epoch)
                    self._longest = max(self._longest, time.monotonic() - began)
                record = self._finish()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except OSError as error:
            if isinstance(error, ExperimentError):
                raise
            raise OutputError(
                f"a file cannot be read or written ({error}): free its permissions or the disk; "
                "finished epochs are kept"
            ) from error
        finally:
            self.reporter.close()
        return record

    def _interrupted(self) -> RunInterrupted:
        """What is on the disk now, which until all is prepared is the earlier run's."""
        there = self.checkpoint.exists()
        if self._overwrite and (there or self.results.exists()):
            return RunInterrupted(0, None, untouched=self.checkpoint.parent)
        history = self.history if self._saved is None else self._saved["history"]
        return RunInterrupted(len(history), self.checkpoint if there else None)

    def _prepare(self) -> None:
        run, settings = self.run, self.run.settings
        self.data = run.benchmark.load(self.device)
        self.method = run.build(self.device, self.data.constants)
        if processes.count() > 1:
            self.method.distribute()
        backend = backend_for(settings, self.device, self.method, self.data.train)
        self.optimizer = optimizer_of(
            self.method.parameters(), settings, self.device, backend is not None
        )
        self.schedule = schedule_of(settings)
        step = Step(self.method, self.optimizer, list(self.data.constants), settings.clip_norm)
        self.stepper = Stepper(step, self.method, self.optimizer, backend)
        self.fixed = self._fixed_examples()
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None
        if self._overwrite and processes.first():  # not before all is there that the new run needs
            for file in (self.checkpoint, self.results, self.results.with_name(RECORD)):
                file.unlink(missing_ok=True)
        self._overwrite = False
        if self._every is not None:
            self._recorder = self.stepper.recorder = self._watch(self._every)
        self.method.train()
        self.reporter.started(run, self.data, self.history)

    def _watch(self, every: int) -> Recorder:
        """Let a recorder watch the method; a resumed run drops records of steps to be redone."""
        train = self.data.train
        generator = torch.Generator().manual_seed(seed_of(self.run.settings.seed, "fresh"))
        many = _FRESH_TO_WATCHED * self.run.benchmark.watched
        examples = next(iter(train.batches(many, generator)))
        done = len(self.history) * train.steps(self.run.settings.batch_size)
        path = self.results.with_name(RECORD) if processes.first() else Path(os.devnull)
        try:
            return self.method.watch(path, every, done, examples.inputs, examples.targets)
        except OSError as error:
            raise OutputError(f"cannot write {path} ({error.strerror or error})") from error

    def _fixed_examples(self) -> Batch:
        """The same training examples for every run with this seed, to watch their weights."""
        generator = torch.Generator().manual_seed(seed_of(self.run.settings.seed, "watched"))
        return next(iter(self.data.train.batches(self.run.benchmark.watched, generator)))

    def _epoch(self, epoch: int) -> None:
        settings, method = self.run.settings, self.method
        seed = settings.seed
        apart = () if processes.first() else (processes.rank(),)  # they have other examples
        torch.manual_seed(seed_of(seed, "epoch", epoch, *apart))  # dropout and the like
        order = torch.Generator().manual_seed(seed_of(seed, "order", epoch))
        rate = self.schedule.rate
        set_rate(self.optimizer, rate)
        phase = method.phase(epoch)
        steps = self.data.train.steps(settings.batch_size)
        self.reporter.epoch_started(epoch + 1, steps, phase, rate)
        method.start_epoch(epoch)
        if self._recorder is not None:
            self._recorder.notes["epoch"] = epoch + 1
        began = time.perf_counter()
        try:
            done = self.stepper.run(self.data.train, settings.batch_size, order, self.reporter.step)
        except DivergenceError as error:
            raise DivergenceError(f"{error} (epoch {epoch + 1})") from error
        processes.make_equal(method.parameters())
        trained = time.perf_counter()
        weights = method.example_weights(self.fixed.inputs, self.fixed.targets)
        share = method.fresh_share(epoch)
        if share > 0:
            method.refresh(self._sample(epoch, share))
        method.end_epoch(epoch)
        data = self.data
        size = evaluation.evaluation_size(settings, self.device)
        measured = evaluation.evaluate(method, data, data.validation, size)
        benchmark = self.run.benchmark
        losses = results.by_loss(benchmark, done.losses)
        metrics = results.by_task(benchmark, measured.values)
        self._require_finite(epoch, "training loss", losses)
        self._require_finite(epoch, "validation metric", metrics)
        score = benchmark.score(measured.values, measured.figures)
        if not math.isfinite(score):  # no comparison with NaN is true: the first epoch would win
            raise DivergenceError(
                f"the validation score of epoch {epoch + 1} is {score}, by which none can be "
                f"selected; lower --lr, or look at how {benchmark.title} makes it of its metrics"
            )
        self.schedule.step(score)
        record = {
            "epoch": epoch + 1,
            "phase": phase,
            "learning_rate": rate,
            "train_loss": losses,
            "validation": metrics,
            "figures": dict(measured.figures),
            "delta_m": benchmark.delta_m(measured.values),
            "score": score,
            "effective_tasks": done.effective_tasks,
            "seconds": time.perf_counter() - began,
            "seconds_per_step": (trained - began) / done.steps,
        }
        best = self.best
        if best is None or score < best["score"]:
            best = {
                "epoch": epoch + 1,
                "score": score,
                "state": checkpoints.snapshot(method.state_dict()),
            }
        watched = list(self.weights)
        if weights is not None:
            watched.append(
                {
                    "epoch": epoch + 1,
                    "by_example": _thinned(weights.by_example).float().cpu(),
                    "applied": weights.applied.float().cpu(),
                }
            )
        # Written before it counts: an interruption in between repeats the epoch, identically.
        self._save([*self.history, record], best, watched)
        self.history.append(record)
        self.best, self.weights = best, watched
        self.reporter.epoch_finished(record, best)

    def _sample(self, epoch: int, share: float) -> Iterator[Batch]:
        """Batches of a random part of the training split, another one every epoch."""
        settings, split = self.run.settings, self.data.train
        order = torch.Generator().manual_seed(seed_of(settings.seed, "fresh", epoch))
        size = evaluation.evaluation_size(settings, self.device)
        count = max(1, round(share * split.steps(size)))
        return itertools.islice(split.batches(size, order), count)

    def _require_time(self, epoch: int) -> None:
        if self._minutes is None or self._longest == 0:
            return
        spent = time.monotonic() - self._began
        if processes.any_of(spent + self._longest > 60 * self._minutes):
            raise OutOfTime(epoch, self.run.settings.epochs, self.checkpoint)

    def _require_finite(self, epoch: int, what: str, values: Mapping[str, float | None]) -> None:
        for task, value in values.items():
            if value is not None and not math.isfinite(value):
                raise DivergenceError(
                    f"{what} of task {task} is {value} in epoch {epoch + 1}: training has "
                    "diverged; lower --lr, or change the method's settings"
                )

    def _save(self, history: list[Record], best: Record, weights: list[Record]) -> None:
        if not processes.first():
            return
        checkpoints.save(
            self.checkpoint,
            {
                "identity": self.run.identity(),
                "history": history,
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict()["state"],
                "schedule": self.schedule.state_dict(),
                "best": best,
                "weights": weights,
            },
        )

    def _restore(self, saved: Record) -> None:
        """Raise CheckpointError for content of other shapes or types, or that is not finite."""
        try:
            for state in (saved["best"]["state"], saved["method"]):  # the former for the end
                self.method.load_state_dict(state)
                if not all(map(finite, self.method.parameters())):
                    raise ValueError("a parameter is not finite")
            load_state(self.optimizer, saved["optimizer"])
            self.schedule.load_state_dict(saved["schedule"])
            for stage in saved["weights"]:
                if stage["by_example"].shape[1:] != stage["applied"].shape != ():
                    raise ValueError("watched weights of other shapes")
        except Exception as error:  # every method has ways of its own to refuse state
            raise CheckpointError(
                f"the content of checkpoint {self.checkpoint} does not fit this run "
                f"({reason(error)}): {checkpoints.REMEDY}"
            ) from error
        self.history = list(saved["history"])
        self.best = saved["best"]
        self.weights = list(saved["weights"])

    def _finish(self) -> Record:
        if self.best is None:
            raise AssertionError("a run has at least one epoch")
        last = evaluation.measure(self.run, self.method, self.data, len(self.history))
        final = checkpoints.snapshot(self.method.state_dict())
        self.method.load_state_dict(self.best["state"])
        best = evaluation.measure(self.run, self.method, self.data, self.best["epoch"])
        self.method.load_state_dict(final)
        record = {
            **evaluation.describe(self.run, self.method, self.data),
            "environment": environment(self.device),
            "best": best,
            "last": last,
            "constant": evaluation.measure_constant(self.run, self.data),
            "timing": results.timing(self.history),
            "history": self.history,
            "weights": evaluation.stages(self.weights),
        }
        if processes.first():
            results.save(self.results, record)
        return record


def _thinned(rows: Tensor) -> Tensor:
    """Rows from all over, where there are too many to keep."""
    if len(rows) <= _WEIGHT_ROWS:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, _WEIGHT_ROWS).long()]
