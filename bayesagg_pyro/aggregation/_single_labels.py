"""A warning where weights per example have no effect: few examples have two labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: Examples with a target that a verdict takes, and the share with two that counts as hardly any.
_LEAST, _HARDLY = 8, 0.05


class SingleLabels:
    """Warns once if (nearly) no example of a batch has targets of two tasks.

    On a GPU nothing waits for the device: the counts of one batch are on their way while others
    follow, and are looked at when they have arrived. Devices of other kinds are not looked at.
    """

    def __init__(self) -> None:
        self._told = False
        self._underway: tuple[Tensor, Any] | None = None

    def look(self, observed: Sequence[Tensor]) -> None:
        """Count the targets of each example.

        Args:
            observed: [tasks, B], for each tensor of features.
        """
        device = observed[0].device
        if self._told or sum(map(len, observed)) < 2 or device.type not in ("cpu", "cuda"):
            return
        if self._underway is not None:
            counts, arrived = self._underway
            if arrived.query():
                self._underway = None
                self._judge(counts)
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        each = torch.cat([mask.sum(0) for mask in observed])
        counts = torch.stack([(each > 0).sum(), (each > 1).sum()])
        if device.type == "cpu":
            self._judge(counts)
            return
        counts = counts.to("cpu", non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._underway = counts, arrived

    def _judge(self, counts: Tensor) -> None:
        labelled, several = counts.tolist()
        if labelled < _LEAST or several > _HARDLY * labelled:
            return
        self._told = True
        warnings.warn(
            f"{several} of {labelled} examples have targets of two tasks or more, so weights per "
            'example have nothing to weigh and the power no effect; resolution="task" (or '
            '"dimension") weighs the tasks of a batch',
            stacklevel=2,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_told": self._told, "_underway": None}  # events cannot be copied
