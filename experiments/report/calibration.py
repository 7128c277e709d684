"""What predictive distributions are worth on test rows: coverage, transforms, stated probabilities.

Runs are restored from their checkpoints, since few benchmarks measure predictive distributions.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics import reliability
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Split
from experiments.methods import Method
from experiments.report.collect import located
from experiments.report.comparison import label_of
from experiments.run import limited_threads
from experiments.runner.store import TRIALS, Place, State
from experiments.scores.distributions import covered, transformed
from experiments.tables.table import MISSING, Cell, Column, Row, Table
from experiments.training.checkpoints import CHECKPOINT, RESULTS, restore

_ROWS = 1024

_NOTES = (
    "By default: as the method predicts after training. Fitted: with a noise scale and a "
    "temperature for each task that the validation rows chose. Mean ± standard deviation over "
    "seeds.",
    "Coverage: per cent of the targets in central 90 % intervals; by chance: ± one standard error "
    "of a calibrated prediction, of the targets of one seed.",
    "Error: of numbers and counts the largest difference between the distribution function of "
    "their transforms F(y) and that of a uniform variable (Kolmogorov's), of classes the expected "
    "calibration error (15 bins of confidences). By chance: what one in twenty calibrated "
    "predictions exceeds.",
)


@dataclass(frozen=True)
class Scores:
    """Of one task.

    Attributes:
        count: Targets.
        coverage: Of 90 % intervals, in per cent; None for classes.
        error: Of calibration, as the notes of the table say.
        chance: The error that one in twenty calibrated predictions exceeds.
    """

    count: int
    coverage: float | None
    error: float
    chance: float


def calibration(folder: Path, warn: Callable[[str], object] = warnings.warn) -> list[Table]:
    """A table for each setup in a store, of every method and task.

    Args:
        folder: The store.
        warn: Is told of results files that cannot be read, and of runs whose checkpoint is gone.

    Raises:
        DataError: The data of a run are missing.
        CheckpointError: A checkpoint does not fit its run.
    """
    for path in sorted(folder.rglob(RESULTS)):
        place, trial = Place(path.parent), TRIALS in path.relative_to(folder).parts
        if not (trial or place.checkpoint.exists()) and place.state() is State.DONE:
            warn(f"left out of calibration: the run in {place.folder} has no {CHECKPOINT} any more")
    made = []
    for setup, folders in located(folder, CHECKPOINT, warn):
        rows: list[Row] = []
        for key, places in folders.items():
            found = [_of_run(place) for place in places]
            first = True
            for task in dict.fromkeys(task for one in found for task in one):
                cells = _cells([one[task] for one in found if task in one])  # else without targets
                rows.append(Row(f"{label_of(key)}: {task}", cells, rule=first))
                first = False
        title = f"{setup.title}: calibration on the test split ({setup.describe()})"
        made.append(Table("calibration", title, _COLUMNS, tuple(rows), _NOTES))
    return made


_COLUMNS = (
    Column("targets"),
    *(Column(name, "coverage of 90 %") for name in ("by default", "fitted", "by chance")),
    *(Column(name, "error") for name in ("by default", "fitted", "by chance")),
)


def _cells(found: Sequence[tuple[Scores, Scores]]) -> tuple[Cell, ...]:
    """By default and fitted, for each seed."""
    count = statistics.fmean(usual.count for usual, _ in found)
    covered_by = [
        Cell.spread([s.coverage for s in both if s.coverage is not None], 1)
        for both in zip(*found, strict=True)
    ]
    errors = [Cell.spread([s.error for s in both], 3) for both in zip(*found, strict=True)]
    around = Cell(90.0, 100 * math.sqrt(0.09 / count), 1) if covered_by[0] != MISSING else MISSING
    chance = Cell(statistics.fmean(usual.chance for usual, _ in found), decimals=3)
    return Cell(count, decimals=0), *covered_by, around, *errors, chance


def _of_run(folder: Path) -> dict[str, tuple[Scores, Scores]]:
    """By default and fitted to the validation split, for each task with targets."""
    with limited_threads(1), torch.no_grad():
        run, method = restore(folder, torch.device("cpu"))
        data = run.benchmark.load(torch.device("cpu"))
        method.calibrate(None)
        usual = _of_split(run.benchmark, method, data.test)
        method.calibrate(iter(data.validation.batches(_ROWS)))
        fitted = _of_split(run.benchmark, method, data.test)
    return {task: (usual[task], fitted[task]) for task in usual}


def _of_split(benchmark: Benchmark, method: Method, split: Split) -> dict[str, Scores]:
    parts: dict[str, list[tuple[Any, Tensor, Tensor]]] = {}
    by_name = benchmark.heads(True)
    for batch in split.batches(_ROWS):
        for name, law in method.predictive(batch.inputs).items():
            parsed = by_name[name].parse_targets(batch.targets[name], law.batch_shape[0])
            seen = parsed.mask
            seen = torch.ones_like(parsed.values, dtype=torch.bool) if seen is None else seen
            parts.setdefault(name, []).append((law, parsed.values, seen))
    symbols = {task.name: task.symbol for task in benchmark.tasks}
    names = (symbols.get(name, name) for name in benchmark.losses)  # not what it is measured by
    made = {}
    for name, head in by_name.items():
        for column, found in enumerate(scores(head, parts[name])):
            symbol = next(names, f"{name} {column + 1}")
            if found is not None:
                made[symbol] = found
    return made


def scores(head: Head, parts: Sequence[tuple[Any, Tensor, Tensor]]) -> Iterator[Scores | None]:
    """Of each task of a head; None for one without a target.

    Args:
        head: Whose kind of targets it is.
        parts: Batch after batch a predictive distribution of batch shape [B, tasks], targets, and
            which of them are known.
    """
    classes = head.target_kind in ("binary", "class")
    measure = _probabilities if classes else _transforms
    each = [measure(head, law, targets) for law, targets, _ in parts]
    seen = torch.cat([known for _, _, known in parts])
    values = [torch.cat(found) for found in zip(*each, strict=True)]
    for task in range(seen.shape[1]):
        known = seen[:, task]
        first, second = (value[known, task] for value in values)
        if not known.any():
            yield None
        elif classes:
            found = reliability(first, second)
            yield Scores(len(first), None, float(found.ece), float(found.p_values()[1][0]))
        else:
            yield Scores(
                len(first), 100 * float(second.mean()), _distance(first), 1.358 / len(first) ** 0.5
            )


def _transforms(head: Head, law: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    counts = head.target_kind == "count"
    return transformed(law, targets, counts).double(), covered(law, targets, counts)


def _probabilities(head: Head, law: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of all classes, [B, tasks, C], so that a confidence is that of the likeliest, and labels."""
    p = law.probs
    return (torch.stack([1 - p, p], -1) if head.target_kind == "binary" else p), targets.long()


def _distance(transforms: Tensor) -> float:
    """Kolmogorov's: the largest |F_n(u) − u|."""
    sorted_ = transforms.sort().values
    n = len(sorted_)
    steps = torch.arange(1, n + 1, dtype=sorted_.dtype) / n
    return float(torch.maximum(steps - sorted_, sorted_ - steps + 1 / n).max())
