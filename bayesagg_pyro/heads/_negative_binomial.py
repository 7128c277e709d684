"""Counts that scatter more than Poisson's: mean exp(u), variance exp(u) + α exp(2u)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro._settings import positive_each
from bayesagg_pyro.heads._kinds import Counts
from bayesagg_pyro.heads._log_gamma import log_gamma_ratio
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.quadrature import Transition


class NegativeBinomial(Counts, OnePredictor):
    """T tasks of overdispersed counts, with a log link and a fixed dispersion (NB2).

    Cameron and Trivedi (1986), https://doi.org/10.1002/jae.3950010104.

    With r = 1/α and p = sigmoid(u + log α), P(y) = Γ(y + r) / (Γ(r) y!) · p^y (1 − p)^r. The
    derivative of the loss is bounded by y and r: an example that is predicted far too high pulls
    by r at most, where Poisson's pull grows without end.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        dispersion: α, the variance in excess of Poisson's over the squared mean; one number, or
            one per task. Poisson is the limit α → 0.
        bias: whether each task has an intercept.
        prior_variance: variance of the default prior of `model`.
        missing: "nan" reads a NaN target as not observed.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if a dispersion is not positive and finite, or a size is not positive.
        ShapeError: if there is neither one dispersion nor one per task.
    """

    per_task: ClassVar[tuple[str, ...]] = ("dispersion",)
    dispersion: Tensor  #: α, [] or [tasks]

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        dispersion: float | Sequence[float] | Tensor,
        bias: bool = True,
        prior_variance: float = 1.0,
        missing: Literal["error", "nan"] = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )
        self.register_buffer("dispersion", positive_each("dispersion", dispersion, tasks))

    def likelihood(self, outputs: Tensor) -> Any:
        """NegativeBinomial(r, logits = u + log α), batch shape [..., B, tasks]."""
        r, logits = self._count_and_logits(outputs)
        return dist.NegativeBinomial(r, logits=logits, validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log P(y), [..., B, tasks]; its part in u is linear in logs of sigmoids."""
        r, logits = self._count_and_logits(outputs)
        targets = targets.to(outputs.dtype)
        softplus = torch.nn.functional.softplus
        constant = log_gamma_ratio(r, targets) - torch.lgamma(targets + 1)
        nll = r * softplus(logits) + targets * softplus(-logits) - constant
        return self.weighed(nll, targets)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The slope r p − y (1 − p)."""
        return self.nll_derivatives(outputs, targets)[0]

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The slope r p − y (1 − p) and the curvature (y + r) p (1 − p)."""
        r, logits = self._count_and_logits(outputs)
        p, q = torch.sigmoid(logits), torch.sigmoid(-logits)
        slope, curvature = r * p - targets * q, (targets + r) * p * q
        return self.weighed(slope, targets), self.weighed(curvature, targets)

    def transition(self, targets: Tensor) -> Transition:
        """A logistic around exp(u) = r."""
        return Transition(-self.dispersion.log(), 1.0)

    def _count_and_logits(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """r, [] or [tasks], and u + log α."""
        dispersion = self.dispersion.to(outputs.dtype)
        return dispersion.reciprocal(), outputs + dispersion.log()
