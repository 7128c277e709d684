"""The output folder of a run: its files, and what may be there when a run begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from experiments.errors import OutputError, SettingsError
from experiments.files import prepare_folder
from experiments.run import Run
from experiments.training import checkpoints

CHECKPOINT: Final = "checkpoint.pt"
RECORD: Final = "record.jsonl"
RESULTS: Final = "results.json"


def claim(run: Run, out: Path, *, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """Make the folder, and refuse one whose content does not fit what is asked for.

    Returns:
        The checkpoint to go on from; None for a run that starts anew.

    Raises:
        OutputError: The folder is not writable, or holds a run already.
        CheckpointError: ``resume`` was asked for and there is no fitting, intact checkpoint.
        SettingsError: The checkpoint holds more epochs already, or both ``resume`` and
            ``overwrite`` are asked for.
    """
    if resume and overwrite:
        raise SettingsError("--resume goes on and --overwrite starts anew: give one of them")
    checkpoint = out / CHECKPOINT
    if not resume:
        prepare_folder(out)
        if not overwrite and any(map(os.path.lexists, (checkpoint, out / RESULTS))):
            raise OutputError(
                f"the output folder {out} holds a run already: go on with --resume, "
                "start anew with --overwrite, or choose another --out"
            )
        return None
    saved = checkpoints.load(checkpoint)
    checkpoints.matches(checkpoint, saved["identity"], run.identity(), run.defaults())
    done = len(saved["history"])
    if done > run.settings.epochs:
        raise SettingsError(
            f"epochs = {run.settings.epochs} cannot work: checkpoint {checkpoint} "
            f"holds {done} epochs already; give at least as many"
        )
    prepare_folder(out)
    return saved
