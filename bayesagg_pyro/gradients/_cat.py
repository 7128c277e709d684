"""Joining the gradient distributions of several heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError

__all__ = ["cat"]


def cat(parts: Mapping[str, GradientDistribution]) -> GradientDistribution:
    """Stack the tasks of several heads over the same features; `groups` remembers whose is whose.

    Args:
        parts: {name: distribution [tasks_name, B, d]}.

    Raises:
        SettingError: if there is nothing to join.
        ShapeError: if batch sizes or feature sizes differ.
    """
    if not parts:
        raise SettingError("there is nothing to join: give at least one gradient distribution")
    first = next(iter(parts.values()))
    groups: dict[str, slice] = {}
    start = 0
    for name, part in parts.items():
        if part.mean.shape[1:] != first.mean.shape[1:]:
            raise ShapeError(
                f"gradients of {name!r} have shape {list(part.mean.shape)}; "
                f"[tasks, {first.mean.shape[1]}, {first.mean.shape[2]}] is needed"
            )
        groups[name] = slice(start, start + part.tasks)
        start += part.tasks
    grads = list(parts.values())
    if len(grads) == 1:
        return replace(first, groups=groups)
    observed = None
    if any(g.observed is not None for g in grads):
        observed = torch.cat(
            [
                g.mean.new_ones(g.mean.shape[:2], dtype=torch.bool)
                if g.observed is None
                else g.observed
                for g in grads
            ]
        )

    def covariance() -> Tensor:
        return torch.cat([g.covariance_matrix for g in grads])

    def sampler(count: int, generator: torch.Generator | None) -> Tensor:
        return torch.cat([g.sample((count,), generator=generator) for g in grads], 1)

    def error() -> MomentError:
        return MomentError(*map(torch.cat, zip(*(g.moment_error for g in grads), strict=True)))

    return GradientDistribution(
        torch.cat([g.mean for g in grads]),
        torch.cat([g.variance for g in grads]),
        observed,
        groups,
        covariance if all(g.covariance is not None for g in grads) else None,
        sampler if all(g.sampler is not None for g in grads) else None,
        _scales(grads),
        error if all(g.error is not None for g in grads) else None,
    )


def _scales(grads: list[GradientDistribution]) -> Tensor | None:
    """Loss scales of all tasks where some are of a larger batch; else they follow from the mask."""
    if all(g.batch_loss_scale is None for g in grads):
        return None
    scales = [(g.loss_scale(), g) for g in grads]
    return torch.cat(
        [g.mean.new_ones(g.tasks, 1, 1) if scale is None else scale for scale, g in scales]
    )
