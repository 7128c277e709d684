"""Where and by which command something was run, for results files."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch

_PACKAGES: Final = (
    *("bayesagg_pyro", "torch", "pyro-ppl", "numpy", "qm9pack", "torch-geometric", "rdkit"),
    *("torchvision", "pillow", "scikit-learn", "statsmodels"),
)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine, source revision and command line."""
    return {
        "command": _command(),
        "revision": _revision(),
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@functools.cache
def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _command() -> list[str]:
    """The command line, as a person would type it."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["python", "-m", _package(program.parent), *sys.argv[1:]]
    return [program.name, *sys.argv[1:]]


def _package(folder: Path) -> str:
    """The package in a folder, with those around it: ``experiments.methods``.

    Worker processes know the program from its path alone, so this does not ask ``__main__``.
    """
    names = [folder.name]
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
        names.insert(0, folder.name)
    return ".".join(names)


@functools.cache
def _revision() -> str | None:
    """The git revision of this source tree, marked when files differ from it; None outside git.

    Asked for once: what a process has imported stays as it was.
    """
    folder = Path(__file__).resolve().parents[2]
    try:
        if not (folder / ".git").exists():
            return None
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            encoding="utf-8",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
