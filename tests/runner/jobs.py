"""Jobs whose processes fail in different ways; importable, so that workers can unpickle them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from experiments.benchmark import Data
from experiments.errors import DataError
from experiments.methods import MethodOptions
from experiments.run import Run
from experiments.runner import Job
from experiments.settings import Settings
from tests.experiments.toy import Toy


@dataclass(frozen=True)
class Trouble(Toy):
    """The toy benchmark, with a fate: "" (fine), "error", or "kill" (the process dies)."""

    name: ClassVar[str] = "trouble"

    fate: str = ""

    def load(self, device: torch.device) -> Data:
        if self.fate == "error":
            raise DataError("the data set is missing: give another")
        if self.fate == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load(device)


def job(folder: Path, fate: str = "", epochs: int = 2) -> Job:
    settings = Settings(epochs=epochs, batch_size=32, device="cpu", threads=1)
    return Job(Run(Trouble(fate=fate), "ls", MethodOptions(), settings), folder)
