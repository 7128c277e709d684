"""Regression whose noise depends on the input: y ~ N(f, exp(s)), both linear in the features."""

from __future__ import annotations

import math
from typing import Any, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._output_curvature import DiagonalCurvature, OutputCurvature
from bayesagg_pyro.targets import Targets


class Heteroscedastic(Head):
    """T regression tasks with two linear predictors each: the mean f and the log-variance s.

    Nix and Weigend (1994), https://doi.org/10.1109/ICNN.1994.374138.

    Outputs are [B, tasks, 2], (f, s). The weights of a task are those of f, then those of s, each
    with its bias last. The curvature that second-order inference uses is Fisher's expected one,
    diag(exp(−s), ½): it does not couple f and s, and is positive where the exact one is not.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        bias: whether each predictor has an intercept: without, the noise at h = 0 has variance 1.
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
            in_features,
            tasks,
            outputs_per_task=2,
            bias=bias,
            prior_variance=prior_variance,
            missing=missing,
            name=name,
        )

    def counted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Outputs, and 0 for examples that do not count: exp(−s) may overflow."""
        return torch.stack([targets.counted(part) for part in outputs.unbind(-1)], -1)

    def likelihood(self, outputs: Tensor) -> Any:
        """Normal(f, exp(s / 2)), batch shape [..., B, tasks]."""
        mean, log_variance = outputs.unbind(-1)
        return dist.Normal(mean, (0.5 * log_variance).exp(), validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(s + (y − f)² exp(−s) + log 2π) / 2, [..., B, tasks]."""
        mean, log_variance = outputs.unbind(-1)
        square = (targets - mean).square() * (-log_variance).exp()
        return self.weighed(0.5 * (log_variance + square + math.log(2 * math.pi)), targets)

    def loss_derivatives(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """((f − y) exp(−s), (1 − (f − y)² exp(−s)) / 2), [..., B, tasks, 2]."""
        mean, log_variance = outputs.unbind(-1)
        error, precision = mean - targets, (-log_variance).exp()
        slopes = error * precision, 0.5 * (1 - error.square() * precision)
        return torch.stack([self.weighed(slope, targets) for slope in slopes], -1)

    def output_curvature(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | OutputCurvature]:
        """Slopes in (f, s), [B, tasks, 2], and Fisher's information, which is diagonal."""
        if not self.is_still(Heteroscedastic, "likelihood"):
            return super().output_curvature(outputs, targets)
        precision = (-outputs[..., 1]).exp()
        curvatures = precision, torch.full_like(precision, 0.5)
        fisher = torch.stack([self.weighed(curvature, targets) for curvature in curvatures], -1)
        return self.loss_derivatives(outputs, targets), DiagonalCurvature(fisher)
