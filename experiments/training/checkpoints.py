"""Checkpoints: all that a run needs to go on as if it had never stopped, or to be used again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from experiments import methods, registry
from experiments.errors import (
    CheckpointError,
    DamagedCheckpointError,
    DamagedDataError,
    DataError,
    MissingDataError,
    OutputError,
    SettingsError,
)
from experiments.files import prepare_folder, write_atomically
from experiments.files.reading import NUMBER, fits, saved_tensors, sensible
from experiments.methods import Method
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import results
from models.files import reason

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
    saved = load(checkpoint)
    matches(checkpoint, saved["identity"], run.identity(), run.defaults())
    done = len(saved["history"])
    if done > run.settings.epochs:
        raise SettingsError(
            f"epochs = {run.settings.epochs} cannot work: checkpoint {checkpoint} "
            f"holds {done} epochs already; give at least as many"
        )
    names = {task.name for task in run.benchmark.tasks}
    for epoch in saved["history"]:
        if absent := sorted(names - epoch["validation"].keys()):
            raise _damaged(checkpoint, f"an epoch has no metric of {', '.join(absent)}")
    prepare_folder(out)
    return saved


FORMAT = 3

REMEDY: Final = "delete it and start anew, or put an intact copy in its place"
_STAGE: Final = {"epoch": int, "by_example": Tensor, "applied": Tensor}
#: What a checkpoint holds; the parts that belong to a method are the method's to check.
_PARTS: Final = {
    "identity": dict,
    "history": [results.EPOCH],
    "method": dict,
    "optimizer": dict,
    "schedule": dict,
    "best": {"epoch": int, "score": NUMBER, "state": dict},
    "weights": [_STAGE],
}


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; the previous one stays until the new one is complete on the disk."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Raises:
        CheckpointError: There is none, it cannot be read, or another version wrote it.
        DamagedCheckpointError: It is damaged, or parts of it are missing.
    """
    try:
        state = saved_tensors(path, REMEDY)
    except DamagedDataError as error:
        raise DamagedCheckpointError(f"checkpoint {error}") from error
    except MissingDataError as error:
        raise CheckpointError(
            f"no checkpoint at {path}: give the --out of a run that was started, "
            "or leave --resume away to start one"
        ) from error
    except DataError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(
            f"checkpoint {path} has format {found}, this version reads {FORMAT}: {REMEDY}"
        )
    try:
        fits(state, _PARTS)
        sensible(state["identity"])
        fits(state["identity"], {"method": dict})
        state["identity"]["method"] = methods.current(state["identity"]["method"])
        epochs = [record["epoch"] for record in state["history"]]
        if epochs != [*range(1, len(epochs) + 1)] or state["best"]["epoch"] not in epochs:
            raise ValueError("its epochs are out of order")
        scores, best = [record["score"] for record in state["history"]], state["best"]
        if best["score"] != min(scores) or best["epoch"] != scores.index(min(scores)) + 1:
            raise ValueError("its best epoch is not the first of the lowest score")
    except ValueError as error:
        raise _damaged(path, error) from error
    return state


def _damaged(path: Path, what: object) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint {path} is damaged ({what}): {REMEDY}")


def matches(
    path: Path,
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Check that a checkpoint belongs to the run that is to go on.

    Args:
        path: The checkpoint, for the message.
        saved: Identity of the run that wrote it, nested mappings of plain values.
        wanted: Identity of the run at hand.
        defaults: Values of options that the version which wrote it may not have had.

    Raises:
        CheckpointError: They differ; the message names every difference.
    """
    found = differences(complete(saved, wanted, defaults or {}), wanted)
    if found:
        listed = "; ".join(found)
        raise CheckpointError(
            f"checkpoint {path} belongs to a run with other settings ({listed}): "
            "repeat the settings it was started with, or choose another --out"
        )


def complete(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """What was saved, with the defaults of wanted options that were not there when it was."""
    made = dict(saved)
    for key, value in wanted.items():
        if key not in made:
            if key in defaults:
                made[key] = defaults[key]
        elif isinstance(value, Mapping) and isinstance(made[key], Mapping):
            inner = defaults.get(key)
            made[key] = complete(made[key], value, inner if isinstance(inner, Mapping) else {})
    return made


def snapshot(state: Any) -> Any:
    """A copy of nested state on the CPU, which later steps leave alone."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(snapshot(value) for value in state)
    return state


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any], at: str = "") -> list[str]:
    """What differs between nested mappings of plain values, for people."""
    found = []
    for key in sorted({*saved, *wanted}, key=str):
        old, new = saved.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{at}{key}.")
        elif old != new:
            found.append(f"{at}{key}: {old!r} there, {new!r} here")
    return found


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
    saved = load(file)
    matches(file, saved["identity"], run.identity(), run.defaults())
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
