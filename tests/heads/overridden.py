"""Heads that change a part of their base's model, and what must be found for them.

Each change here has an equivalent without it: outputs, or what likelihood and loss make of them,
are those of features twice as large, or targets are weighed. So the changed head must agree with
the plain one on other features or weights, or be refused by a typed error; which, is written down.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from bayesagg_pyro import gradients, heads

F64 = torch.float64
D, TASKS, N = 3, 2, 12


def seed(number: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(number)


# -- heads, and what is changed in them ----------------------------------------------------------


def _network(kind: Any) -> Any:
    module = nn.Linear(D, TASKS, bias=False)
    with torch.no_grad():
        module.weight.copy_(0.3 * torch.randn(TASKS, D, generator=seed(1)))
    return kind(module, heads.Bernoulli(D, TASKS)).double()


def _plain(kind: Any, *arguments: Any, **settings: Any) -> heads.Head:
    head: heads.Head = kind(D, *arguments, **settings).double()
    with torch.no_grad():
        head.weight.copy_(0.3 * torch.randn(head.weight.shape, generator=seed(1)))
    return head


MAKERS: dict[str, tuple[type, Callable[[Any], heads.Head]]] = {
    "gaussian": (heads.Gaussian, lambda k: _plain(k, TASKS, noise_scale=[0.5, 1.5])),
    "bernoulli": (heads.Bernoulli, lambda k: _plain(k, TASKS, bias=False)),
    "two classes": (heads.Categorical, lambda k: _plain(k, 2, tasks=TASKS, bias=False)),
    "classes": (heads.Categorical, lambda k: _plain(k, 3, tasks=TASKS, bias=False)),
    "poisson": (heads.Poisson, lambda k: _plain(k, TASKS, bias=False)),
    "negative binomial": (
        heads.NegativeBinomial,
        lambda k: _plain(k, TASKS, dispersion=0.5, bias=False),
    ),
    "student": (heads.StudentT, lambda k: _plain(k, TASKS, df=8.0)),
    "ordinal": (heads.Ordinal, lambda k: _plain(k, 3, TASKS, cutpoints=[-0.5, 1.0])),
    "heteroscedastic": (heads.Heteroscedastic, lambda k: _plain(k, TASKS, bias=False)),
    "network": (heads.Network, _network),
}


def _doubled(base: type, name: str) -> Callable[..., Any]:
    """The base's method, for outputs (or a design) twice as large."""
    method = getattr(base, name)
    if name in ("forward", "design"):
        return lambda self, *rest: 2 * method(self, *rest)
    return lambda self, outputs, *rest: method(self, 2 * outputs, *rest)


def _heavier(self: heads.Head, targets: Tensor) -> Tensor:
    return 1.0 + 2.0 * (targets > 0)


LIKELIHOODS = ("likelihood", "negative_log_prob")
CHANGES = ("forward", "design", *LIKELIHOODS, "loss", "target_weight")
CASES = [
    pytest.param(name, change, where, id=f"{name}-{change}-{where}")
    for name in MAKERS
    for change in CHANGES
    for where in ("class", "object")
    if not (name == "network" and change == "design")  # its module takes the features
    if where == "class" or name in ("gaussian", "bernoulli", "classes", "network")
] + [
    pytest.param(name, "forward", "hook", id=f"{name}-hook")
    for name in ("gaussian", "bernoulli", "classes", "network")
]


class Setting(NamedTuple):
    """A changed head and its equivalent: the plain head, elsewhere."""

    name: str
    change: str
    head: heads.Head
    plain: heads.Head
    features: Tensor
    targets: Tensor

    @property
    def weight(self) -> Tensor | None:
        return _heavier(self.plain, self.targets).double()

    @property
    def data(self) -> tuple[Tensor, Any]:
        """What the plain head has to see for the changed head's posterior."""
        if self.change == "target_weight":
            return self.features, (self.targets, None, self.weight)
        return (1 if self.change == "loss" else 2) * self.features, self.targets

    @property
    def seen(self) -> str:
        """A change for which the plain head has to see the same data."""
        return self.change if self.change in ("loss", "target_weight") else "forward"

    @property
    def predicted(self) -> Tensor:
        """Where the plain head predicts the same; by the likelihood, which nothing else changes."""
        double = self.change in ("forward", "design", "likelihood")
        return (2 if double else 1) * self.features

    def moments(self, posterior: Any, estimator: Any) -> tuple[Tensor, Tensor]:
        """The plain head's: the gradient in the features of a doubled output is doubled."""
        square = self.name == "gaussian" and self.change not in ("forward", "design", "loss")
        weighs = self.change == "target_weight"
        features = self.features if square or weighs else 2 * self.features
        factor = 1 if square or weighs else 2
        targets: Any = self.targets
        if weighs and not square:
            targets = (targets, None, self.weight)
        grad = gradients.distribution(
            self.plain, posterior, features, targets, estimator=estimator, generator=seed()
        )
        return factor * grad.mean, factor**2 * grad.variance


def make(name: str, change: str, where: str) -> Setting:
    kind, maker = MAKERS[name]
    plain = maker(kind)
    method = _heavier if change == "target_weight" else _doubled(kind, change)
    if where == "class":
        head = maker(type("Mine", (kind,), {change: method}))
    else:
        head = maker(kind)
        if where == "hook":
            head.register_forward_hook(lambda module, arguments, outputs: 2 * outputs)
        else:
            setattr(head, change, types.MethodType(method, head))
    rng = seed(2)
    features = torch.randn(N, D, generator=rng, dtype=F64)
    targets = torch.randn(N, TASKS, generator=rng, dtype=F64)
    if plain.target_kind in ("class", "count"):
        targets = torch.randint(0, getattr(plain, "classes", 4), (N, TASKS), generator=rng)
    elif plain.target_kind == "binary":
        targets = (targets > 0).double()
    return Setting(name, change, head, plain, features, targets)
