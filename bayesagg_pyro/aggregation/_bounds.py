"""Bounds that keep a few tasks from taking all the weight of a precision-weighted update.

A variance close to zero makes a precision, and with it a weight, as large as one likes, although
all it says is that the task hardly matters there or already fits. Both bounds act per example and
dimension (or on averages, at coarser resolutions), need no value of the batch on the host, and keep
the law of scale: when all losses are multiplied by c, no weight changes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesagg_pyro._settings import real
from bayesagg_pyro.errors import SettingError


def check_bounds(floor: float | None, max_ratio: float | None) -> None:
    """Refuse bounds outside their range.

    Raises:
        SettingError: naming the value and the remedy.
    """
    if floor is not None and not 0 < real(floor) < math.inf:
        raise SettingError(
            f"floor must be a positive number, such as 0.1 (a tenth of the median variance), not "
            f"{floor!r}; None sets no floor"
        )
    if max_ratio is not None and not 1 <= real(max_ratio) < math.inf:
        raise SettingError(
            f"max_ratio must be a finite number of at least 1 (1: uniform weights), not "
            f"{max_ratio!r}; None sets no bound"
        )


def raise_floor(variance: Tensor, floor: float, observed: Tensor | None) -> Tensor:
    """Variances raised to `floor` times the median over the tasks.

    Args:
        variance: [tasks, B or 1, d or 1], at least 0.
        floor: relative to the median (the lower one of two) over observed tasks.
        observed: [tasks, B or 1, 1] bool, at the grain of `variance`, or None when all are.

    Returns:
        The shape of `variance`.
    """
    if observed is None:
        median = variance.median(0).values
    else:
        median = torch.where(observed, variance, torch.nan).nanmedian(0).values.nan_to_num(0.0)
    return torch.maximum(variance, floor * median)


def cap_ratio(logits: Tensor, max_ratio: float) -> Tensor:
    """Logits raised so that no task's weight is more than `max_ratio` times another's.

    Args:
        logits: [tasks, ...], −∞ for tasks that are not observed, which stay so.
        max_ratio: at least 1.
    """
    # Differences first: the logit of a task without any variance is too large to subtract from.
    gap = logits - logits.amax(0).clamp(min=torch.finfo(logits.dtype).min)
    return torch.where(logits == -torch.inf, logits, gap.clamp(min=-math.log(max_ratio)))
