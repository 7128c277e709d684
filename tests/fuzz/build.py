"""A case made real: its engine, and the batch of each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torchjd.aggregation as torchjd
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, priors
from tests.fuzz.draw import Call, Case

__all__ = ["Batch", "batch", "engine"]


def body(d: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, 3), nn.Tanh())


def network(d: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, 2), nn.Tanh(), nn.Linear(2, outputs))


def linear_model(features: Tensor, targets: Tensor | None = None) -> None:
    size = features.shape[1]
    weight = pyro.sample("weight", dist.Normal(torch.zeros(size), 1.0).to_event(1))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ weight.to(features.dtype), 0.5), obs=targets)


def covariance(head: heads.Head) -> Tensor:
    """Dense and well-conditioned."""
    size = head.weight_size
    return 0.5 * torch.eye(size) + 0.5 / size


_NAMES: dict[str, Any] = {
    "aggregation": aggregation,
    "body": body,
    "covariance": covariance,
    "gradients": gradients,
    "heads": heads,
    "inference": inference,
    "linear_model": linear_model,
    "network": network,
    "priors": priors,
    "torch": torch,
    "torchjd": torchjd,
}


def _made(code: Any) -> Any:
    return eval(code, dict(_NAMES)) if isinstance(code, str) else code


def engine(case: Case, seed: int | None = None) -> ba.BayesAgg:
    """The engine of a case, in train mode."""
    torch.manual_seed(case.seed if seed is None else seed)
    pyro.clear_param_store()
    named = {f"h{i}": part for i, part in enumerate(case.parts)}

    def each(what: str) -> dict[str, Any]:
        given = {name: getattr(part, what) for name, part in named.items()}
        return {name: _made(code) for name, code in given.items()}

    settings = {name: _made(value) for name, value in case.settings}
    own = each("head")
    schemes, policies = each("scheme"), each("prior")
    for name, head in own.items():  # as the engine's own defaults
        gaussian = isinstance(head, heads.Gaussian)
        default = inference.Conjugate() if gaussian else inference.TaylorGGN()
        schemes[name] = schemes[name] or default
        policies[name] = policies[name] or priors.FullData()
    return ba.BayesAgg(
        own,
        _made(case.aggregation),
        inference=schemes,
        prior=policies,
        estimator={name: it for name, it in each("estimator").items() if it is not None},
        **settings,
    )


# -- batches -----------------------------------------------------------------------------------


@dataclass
class Batch:
    """What a call is given, plain or spoilt."""

    features: Any
    targets: Any
    spoilt: str = ""  # "shape", "type", "value" or "" where nothing is wrong

    def leaf(self) -> Any:
        """The features with a gradient of their own, or as they are where they can have none."""
        x = self.features
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
            return x.clone().requires_grad_()
        return x


def batch(case: Case, call: Call, own: Mapping[str, heads.Head]) -> Batch:
    """The batch of a call, the same for every engine of the case."""
    rng = torch.Generator().manual_seed(call.seed)
    dtype = getattr(torch, case.dtype)
    x = torch.randn(call.examples, case.d, generator=rng, dtype=torch.float64) * call.features
    targets: dict[str, Any] = {}
    for index, (name, head) in enumerate(own.items()):
        values = _values(head, call, rng).to(dtype) if _real(head) else _values(head, call, rng)
        mask = None if call.spoil else _mask(call, head.tasks, index, rng)
        weight = None if call.spoil else _weight(call, head.tasks, rng)
        if mask is not None and call.mask == "nan" and head.missing == "nan":
            values = torch.where(mask, values.to(dtype), torch.nan)
            mask = None
        form = "" if call.spoil else call.form
        targets[name] = _written(form, values, mask, weight)
    made = Batch(x.to(dtype), targets)
    return _spoil(made, call.spoil, own) if call.spoil else made


def _real(head: heads.Head) -> bool:
    return head.target_kind == "real"


def _values(head: heads.Head, call: Call, rng: torch.Generator) -> Tensor:
    shape = (call.examples, head.tasks)
    if head.target_kind == "class":
        return torch.randint(getattr(head, "classes", 2), shape, generator=rng)
    if head.target_kind == "binary":
        return (torch.rand(shape, generator=rng) < 0.5).float()
    numbers = torch.randn(shape, generator=rng, dtype=torch.float64) * call.targets
    if head.target_kind == "count":
        return numbers.abs().clamp(max=1e6).floor()
    return numbers


def _mask(call: Call, tasks: int, index: int, rng: torch.Generator) -> Tensor | None:
    shape = (call.examples, tasks)
    if not call.mask:
        return None
    mask = torch.ones(shape, dtype=torch.bool)
    if call.mask in ("partial", "nan"):
        mask = torch.rand(shape, generator=rng) < 0.5
    elif call.mask == "example":
        mask[0] = False
    elif call.mask == "all":
        mask[:] = False
    elif index == 0 and call.mask == "task":
        mask[:, 0] = False
    elif index == 0 and call.mask == "head":
        mask[:] = False
    return mask


def _weight(call: Call, tasks: int, rng: torch.Generator) -> Tensor | None:
    shape = (call.examples, tasks)
    if not call.weight:
        return None
    weight = torch.ones(shape)
    if call.weight == "spread":
        weight = 0.1 + 3 * torch.rand(shape, generator=rng)
    elif call.weight == "zero":
        weight[::2] = 0.0
    elif call.weight == "zeros":
        weight[:] = 0.0
    elif call.weight == "tiny":
        weight[0] = 1e-30
    elif call.weight == "huge":
        weight[0] = 1e30
    return weight


def _written(form: str, values: Tensor, mask: Tensor | None, weight: Tensor | None) -> Any:
    if form == "flat" and values.shape[1] == 1:
        values, mask, weight = (None if t is None else t[:, 0] for t in (values, mask, weight))
    if form == "int" and not values.isnan().any() and (values == values.floor()).all():
        values = values.long()
    if form == "half" and values.is_floating_point():
        values = values.bfloat16() if values.abs().max() < 1e38 else values
    if mask is None and weight is None:
        return values
    parts = (values, mask) if weight is None else (values, mask, weight)
    return list(parts) if form == "list" else parts


_OUTSIDE = {"class": -1, "binary": 0.5, "count": -1.0}


def _spoil(made: Batch, spoil: str, own: Mapping[str, heads.Head]) -> Batch:
    """The batch with one thing wrong, at the first example of the last head."""
    what, _, how = spoil.partition(" ")
    x, targets = made.features, dict(made.targets)
    name = list(own)[-1]
    y, head = targets[name], own[name]
    if what == "features":
        bad: Any = {
            "[B, d+1]": lambda: torch.cat([x, x[:, :1]], 1),
            "[d]": lambda: x[0],
            "int": lambda: x.nan_to_num(0, 0, 0).long(),
            "complex": lambda: x.to(torch.complex64),
            "NaN": lambda: _at_first(x, torch.nan),
            "inf": lambda: _at_first(x, torch.inf),
            "[0, d]": lambda: x[:0],
            "a list": lambda: x.tolist(),
        }[how]()
        kind = "value" if how in ("NaN", "inf") else "shape"
        if how == "[0, d]":
            targets = {n: t[:0] for n, t in targets.items()}
        return Batch(bad, targets, kind)
    if what == "targets":
        if how == "unknown":
            return Batch(x, {**targets, "nobody": y}, "shape")
        if how == "a tensor":
            return Batch(x, y, "shape")
        integer = not y.is_floating_point()
        real = head.target_kind == "real"
        if (how == "inf" and integer) or (how == "outside" and real):
            how = "complex"
        if how == "NaN" and (integer or head.missing == "nan"):
            how = "[B+1]"
        targets[name] = {
            "[B+1]": lambda: torch.cat([y, y[:1]]),
            "[B, T+1]": lambda: torch.cat([y, y[:, :1]], 1),
            "NaN": lambda: _at_first(y, torch.nan),
            "inf": lambda: _at_first(y, torch.inf),
            "outside": lambda: _at_first(y, _OUTSIDE.get(head.target_kind, 0)),
            "complex": lambda: y.to(torch.complex64),
            "None": lambda: None,
        }[how]()
        return Batch(x, targets, "value" if how in ("NaN", "inf", "outside") else "shape")
    ones = torch.ones(y.shape)
    targets[name] = {
        "mask [B+1]": lambda: (y, torch.ones(len(y) + 1, y.shape[1], dtype=torch.bool)),
        "mask float": lambda: (y, ones),
        "weight [B+1]": lambda: (y, None, torch.ones(len(y) + 1, y.shape[1])),
        "weight negative": lambda: (y, None, -ones),
        "weight NaN": lambda: (y, None, _at_first(ones, torch.nan)),
        "weight inf": lambda: (y, None, _at_first(ones, torch.inf)),
        "weight int": lambda: (y, None, ones.long()),
    }[spoil]()
    return Batch(x, targets, "value" if how in ("negative", "NaN", "inf") else "shape")


def _at_first(tensor: Tensor, value: float) -> Tensor:
    spoilt = tensor.reshape(-1).clone()
    spoilt[0] = value
    return spoilt.reshape(tensor.shape)
