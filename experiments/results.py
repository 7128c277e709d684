"""The results file: everything needed to read a run, and to repeat it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch

from experiments.benchmark import Benchmark, Values
from experiments.errors import DataError
from experiments.files import write_json

__all__ = ["OF_A_RUN", "by_task", "check", "environment", "load", "read", "save", "timing"]

FORMAT = 1
#: What the record of a run has at least; other files of that name have not.
OF_A_RUN: Final = frozenset({"benchmark", "method", "settings", "best", "last", "history"})
_PACKAGES = (
    *("bayesagg_pyro", "torch", "pyro-ppl", "numpy", "qm9pack", "torch-geometric", "rdkit"),
    *("torchvision", "pillow", "scikit-learn"),
)


def by_task(benchmark: Benchmark, values: Values) -> dict[str, float | None]:
    """``{task name: value}``."""
    return {task.name: value for task, value in zip(benchmark.tasks, values, strict=True)}


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine, source revision and command line."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": _command(),
        "revision": _revision(),
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def timing(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Total seconds, and the median over epochs of the seconds per step in each phase."""
    phases: dict[str, list[float]] = {}
    for record in history:
        phases.setdefault(record["phase"], []).append(record["seconds_per_step"])
    return {
        "seconds": sum(record["seconds"] for record in history),
        "seconds_per_step": {name: statistics.median(times) for name, times in phases.items()},
    }


def save(path: Path, record: Mapping[str, Any]) -> None:
    """Write a results file."""
    write_json(path, {"format": FORMAT, **record})


def load(path: Path) -> dict[str, Any]:
    """Read the results file of a run.

    Raises:
        DataError: There is none, or it is not one.
    """
    record = read(path)
    check(record, path)
    return record


def read(path: Path) -> dict[str, Any]:
    """Read a file of that name, whoever wrote it.

    Raises:
        DataError: There is none, or it is damaged.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"no readable results file at {path} ({error}): finish a run with --out {path.parent}"
        ) from error
    if not isinstance(record, dict):
        raise DataError(
            f"{path} holds a {type(record).__name__} and no record: finish a run with "
            f"--out {path.parent}"
        )
    return record


def check(record: Mapping[str, Any], path: Path) -> None:
    """Refuse what is not the record of a run.

    Args:
        record: What was read.
        path: Where, for the message.

    Raises:
        DataError: A part of it is missing, or another version wrote it.
    """
    missing = sorted(OF_A_RUN - record.keys())
    if missing:
        raise DataError(
            f"{path} is not the results file of a run (it has no {', '.join(missing)}): give the "
            "output folder of a finished run"
        )
    if record.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {record.get('format')!r}, this version reads {FORMAT}: repeat the "
            "run, or read it with the version that wrote it"
        )


def _command() -> list[str]:
    """The command line, as a person would type it."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["python", "-m", _package(program.parent), *sys.argv[1:]]
    return [program.name, *sys.argv[1:]]


def _package(folder: Path) -> str:
    """The package in a folder, with those around it: ``experiments.compare``.

    Worker processes know the program from its path alone, so this does not ask ``__main__``.
    """
    names = [folder.name]
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
        names.insert(0, folder.name)
    return ".".join(names)


def _revision() -> str | None:
    """The git revision of this source tree, marked when files differ from it; None outside git."""
    folder = Path(__file__).resolve().parent.parent
    try:
        if not (folder / ".git").exists():
            return None
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
