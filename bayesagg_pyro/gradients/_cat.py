"""Joining the gradient distributions of heads that read the same features, or different ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError, UnsupportedError
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._lazy import Joined, Lazy

__all__ = ["block_diag", "cat"]


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
        if part.shape[1:] != first.shape[1:]:
            raise ShapeError(
                f"gradients of {name!r} have shape {list(part.shape)}; "
                f"[tasks, {first.shape[1]}, {first.shape[2]}] is needed"
            )
        groups[name] = slice(start, start + part.shape[0])
        start += part.shape[0]
    grads = list(parts.values())
    if len(grads) == 1:
        return first.changed(groups=groups)
    if not any(isinstance(part, Lazy) for part in grads):
        return _cat(grads, groups)
    return Joined.of(
        lambda: _cat(grads, groups),
        parts=parts,
        observed=_observed(grads),
        groups=groups,
        batch_loss_scale=_scales(grads),
        _like=first.like,
        shape=torch.Size([start, *first.shape[1:]]),
    )


def _observed(grads: Sequence[GradientDistribution]) -> Tensor | None:
    if all(g.observed is None for g in grads):
        return None
    return torch.cat([g.labelled() for g in grads])


def _cat(grads: list[GradientDistribution], groups: Mapping[str, slice]) -> GradientDistribution:

    def covariance() -> Tensor:
        return torch.cat([g.covariance_matrix for g in grads])

    def sampler(count: int, generator: torch.Generator | None) -> Tensor:
        return torch.cat([g.sample((count,), generator=generator) for g in grads], 1)

    def error() -> MomentError:
        return MomentError(*map(torch.cat, zip(*(g.moment_error for g in grads), strict=True)))

    return GradientDistribution(
        torch.cat([g.mean for g in grads]),
        torch.cat([g.variance for g in grads]),
        _observed(grads),
        groups,
        covariance if all(g.covariance is not None for g in grads) else None,
        sampler if all(g.sampler is not None for g in grads) else None,
        _scales(grads),
        error if all(g.error is not None for g in grads) else None,
    )


def widened(grad: GradientDistribution, width: int) -> GradientDistribution:
    """Gradients by more features, whose own are 0; without covariances and errors."""
    more, sampler = width - grad.mean.shape[2], grad.sampler
    if not more:
        return grad

    def pad(tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, more))

    return replace(
        grad,
        mean=pad(grad.mean),
        variance=pad(grad.variance),
        covariance=None,
        sampler=sampler and (lambda count, generator: pad(sampler(count, generator))),
        error=None,
    )


def check_widths(widths: Mapping[str, int]) -> None:
    """Refuse features of different widths, {head: d}, where they are to be joined.

    Raises:
        UnsupportedError: with the remedy.
    """
    if len(set(widths.values())) > 1:
        raise UnsupportedError(
            f"features of different widths, {dict(widths)}, have no dimensions in common, which "
            "this aggregation needs: bring them to one width by a layer of the backbone, or take "
            "PrecisionWeighted() with a diagonal covariance"
        )


def _scales(grads: list[GradientDistribution]) -> Tensor | None:
    """Loss scales of all tasks where some are of a larger batch; else they follow from the mask."""
    if all(g.batch_loss_scale is None for g in grads):
        return None
    scales = [(g.loss_scale(), g) for g in grads]
    return torch.cat(
        [g.like.new_ones(g.tasks, 1, 1) if scale is None else scale for scale, g in scales]
    )


def block_diag(
    grads: Sequence[GradientDistribution], heads: Mapping[str, int]
) -> GradientDistribution:
    """Gradients by several tensors of features as those by one whose rows follow each other.

    A task has no target at the rows that its head does not read.

    Args:
        grads: [tasks, B, d] each, joined by `cat`; d is common.
        heads: {name: tasks} of all heads, in order; a head may be in none of `grads`.

    Raises:
        UnsupportedError: if features differ in width.
    """
    check_widths({name: grad.mean.shape[2] for grad in grads for name in grad.groups})
    sizes = [grad.mean.shape[1] for grad in grads]
    ends = list(accumulate(sizes))
    starts = dict(zip(heads, accumulate(heads.values(), initial=0), strict=False))
    groups = {name: slice(starts[name], starts[name] + size) for name, size in heads.items()}
    tasks, batch = sum(heads.values()), ends[-1]
    scale = grads[0].mean.new_zeros(tasks, 1, 1)
    observed = torch.zeros(tasks, batch, dtype=torch.bool, device=scale.device)

    def fill(joint: Tensor, parts: Sequence[Tensor], front: int = 0) -> Tensor:
        """Put blocks [*front, tasks, B, ...] where they belong."""
        before = (slice(None),) * front
        for grad, part, size, end in zip(grads, parts, sizes, ends, strict=True):
            for name, own in grad.groups.items():
                there, here = (*before, groups[name], slice(end - size, end)), (*before, own)
                joint[there] = part[here]
        return joint

    def joined(parts: Sequence[Tensor], front: int = 0) -> Tensor:
        shape = parts[0].shape
        zeros = parts[0].new_zeros(*shape[:front], tasks, batch, *shape[front + 2 :])
        return fill(zeros, parts, front)

    for grad, size in zip(grads, sizes, strict=True):
        own_scale = grad.loss_scale()
        for name, own in grad.groups.items():
            factor = 1.0 if own_scale is None else own_scale[own]
            scale[groups[name]] = factor * (batch / size)  # over the rows of all

    def error() -> MomentError:
        return MomentError(*map(joined, zip(*(g.moment_error for g in grads), strict=True)))

    return GradientDistribution(
        joined([g.mean for g in grads]),
        joined([g.variance for g in grads]),
        fill(observed, [g.labelled() for g in grads]),
        groups,
        (lambda: joined([g.covariance_matrix for g in grads]))
        if all(g.covariance is not None for g in grads)
        else None,
        (lambda n, generator: joined([g.sample((n,), generator=generator) for g in grads], 1))
        if all(g.sampler is not None for g in grads)
        else None,
        scale,
        error if all(g.error is not None for g in grads) else None,
    )
