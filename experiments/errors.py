"""What can go wrong in an experiment, as types.

Every message names the thing, the value that was met and a remedy; the command line prints it as
one line.
"""

from __future__ import annotations

from pathlib import Path


class ExperimentError(Exception):
    """Base class of everything that ``experiments`` raises on purpose."""


class DataError(ExperimentError):
    """A data set or a record is missing, damaged or not what it claims to be."""


class MissingDataError(DataError):
    """There is no such file."""


class DamagedDataError(DataError):
    """A file was read, and its content is not what it should be."""


class SettingsError(ExperimentError, ValueError):
    """A setting has a value that cannot work, or two settings contradict each other."""


class OutputError(ExperimentError, OSError):
    """The output folder cannot be used: not writable, or holding another run."""


class CheckpointError(ExperimentError):
    """A checkpoint is missing, damaged, or belongs to a run with other settings."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint cannot be read: it was cut off, or bits of it have changed."""


class DivergenceError(ExperimentError, ArithmeticError):
    """A loss or a validation error stopped being finite."""


class RunInterrupted(ExperimentError):
    """The run was stopped by the user; the last finished epoch is on disk.

    Attributes:
        epochs_done: Number of epochs that the checkpoint holds.
        checkpoint: Where it is, or None when no epoch was finished.
        untouched: Folder of the earlier run that was to be overwritten, while it still is whole.
    """

    def __init__(
        self, epochs_done: int, checkpoint: Path | None, *, untouched: Path | None = None
    ) -> None:
        self.epochs_done = epochs_done
        self.checkpoint = checkpoint
        self.untouched = untouched
        if untouched is not None:
            message = f"interrupted before it began; the earlier run in {untouched} is untouched"
        elif checkpoint is None:
            message = "interrupted before the first epoch was finished; there is nothing to resume"
        else:
            message = (
                f"interrupted; {epochs_done} finished epoch(s) are kept in {checkpoint}; "
                "go on with the same command and --resume"
            )
        super().__init__(message)


class OutOfTime(ExperimentError):
    """The minutes given to a run are over; the last finished epoch is on disk.

    Attributes:
        epochs_done: Number of epochs that the checkpoint holds.
        epochs: Number of epochs of the whole run.
        checkpoint: Where it is.
    """

    def __init__(self, epochs_done: int, epochs: int, checkpoint: Path) -> None:
        self.epochs_done = epochs_done
        self.epochs = epochs
        self.checkpoint = checkpoint
        super().__init__(
            f"the given minutes are over; {epochs_done} of {epochs} epochs are kept in "
            f"{checkpoint}; go on with the same command and --resume"
        )
