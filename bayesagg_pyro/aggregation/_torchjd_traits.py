"""What is known of the aggregators of TorchJD: their traits, and how to leave tasks out of them.

Tasks are left out by a copy for the others, with their part of its settings and its memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Traits:
    """Properties of an aggregator.

    Attributes:
        reduction: Of which size its result is.
        random: Whether it draws from torch's global generator.
        scaled: Whether the matrix may be brought to a common size first, because the result
            follows its scale and no state remembers it.
        skips_zeros: Whether it cannot take rows of zeros.
    """

    reduction: Literal["mean", "sum"] = "mean"
    random: bool = False
    scaled: bool = True
    skips_zeros: bool = False


_TRAITS: Mapping[str, Traits] = {
    "AlignedMTL": Traits(),
    "CAGrad": Traits(),
    "ConFIG": Traits("sum"),
    "Constant": Traits("sum"),
    "DualProj": Traits(),
    "ExcessMTL": Traits(scaled=False),
    "FairGrad": Traits("sum", skips_zeros=True),
    "GradDrop": Traits("sum", random=True),
    "GradVac": Traits("sum", random=True),
    "IMTLG": Traits(),
    "Krum": Traits(),
    "MGDA": Traits(),
    "Mean": Traits(),
    "NashMTL": Traits("sum", skips_zeros=True),
    "PCD": Traits(scaled=False),
    "PCGrad": Traits("sum", random=True),
    "Random": Traits(random=True),
    "Sum": Traits("sum"),
    "TrimmedMean": Traits(),
    "UPGrad": Traits(),
}
_UNKNOWN = Traits(random=True, scaled=False)


def traits_of(kind: type) -> Traits:
    """The properties of a class of aggregators; a careful guess for one that is not TorchJD's."""
    published = kind.__module__.startswith("torchjd.")
    return _TRAITS.get(kind.__name__, _UNKNOWN) if published else _UNKNOWN


_SETTINGS = frozenset({"weights", "_weights", "_leak"})
#: Memory, one entry (of `_phi_t` one row and column) for each task.
_MEMORY = ("_phi_t", "_weights", "_sq_grad_sum", "_initial_w", "_warmup_w_sum", "_sq_norm_ema")
#: Memory that adds up over steps, so that a step without the task counts as one of its usual size.
_SUMS = frozenset({"_warmup_w_sum", "_sq_norm_ema"})
#: Memory of a task that was never met, where that is 0; else it is as that of the others.
_BLANK = frozenset({"_phi_t", "_sq_grad_sum"})


def of_some(aggregator: nn.Module, present: Tensor) -> nn.Module:
    """A copy of an aggregator for some of its tasks, with their part of its memory.

    Args:
        aggregator: of TorchJD.
        present: [T] bool.
    """
    inner = copy.deepcopy(aggregator)
    for module in inner.modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                continue
            kept = present.to(value.device)
            if name == "_phi_t" and len(value) == len(present):
                setattr(module, name, value[kept][:, kept])
            elif name in _SETTINGS.union(_MEMORY) and len(value) == len(present):
                # Weights that are remembered sum to 1, which a setting need not.
                remembered = name == "_weights" and name in module._buffers
                setattr(module, name, _simplex(value[kept]) if remembered else value[kept])
            elif name == "_tau" and len(value) == len(present) - 1:  # the first task has none
                setattr(module, name, torch.cat([value[:1], value])[kept][1:])
        key = getattr(module, "_state_key", None)
        if key is not None:
            vars(module)["_state_key"] = _key(key, int(present.sum()))
    return inner


def give_back(aggregator: nn.Module, inner: nn.Module, present: Tensor) -> None:
    """Copy memory from a copy that `of_some` made back; the other tasks' memory stays."""
    for module, own in zip(aggregator.modules(), inner.modules(), strict=True):
        known = {n: b for n, b in own._buffers.items() if n in _MEMORY and b is not None}
        if not known:
            continue
        steps = getattr(own, "_n_steps", None)
        for name, new in known.items():
            setattr(module, name, _merged(name, module._buffers[name], new, present, own))
        if steps is not None:
            module._n_steps = steps
        key: Any = vars(own)["_state_key"]
        vars(module)["_state_key"] = _key(key, len(present))


def _merged(name: str, old: Tensor | None, new: Tensor, present: Tensor, own: Any) -> Tensor:
    """Memory of all tasks, [T, ...]: `new` for the tasks that are present, `old` for the rest."""
    present = present.to(new.device)
    if old is None:
        start = 0.0 if name in _BLANK else float(new.mean())
        old = new.new_full((len(present), *new.shape[1:]), start)
        if name == "_phi_t":
            old = new.new_zeros(len(present), len(present))
    elif name in _SUMS:
        old = old * _growth(name, own)
    whole = old.to(new, copy=True)
    if name == "_phi_t":
        rows = present.nonzero().squeeze(1)
        whole[rows[:, None], rows] = new
    elif name == "_weights":  # of the tasks that are there, on the simplex: keep their share
        whole[present] = new * whole[present].sum()
        whole /= whole.sum()
    else:
        whole[present] = new
    return whole


def _simplex(weights: Tensor) -> Tensor:
    """Weights over their sum; equal ones where all have underflowed to 0."""
    total = weights.sum()
    return torch.where(total > 0, weights / total, 1 / len(weights))


def _growth(name: str, own: Any) -> float:
    """The factor that keeps the mean of a sum over steps when a step is added."""
    after = int(own._n_steps)
    if after < 2:
        return 1.0
    if name == "_sq_norm_ema":
        return float((1 - own.beta**after) / (1 - own.beta ** (after - 1)))
    return after / (after - 1)


def _key(key: Any, tasks: int) -> Any:
    return tasks if isinstance(key, int) else (tasks, *key[1:])
