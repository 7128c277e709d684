"""Whether a finished run is the run that a comparison plans."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import checkpoints, results
from experiments.compare.comparison import Job
from experiments.run import FREE_ON_RESUME
from experiments.training import RESULTS

__all__ = ["differences", "record"]


def record(job: Job, out: Path) -> dict[str, Any] | None:
    """The results of a run; None before it is finished.

    Raises:
        DataError: The file is damaged.
    """
    file = out / job.folder / RESULTS
    return results.load_whole(file) if os.path.lexists(file) else None


def differences(job: Job, found: Mapping[str, Any]) -> list[str]:
    """What was set otherwise when these results were made, apart from where and how fast.

    Args:
        job: The run as planned.
        found: Its results.
    """
    wanted = job.run.describe()
    for name in FREE_ON_RESUME:
        if name != "epochs":
            del wanted["settings"][name]
    wanted["benchmark"]["options"].pop("data", None)  # a place, and not what is there
    wanted, defaults = _plain(wanted), _plain(job.run.defaults())
    return checkpoints.differences(
        checkpoints.complete(_only(found, wanted), wanted, defaults), wanted
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As a results file has them."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def _only(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What was found of the wanted keys."""
    made = {}
    for key, value in wanted.items():
        if key in found:
            there = found[key]
            nested = isinstance(value, dict) and isinstance(there, Mapping)
            made[key] = _only(there, value) if nested else there
    return made
