"""Δm, the one number by which multi-task methods are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.errors import DataError


def delta_m(
    values: Sequence[float],
    single_task: Sequence[float] | None,
    higher_is_better: bool | Sequence[bool] = False,
) -> float:
    """Mean relative loss against single-task networks, in per cent; lower is better.

        Δm = 100 / K · Σ_k ±(M_k − S_k) / S_k

    with + where a lower metric is better and − where a higher one is (Maninis et al., 2019).

    Args:
        values: Metric M_k of each task.
        single_task: Metric S_k of a network trained for that task alone, in the same units.
        higher_is_better: For all tasks, or per task.

    Raises:
        DataError: There is no single-task row, lengths differ, or a number is not finite (or a
            single-task number not positive), so that Δm has no meaning.
    """
    if single_task is None or len(single_task) == 0:
        raise DataError(
            "Δm compares with single-task networks, and there is no single-task row; give a "
            "published one, or train single-task networks first"
        )
    signs = (
        [higher_is_better] * len(values) if isinstance(higher_is_better, bool) else higher_is_better
    )
    if not len(values) == len(single_task) == len(signs):
        raise DataError(
            f"Δm needs one number per task: got {len(values)} values, {len(single_task)} "
            f"single-task values and {len(signs)} directions"
        )
    total = 0.0
    for task, (value, single, higher) in enumerate(zip(values, single_task, signs, strict=True)):
        if not (math.isfinite(single) and single > 0):
            raise DataError(f"the single-task value of task {task} is {single}, not positive")
        if not math.isfinite(value):
            raise DataError(
                f"the metric of task {task} is {value}; Δm needs a finite one for every task"
            )
        total += (single - value if higher else value - single) / single
    return 100.0 * total / len(values)
