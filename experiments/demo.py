"""The demonstration: LS and BayesAgg on a few thousand real molecules, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from experiments import results
from experiments.files import prepare_folder, strict
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.qm9.benchmark import Qm9
from experiments.reporting import Reporter
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import RESULTS, Trainer

__all__ = ["EPOCHS", "MOLECULES", "TEST", "VALIDATION", "demo", "runs"]

MOLECULES: Final = 3000
EPOCHS: Final = 24
VALIDATION: Final = 500
TEST: Final = 1000


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

    Args:
        molecules: Training molecules.
        epochs: Passes over them.
        seed: Of split and training.
        validation: Validation molecules.
        test: Test molecules.
        data: A QM9 data file; None for the default place.
    """
    benchmark = Qm9(
        molecules=molecules,
        validation=validation,
        test=test,
        split_seed=seed,
        data=data,
        width=32,
        edge_width=16,
        groups=2,
    )
    # Small batches and a schedule that reacts soon: there are only a few thousand steps, so small
    # that a second thread would gain little, and lose much where the cores are not idle.
    settings = Settings(
        epochs=epochs,
        batch_size=30,
        learning_rate=3e-3,
        plateau_patience=2,
        seed=seed,
        device="cpu",
        threads=1,
    )
    # A prior that is weak next to so few molecules (the paper's variance of 1e-3 is a precision of
    # 1,000), and an update that keeps its size when the pre-training ends.
    bayesagg = BayesAggOptions(
        pretrain=max(1, epochs // 3),
        power=0.5,
        prior_variance=1.0,
        resolution="dimension",
        scale="sum",
    )
    chosen: dict[str, MethodOptions] = {"ls": MethodOptions(), "bayesagg": bayesagg}
    return [Run(benchmark, name, options, settings) for name, options in chosen.items()]


def demo(todo: list[Run], out: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Train all runs, each in a folder of its own, and write one results file for all.

    Returns:
        The results of each.

    Raises:
        ExperimentError: As for :class:`experiments.training.Trainer`.
    """
    prepare_folder(out)
    records = [
        Trainer(run, out / run.method, overwrite=True, reporter=reporter).train() for run in todo
    ]
    results.save(out / RESULTS, {"runs": [strict(record) for record in records]})
    return records
