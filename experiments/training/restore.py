"""A finished run as it was at its best epoch, from its output folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from experiments import methods, registry
from experiments.errors import CheckpointError, SettingsError
from experiments.methods import Method
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import checkpoints, results
from experiments.training.checkpoints import CHECKPOINT, RESULTS
from models.files import reason


def described(record: dict[str, Any]) -> Run:
    """The run that a results file tells of.

    Raises:
        SettingsError: This version knows no such benchmark, method or option.
    """
    benchmark, method = record["benchmark"], record["method"]
    try:
        kind = registry.find(benchmark["name"])
    except SettingsError as error:
        raise SettingsError(
            f"the run's benchmark {benchmark['name']!r} cannot be found by its name: make it an "
            f"entry point of the group {registry.GROUP}"
        ) from error
    return Run(
        kind(**benchmark["options"]),
        method["name"],
        methods.find(method["name"]).options_type(**method["options"]),
        Settings(**record["settings"]),
    )


def restore(folder: Path, device: torch.device) -> tuple[Run, Method]:
    """The run and its method, in evaluation mode, with the weights of the best epoch.

    Raises:
        DataError: There is no results file, or it is damaged.
        CheckpointError: There is no checkpoint, or it is not of this run.
    """
    run = described(results.load(folder / RESULTS))
    file = folder / CHECKPOINT
    saved = checkpoints.load(file)
    checkpoints.matches(file, saved["identity"], run.identity(), run.defaults())
    method = run.build(device)
    try:
        method.load_state_dict(saved["best"]["state"])
    except Exception as error:  # every method has ways of its own to refuse state
        raise CheckpointError(
            f"the content of checkpoint {file} does not fit its run ({reason(error)}): "
            "repeat the run"
        ) from error
    method.train(False)
    return run, method
