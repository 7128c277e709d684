"""Ordered classes: P(y ≤ k) = F(θ_k − u), u = hᵀ w."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from bayesagg_pyro._settings import integers, numbers
from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._cumulative import LINKS
from bayesagg_pyro.heads._input import Missing
from bayesagg_pyro.heads._kinds import Classes
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.quadrature import Transition


class Ordinal(Classes, OnePredictor):
    """T tasks with C ordered classes: cumulative logit or probit.

    McCullagh (1980), https://doi.org/10.1111/j.2517-6161.1980.tb01109.x.

    Class k is the event θ_{k−1} < u + ε ≤ θ_k. The cut-points θ are no part of the posterior: they
    are given, or they are parameters that the head's loss teaches beside its point estimate. They
    take the place of an intercept, so there is none unless asked for.

    Args:
        in_features: d, the number of features.
        classes: C, at least 2.
        tasks: T, the number of tasks.
        cutpoints: C − 1 increasing numbers, or [tasks, C − 1]; fixed unless `learn_cutpoints`. None
            begins with those of equally probable classes at u = 0, and learns.
        learn_cutpoints: whether they are parameters; None for exactly where they are not given.
        link: F, "logit" or "probit".
        bias: whether each task has an intercept all the same; its prior keeps it identified.
        prior_variance: variance of the default prior of `model`.
        missing: a label that is read as not observed (torch's `ignore_index`), such as -100 or 255.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if there are fewer than two classes, cut-points do not increase, or the link
            is another.
        ShapeError: if there are not C − 1 cut-points.
    """

    per_task: ClassVar[tuple[str, ...]] = ("free_cutpoints",)

    def __init__(
        self,
        in_features: int,
        classes: int,
        tasks: int = 1,
        *,
        cutpoints: Sequence[float] | Tensor | None = None,
        learn_cutpoints: bool | None = None,
        link: Literal["logit", "probit"] = "logit",
        bias: bool = False,
        prior_variance: float = 1.0,
        missing: Missing = "error",
        name: str | None = None,
    ) -> None:
        integers(2, classes=classes)
        if link not in LINKS:
            raise SettingError(f'link must be "logit" or "probit", not {link!r}')
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )
        self.classes = classes
        self.link = link
        self._f = LINKS[link]
        if cutpoints is None:
            levels = torch.arange(1, classes, dtype=torch.float64) / classes
            start = self._f.quantile(levels)
        else:
            start = _cutpoints(cutpoints, classes, tasks)
        start = start.expand(tasks, -1).clone()
        # The first one and the logs of the gaps: free numbers, whose order cannot break.
        free = torch.cat([start[:, :1], start.diff(dim=1).log()], 1)
        if cutpoints is None if learn_cutpoints is None else learn_cutpoints:
            self.free_cutpoints = nn.Parameter(free.to(self.weight.dtype))
        else:
            self.register_buffer("free_cutpoints", free)

    @property
    def cutpoints(self) -> Tensor:
        """θ, [tasks, C − 1], increasing."""
        free = self.free_cutpoints
        return torch.cat([free[:, :1], free[:, 1:].exp()], 1).cumsum(1)

    def with_temperature(self, temperature: Tensor) -> Ordinal:
        """This head with cut-points θ / T, [tasks]: outputs u / T are then as much less sure.

        Weights are shared, nothing of the head itself changes.
        """
        free = self.free_cutpoints.to(temperature)
        first = free[:, :1] / temperature[:, None]
        view = copy(self)
        kept = {n: p for n, p in self._parameters.items() if n != "free_cutpoints"}
        scaled = torch.cat([first, free[:, 1:] - temperature[:, None].log()], 1)
        vars(view)["_parameters"] = kept
        vars(view)["_buffers"] = {**self._buffers, "free_cutpoints": scaled}
        return view

    def likelihood(self, outputs: Tensor) -> Any:
        """Categorical over the classes, batch shape [..., B, tasks]."""
        log_p = self._f.log_mass(*self._bounds(outputs[..., None], None))
        return dist.Categorical(logits=log_p, validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log (F(θ_y − u) − F(θ_{y−1} − u)), [..., B, tasks]; no difference of probabilities."""
        nll = -self._f.log_mass(*self._bounds(outputs, targets.long()))
        return self.weighed(nll, targets)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(F'(θ_y − u) − F'(θ_{y−1} − u)) / P(y)."""
        return self.nll_derivatives(outputs, targets)[0]

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and exact curvature, which is positive: both links are log-concave."""
        slope, curvature = self._f.derivatives(*self._bounds(outputs, targets.long()))
        return self.weighed(slope, targets), self.weighed(curvature, targets)

    def transition(self, targets: Tensor) -> Transition:
        """At both cut-points of the class, or at the only one of the first and last."""
        theta = self.cutpoints.detach()
        middle = torch.cat([theta[:, :1], (theta[:, 1:] + theta[:, :-1]) / 2, theta[:, -1:]], 1)
        half = torch.nn.functional.pad(theta.diff(dim=1) / 2, (1, 1))
        growth = 1.0 if self.link == "logit" else math.inf
        labels = targets.long()
        return Transition(
            _pick(middle, labels), 1.0, growth, nodes=128, finest=1e-6, gap=_pick(half, labels)
        )

    def _bounds(self, outputs: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """θ_{y−1} − u, θ_y − u and their difference; far off where the class has no such bound.

        Args:
            outputs: u, [..., B, tasks]; [..., B, tasks, 1] for all classes.
            labels: y, [..., B, tasks]; None for all classes, [..., B, tasks, C].
        """
        # Half precisions have neither the range of `far` nor all functions.
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        theta = self.cutpoints.to(outputs.dtype)
        far = torch.full_like(theta[:, :1], self._f.far)
        # The outer classes end far away from the bound that they have.
        lower = torch.cat([theta[:, :1] - far, theta], 1)  # [tasks, C]
        upper = torch.cat([theta, theta[:, -1:] + far], 1)
        gap = torch.cat([far, theta.diff(dim=1), far], 1)
        if labels is not None:
            labels = labels.clamp(0, self.classes - 1)  # bad ones under deferred validation
            lower, upper, gap = (_pick(table, labels) for table in (lower, upper, gap))
        return lower - outputs, upper - outputs, gap

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, classes={self.classes}, link={self.link!r}"


def _pick(table: Tensor, labels: Tensor) -> Tensor:
    """Entries of [tasks, C] at labels [..., tasks]."""
    return table[torch.arange(len(table), device=labels.device), labels]


def _cutpoints(given: Sequence[float] | Tensor, classes: int, tasks: int) -> Tensor:
    cutpoints = numbers("cutpoints", given)
    if cutpoints.shape not in ((classes - 1,), (tasks, classes - 1)):
        raise ShapeError(
            f"cutpoints must be {classes - 1} numbers for {classes} classes, or such a row for "
            f"each of {tasks} tasks, not of shape {list(cutpoints.shape)}"
        )
    if not cutpoints.isfinite().all() or not (cutpoints.diff(dim=-1) > 0).all():
        raise SettingError(f"cutpoints must be finite and increase, not be {cutpoints.tolist()}")
    return cutpoints.to(torch.get_default_device())
