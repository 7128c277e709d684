"""Regression with outliers: y = u + τ ε, ε of Student's t distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro._settings import positive_each
from bayesagg_pyro.heads._log_gamma import log_gamma_ratio
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.quadrature import Transition


class StudentT(OnePredictor):
    """T regression tasks with heavy-tailed noise: outliers have little influence.

    Lange, Little and Taylor (1989), https://doi.org/10.1080/01621459.1989.10478852.

    The curvature that second-order inference uses is Fisher's expected one, (ν + 1) / (ν + 3) / τ²:
    the exact one is negative for |y − u| > τ sqrt(ν).

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        df: ν, the degrees of freedom; one number, or one per task. Below 2 the noise has no
            variance, below 1 no mean.
        scale: τ, in units of the targets; one number, or one per task.
        bias: whether each task has an intercept.
        prior_variance: variance of the default prior of `model`.
        missing: "nan" reads a NaN target as not observed.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if df or scale is not positive and finite, or a size is not positive.
        ShapeError: if there is neither one of them nor one per task.
    """

    per_task: ClassVar[tuple[str, ...]] = ("df", "scale")
    df: Tensor  #: ν, [] or [tasks]
    scale: Tensor  #: τ, [] or [tasks]

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        df: float | Sequence[float] | Tensor = 4.0,
        scale: float | Sequence[float] | Tensor = 1.0,
        bias: bool = False,
        prior_variance: float = 1.0,
        missing: Literal["error", "nan"] = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )
        self.register_buffer("df", positive_each("df", df, tasks))
        self.register_buffer("scale", positive_each("scale", scale, tasks))

    def likelihood(self, outputs: Tensor) -> Any:
        """StudentT(ν, u, τ), batch shape [..., B, tasks]."""
        df, scale = self.df.to(outputs.dtype), self.scale.to(outputs.dtype)
        return dist.StudentT(df, outputs, scale, validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | u), [..., B, tasks], finite for targets of any size."""
        df, scale = self.df.to(outputs.dtype), self.scale.to(outputs.dtype)
        r = (outputs - targets) / scale / df.sqrt()
        # log (1 + r²) without the square of a large r.
        near = r.abs() < 1
        small, large = torch.where(near, r, 0.0), torch.where(near, 1.0, r).abs()
        log = torch.where(near, small.square().log1p(), 2 * large.log() + large.pow(-2).log1p())
        constant = log_gamma_ratio(0.5 * df, 0.5) - 0.5 * (torch.pi * df).log() - scale.log()
        return self.weighed(0.5 * (df + 1) * log - constant, targets)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(ν + 1) r / (ν + r²) / τ with r = (u − y) / τ."""
        return self.nll_derivatives(outputs, targets)[0]

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative and Fisher's expected curvature."""
        df, scale = self.df.to(outputs.dtype), self.scale.to(outputs.dtype)
        r = (outputs - targets) / scale
        slope = (df + 1) / scale * r / (df + r.square())
        curvature = ((df + 1) / (df + 3) / scale.square()).expand_as(slope)
        return self.weighed(slope, targets), self.weighed(curvature, targets)

    def transition(self, targets: Tensor) -> Transition:
        """The derivative turns at u = y ± τ sqrt(ν), where its poles are, and falls like 1/u."""
        # A logistic of width 1 has its poles at a distance of π.
        width = self.scale * self.df.sqrt() / torch.pi
        return Transition(targets, width, growth=0.0, nodes=64, finest=0.0)
