"""N(0, variance · I), the prior where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.posteriors._diagonal import DiagonalGaussian


class _Head(Protocol):
    """The part of a head that a distribution over its weights needs."""

    @property
    def site(self) -> str: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def blocks(self) -> int: ...
    @property
    def weight_size(self) -> int: ...
    @property
    def outputs_per_task(self) -> int: ...


def isotropic(head: _Head, variance: float | Sequence[float] | Tensor) -> DiagonalGaussian:
    """N(0, variance · I) over all weights of each task, bias included.

    Args:
        head: whose weights; the prior lies on the head's device, in float64 where it exists.
        variance: one number, or one per task.

    Raises:
        SettingError: if a variance is not positive and finite.
        ShapeError: if there is neither one variance nor one per task.
    """
    device = head.weight.device
    value = torch.as_tensor(variance, dtype=linalg.head_dtype(device), device=device)
    if value.shape not in ((), (head.blocks,)):
        raise ShapeError(
            f"head {head.site!r}: variance must be one number or one for each of {head.blocks} "
            f"tasks, not of shape {list(value.shape)}"
        )
    if not (value.isfinite() & (value > 0)).all():
        raise SettingError(
            f"head {head.site!r}: the prior variance must be positive and finite, not {variance}"
        )
    mean = value.new_zeros(head.blocks, head.weight_size)
    precision = value.reciprocal().reshape(-1, 1).expand(-1, head.weight_size)
    return DiagonalGaussian(mean, precision, outputs_per_task=head.outputs_per_task)
