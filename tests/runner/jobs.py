"""Jobs whose processes fail in different ways, and an engine without processes.

Importable, so that workers can unpickle the jobs.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from experiments.benchmark import Batch, Data, Split
from experiments.errors import DataError
from experiments.methods import MethodOptions
from experiments.run import Run
from experiments.runner import Job, JobOutcome, work
from experiments.settings import Settings
from tests.experiments.toy import Toy

BATCH = 32


@dataclass(frozen=True)
class Trouble(Toy):
    """The toy benchmark, with a fate.

    "" is fine, "error" fails, "kill" lets the process die at once, "once FILE" the first one, which
    makes the file; "slow" gives an epoch that lasts.
    """

    name: ClassVar[str] = "trouble"

    fate: str = ""

    def load(self, device: torch.device) -> Data:
        if self.fate == "error":
            raise DataError("the data set is missing: give another")
        word, _, file = self.fate.partition(" ")
        if word == "kill" or (word == "once" and not Path(file).exists()):
            if file:
                Path(file).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        data = super().load(device)
        if self.fate == "slow":
            return dataclasses.replace(data, train=_Slow(data.train))
        return data


@dataclass
class _Slow:
    """A split of which every pass takes a while."""

    split: Split

    def __len__(self) -> int:
        return len(self.split)

    def steps(self, batch_size: int) -> int:
        return self.split.steps(batch_size)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        if batch_size == BATCH:  # of training; the trainer looks at a few examples besides
            time.sleep(1.0)
        yield from self.split.batches(batch_size, generator)


def job(folder: Path, fate: str = "", epochs: int = 2) -> Job:
    settings = Settings(epochs=epochs, batch_size=BATCH, device="cpu", threads=1)
    return Job(Run(Trouble(fate=fate), "ls", MethodOptions(), settings), folder)


class Here:
    """The engine `Local` in this process, one job after the other: no imports in others."""

    room: int | None = None
    isolated = False

    def __init__(self, jobs: int = 1, threads: int | None = None) -> None:
        self.threads = threads or 1

    def submit(self, jobs: Sequence[Job], deadline: float | None) -> list[Future[JobOutcome]]:
        found: list[Future[JobOutcome]] = [Future() for _ in jobs]
        for one, ended in zip(jobs, found, strict=True):
            ended.set_result(work(one, self.threads, deadline))
        return found

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def close(self, *, stop: bool) -> None:
        """Nothing runs any more."""
