"""The demonstration: five methods on a few thousand real molecules, on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import torch

from experiments import methods, results
from experiments.errors import ExperimentError
from experiments.files import prepare_folder, strict
from experiments.qm9.benchmark import Qm9
from experiments.run import Run
from experiments.runner import Ending, Job, Local, Place, execute
from experiments.runner.benchmarks import preset
from experiments.runner.execute import Tick
from experiments.settings import Settings
from experiments.training import RESULTS

__all__ = ["EPOCHS", "METHODS", "MOLECULES", "TEST", "VALIDATION", "demo", "jobs", "runs"]

_SMALL: Final = preset("qm9", "small")
MOLECULES: Final = int(_SMALL.benchmark["molecules"])
EPOCHS: Final = int(_SMALL.settings["epochs"])
VALIDATION: Final = int(_SMALL.benchmark["validation"])
TEST: Final = int(_SMALL.benchmark["test"])

METHODS: Final[dict[str, dict[str, Any]]] = {
    "ls": {},
    "uw": {},
    "imtl-g": {"level": "representation"},
    "aligned-mtl-ub": {},
    "bayesagg": {},
}
"""Methods and options: one of each kind that takes about as long a step as LS."""


def runs(
    molecules: int = MOLECULES,
    epochs: int = EPOCHS,
    seed: int = 0,
    *,
    validation: int = VALIDATION,
    test: int = TEST,
    data: str | None = None,
) -> list[Run]:
    """The runs of the demonstration, which share data, network and initial weights.

    They are those of ``python -m experiments run qm9 --preset small``, but for what is given here.

    Args:
        molecules: Training molecules.
        epochs: Passes over them.
        seed: Of split and training.
        validation: Validation molecules.
        test: Test molecules.
        data: A QM9 data file; None for the default place.
    """
    benchmark = Qm9(
        **{
            **_SMALL.benchmark,
            "molecules": molecules,
            "validation": validation,
            "test": test,
            "split_seed": seed,
            "data": data,
        }
    )
    settings = dataclasses.replace(
        Settings(**_SMALL.settings), epochs=epochs, seed=seed, device="cpu", threads=1
    )
    usual = {
        "bayesagg": {**_SMALL.methods["bayesagg"], "pretrain": max(1, epochs // 12)},
    }
    return [
        Run(benchmark, name, methods.options(name, given, usual), settings)
        for name, given in METHODS.items()
    ]


def jobs(todo: list[Run], out: Path) -> list[Job]:
    """Each in a folder of its own."""
    return [Job(run, out / run.method) for run in todo]


def demo(
    todo: list[Job], out: Path, parallel: int, tick: Tick | None = None
) -> list[dict[str, Any]]:
    """Train all runs anew, some side by side, and write one results file for all.

    Args:
        todo: The runs.
        out: Folder of the demonstration.
        parallel: Runs side by side.
        tick: Is told how they end.

    Returns:
        The results of each.

    Raises:
        ExperimentError: The data is missing, or a run failed.
        KeyboardInterrupt: After stopping what was running.
    """
    todo[0].run.benchmark.load(torch.device("cpu"))  # built once, before any process wants it
    prepare_folder(out)
    for job in todo:
        place = Place(job.folder)
        with place.locked() as mine:
            if not mine:
                raise ExperimentError(f"another demonstration is at work in {out}: give --out")
            place.checkpoint.unlink(missing_ok=True)
            place.results.unlink(missing_ok=True)
    outcomes = execute(todo, lambda n: Local(n, threads=1), parallel, tick)
    for job, found in outcomes.items():
        if found.ending is not Ending.DONE:
            raise ExperimentError(f"{job.run.method} {found.ending.value}: {found.message}")
    records = [Place(job.folder).load() for job in todo]
    results.save(out / RESULTS, {"runs": [strict(record) for record in records]})
    return records
