"""Who hears how a run goes: a reporter, and loggers, which write its epochs elsewhere.

Loggers are for a CSV file, TensorBoard, Weights & Biases and MLflow; what one needs is imported
when it is made. Where a run goes on, it is told the epochs of before again, as it may not have
heard of the last.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from torch import Tensor

from experiments.benchmark import Data
from experiments.errors import SettingsError
from experiments.files import write_text
from experiments.run import Run


class Reporter:
    """Is told how a run goes, and tells nobody; a subclass listens to what it cares for."""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Data and method are ready; ``history`` has the epochs that come from a checkpoint."""

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        """Epoch ``epoch`` (from 1) begins."""

    def step(self, loss: Tensor) -> None:
        """A step is done; ``loss`` is the mean loss over tasks, left on its device."""

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """The epoch's record in the history; ``epoch`` and ``score`` of the best epoch so far."""

    def close(self) -> None:
        """The run is over, however it ended."""


class Several(Reporter):
    """Tells each of several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        for event in ("started", "epoch_started", "step", "epoch_finished", "close"):
            setattr(self, event, partial(_tell, [getattr(one, event) for one in reporters]))


def _tell(each: Sequence[Callable[..., None]], *given: Any) -> None:
    for hear in each:
        hear(*given)


def loggers(names: Sequence[str], folder: Path) -> list[Reporter]:
    """The loggers of these names.

    Raises:
        SettingsError: An unknown name, or a package that is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise SettingsError(f"log = {name!r} is unknown: give some of {', '.join(LOGGERS)}")
    return [LOGGERS[name](folder) for name in names]


class Logger(Reporter):
    """What is common: all epochs of a run, also those of an earlier process."""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what is there."""
        self.begin(run)
        for record in history:
            self.write(record)

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """Add the epoch."""
        self.write(record)

    def begin(self, run: Run) -> None:
        """Before the first epoch."""

    def write(self, record: Mapping[str, Any]) -> None:
        """One epoch's values."""


class Csv(Logger):
    """``epochs.csv`` in the run's folder, a row for each epoch."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epochs.csv"
        self._rows: list[dict[str, Any]] = []

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the epoch's row."""
        self._rows.append({"epoch": record["epoch"], "phase": record["phase"], **_flat(record)})
        columns = dict.fromkeys(name for row in self._rows for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self._path, text.getvalue())


class TensorBoard(Logger):
    """Event files in ``tensorboard/`` of the run's folder."""

    def __init__(self, folder: Path) -> None:
        _imported("tensorboard")
        self._folder, self._writer = folder / "tensorboard", cast(Any, None)

    def begin(self, run: Run) -> None:
        """Open a file, which takes the place of earlier ones."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the epoch's values."""
        for name, value in _flat(record).items():
            self._writer.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        """Write what is still held."""
        if self._writer is not None:
            self._writer.close()


class WandB(Logger):
    """A run of Weights & Biases, in the project that its environment names."""

    def __init__(self, folder: Path) -> None:
        self._package, self._folder = _imported("wandb"), folder

    def begin(self, run: Run) -> None:
        """With the settings."""
        self._package.init(dir=str(self._folder), name=_name(run), config=run.describe())

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the epoch's values."""
        self._package.log(_flat(record), step=record["epoch"])

    def close(self) -> None:
        """End the run."""
        self._package.finish()


class MlFlow(Logger):
    """A run of MLflow, in the store that its environment names."""

    def __init__(self, folder: Path) -> None:
        self._package = _imported("mlflow")

    def begin(self, run: Run) -> None:
        """With the settings."""
        self._package.start_run(run_name=_name(run))
        about = run.describe()
        parts = {**about["benchmark"]["options"], **about["method"]["options"], **about["settings"]}
        self._package.log_params(parts)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the epoch's values."""
        self._package.log_metrics(_flat(record), step=record["epoch"])

    def close(self) -> None:
        """End the run."""
        self._package.end_run()


LOGGERS: Final[Mapping[str, Callable[[Path], Reporter]]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MlFlow,
}


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SettingsError(
            f"log = {package!r} needs a package that is not installed: pip install {package}"
        ) from error


def _name(run: Run) -> str:
    return f"{run.benchmark.name}-{run.method}-seed{run.settings.seed}"


def _flat(record: Mapping[str, Any]) -> dict[str, float]:
    """Every number of an epoch, by ``name`` or ``part/task``; what is unknown is left out."""
    found: dict[str, float] = {}
    for name, value in record.items():
        inner = value if isinstance(value, Mapping) else {"": value}
        for task, number in inner.items():
            if name != "epoch" and isinstance(number, int | float):
                found[f"{name}/{task}".removesuffix("/")] = float(number)
    return found
