"""Checks on what users pass to a head, before anything is computed."""

from __future__ import annotations

import math
from typing import Any, Literal, NoReturn, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DeviceError, DtypeError, NonFiniteError, SettingError, ShapeError
from bayesagg_pyro.targets import Parsed, RawTargets, Targets

__all__ = [
    "Missing",
    "TargetKind",
    "are_counts",
    "check_device",
    "check_features",
    "check_finite",
    "check_kind",
    "like",
    "parse_targets",
    "refuse_support",
]

#: Types that few of torch's functions take.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: How a head takes targets that were not observed: not at all, as NaN, or as that number.
Missing: TypeAlias = Literal["error", "nan"] | int
#: What targets are: floating numbers; 0 or 1; 0, 1, 2, ... of any dtype; indices of classes.
TargetKind: TypeAlias = Literal["real", "binary", "count", "class"]


def check_features(
    owner: str, features: Tensor, size: int, *, values: bool = True, empty: bool = False
) -> None:
    """Refuse features that are not a floating [B, size] with B of at least 1.

    Args:
        owner: who speaks in the error.
        features: what the user passed.
        size: d.
        values: whether to refuse NaN and infinity too, which on a GPU waits for the device.
        empty: whether B may be 0.

    Raises:
        ShapeError, DtypeError, NonFiniteError: with the remedy.
    """
    if not isinstance(features, Tensor):
        raise DtypeError(f"{owner}: features must be a tensor, not {type(features).__name__}")
    if features.ndim != 2 or features.shape[1] != size:
        raise ShapeError(
            f"{owner}: features must have shape [examples, {size}], not {list(features.shape)}; "
            "flatten other dimensions into the examples (an engine does, and takes {head: "
            "features} where heads read different ones)"
        )
    if features.shape[0] == 0 and not empty:
        raise ShapeError(f"{owner}: the batch is empty; leave it out")
    if not features.is_floating_point():
        raise DtypeError(f"{owner}: features must be floating point, not {features.dtype}")
    if values and not linalg.all_finite(features.detach()):
        example, column = (~features.isfinite()).nonzero()[0].tolist()
        raise NonFiniteError(
            f"{owner}: feature {column} of example {example} is "
            f"{features[example, column].item()}; the input is bad or the backbone has diverged"
        )


def check_device(owner: str, what: str, tensors: Any, device: torch.device) -> None:
    """Refuse tensors that do not live where the head does.

    Raises:
        DeviceError: naming both devices.
    """
    for tensor in tensors if isinstance(tensors, tuple | list) else (tensors,):
        if isinstance(tensor, Tensor) and tensor.device != device:
            raise DeviceError(
                f"{owner}: {what} are on {tensor.device}, the head is on {device}; "
                f"move one with .to({str(device)!r})"
            )


def parse_targets(
    owner: str,
    targets: RawTargets,
    batch: int,
    tasks: int,
    *,
    kind: TargetKind,
    missing: Missing,
    filler: float,
) -> Parsed:
    """Targets as [B, tasks] values with an optional mask and weight; shapes and types are checked.

    Args:
        owner: who speaks in the error.
        targets: what the user passed.
        batch: B.
        tasks: T.
        kind: what targets are.
        missing: what stands for a target that is missing: "nan", a number, or "error" for none.
        filler: what stands for it from here on.

    Raises:
        ShapeError, DtypeError: with the remedy.
    """
    values, mask, weight = targets, None, None
    if not isinstance(targets, Tensor):
        values, mask, weight = _split(owner, targets)
    values = _columns(owner, values, batch, tasks, "targets")
    check_kind(owner, values, kind)
    counts = kind == "count" and not values.is_floating_point()
    if kind == "class" or counts or values.dtype in _UNSIGNED:
        values = values.long()  # what indexing takes, and wide enough to be kept beside others
    if mask is not None:
        mask = _columns(owner, _for_all(mask, batch, tasks), batch, tasks, "the mask")
        if mask.dtype != torch.bool:
            raise DtypeError(
                f"{owner}: the mask must be bool (True: observed), not {mask.dtype}; the weight of "
                "examples comes third, as in (values, None, weight)"
            )
    if weight is not None:
        weight = _columns(owner, _for_all(weight, batch, tasks), batch, tasks, "the weight")
        if not weight.is_floating_point():
            raise DtypeError(f"{owner}: the weight must be floating point, not {weight.dtype}")
    if missing != "error":
        number = values if values.is_floating_point() else values.long()
        present = ~number.isnan() if missing == "nan" else number != missing
        mask = present if mask is None else mask & present
    if mask is not None:
        values = torch.where(mask, values, torch.full_like(values, filler))
    return Parsed(values, mask, weight)


def _split(owner: str, targets: RawTargets) -> tuple[Any, Any, Any]:
    if not isinstance(targets, tuple | list):
        return targets, None, None
    if isinstance(targets, list) and not all(isinstance(x, Tensor | None) for x in targets):
        return targets, None, None  # numbers, which are no tensor
    if len(targets) == 2:
        return targets[0], targets[1], None
    if len(targets) == 3:
        return targets[0], targets[1], targets[2]
    raise ShapeError(
        f"{owner}: a tuple or list of targets is (values, mask) or (values, mask, weight), not of "
        f"length {len(targets)}; stack targets of single examples into one tensor"
    )


def check_kind(owner: str, values: Tensor, kind: TargetKind) -> None:
    """Refuse a dtype that targets of that kind cannot have.

    Raises:
        DtypeError: with the remedy.
    """
    floating = values.is_floating_point()
    if values.is_complex():
        raise DtypeError(f"{owner}: targets must be real, not {values.dtype}")
    if kind == "real" and not floating:
        raise DtypeError(
            f"{owner}: targets must be floating point, not {values.dtype}; "
            "convert them with targets.float()"
        )
    if kind == "count" and values.dtype == torch.bool:
        raise DtypeError(
            f"{owner}: targets are counts, integer or floating point, not bool; "
            "convert them with targets.long()"
        )
    if kind == "class" and (floating or values.dtype == torch.bool):
        raise DtypeError(
            f"{owner}: targets must be integer class indices, not {values.dtype}; "
            "convert them with targets.long()"
        )


def check_finite(owner: str, targets: Targets) -> None:
    """Refuse observed targets and weights that are NaN or infinite, and negative weights.

    Raises:
        NonFiniteError: naming the first one.
        SettingError: for a negative weight.
    """
    if targets.weight is not None:
        if not targets.weight.isfinite().all():
            raise NonFiniteError(f"{owner}: an example's weight is NaN or infinite")
        if (targets.weight < 0).any():
            raise SettingError(f"{owner}: an example's weight is {targets.weight.min().item()}")
    if linalg.all_finite(targets.values):
        return
    example, task = (~targets.values.isfinite()).nonzero()[0].tolist()
    bad = targets.values[example, task].item()
    remedy = (
        "; if it was not observed, pass (targets, mask) or make the head with missing='nan'"
        if math.isnan(bad)
        else ""
    )
    raise NonFiniteError(f"{owner}: target of task {task}, example {example}, is {bad}{remedy}")


def _for_all(part: object, batch: int, tasks: int) -> object:
    """One value for each example, [B], as that of all its tasks."""
    if isinstance(part, Tensor) and part.shape == (batch,):
        return part[:, None].expand(batch, tasks)
    return part


def _columns(owner: str, tensor: object, batch: int, tasks: int, what: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{owner}: {what} must be a tensor, not {type(tensor).__name__}")
    if tensor.ndim == 1 and tasks == 1:
        tensor = tensor[:, None]
    if tensor.shape != (batch, tasks):
        raise ShapeError(
            f"{owner}: {what} must have shape [{batch}, {tasks}] (examples, tasks), "
            f"not {list(tensor.shape)}"
        )
    return tensor


def like(values: Tensor, outputs: Tensor) -> Tensor:
    """Real targets in the outputs' precision; class indices as they are."""
    return values.to(outputs.dtype) if values.is_floating_point() else values


def are_counts(values: Tensor) -> Tensor:
    """Which values are 0, 1, 2, ..., as a boolean tensor."""
    if not values.is_floating_point():
        return values >= 0
    return (values >= 0) & (values == values.floor()) & values.isfinite()


def refuse_support(owner: str, targets: Targets, good: Tensor, wanted: str) -> NoReturn:
    """Refuse targets of which some are not `good`, [B, tasks].

    Raises:
        SettingError: naming the first one, and what is wanted.
    """
    example, task = (~good).nonzero()[0].tolist()
    raise SettingError(
        f"{owner}: target of task {task}, example {example}, is "
        f"{targets.values[example, task].item()}; {wanted}"
    )
