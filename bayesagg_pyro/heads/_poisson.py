"""Counts: y ~ Poisson(exp(u)), u = hᵀ w + b."""

from __future__ import annotations

from typing import Any, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro.heads._kinds import Counts
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.quadrature import EXPONENTIAL, Transition


class Poisson(Counts, OnePredictor):
    """T tasks of counts with a log link. Targets are 0, 1, 2, ..., of any integer or float dtype.

    Moments of the gradient are exact (Gaussian moment generating functions). They grow like
    exp(2u): means and variances beyond the range of the features' dtype, at u of about 40 in
    float32, overflow and are refused by the engine.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        bias: whether each task has an intercept: the log of a base rate.
        prior_variance: variance of the default prior of `model`.
        missing: "nan" reads a NaN target as not observed.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if a size or the variance is not positive.
    """

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        bias: bool = True,
        prior_variance: float = 1.0,
        missing: Literal["error", "nan"] = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )

    def likelihood(self, outputs: Tensor) -> Any:
        """Poisson(exp(u)), batch shape [..., B, tasks]."""
        return dist.Poisson(outputs.exp(), validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """exp(u) − y u + log y!, [..., B, tasks]; finite however small the rate."""
        constant = torch.lgamma(targets.to(outputs.dtype) + 1)
        return self.weighed(outputs.exp() - targets * outputs + constant, targets)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """exp(u) − y."""
        return self.weighed(outputs.exp() - targets, targets)

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """exp(u) − y and exp(u)."""
        rate = outputs.exp()
        return self.weighed(rate - targets, targets), self.weighed(rate, targets)

    def transition(self, targets: Tensor) -> Transition:
        """An exponential bends nowhere."""
        return EXPONENTIAL
