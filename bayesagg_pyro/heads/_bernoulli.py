"""Binary classification: p(y = 1 | u) = sigmoid(u), u = hᵀ w + b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro._settings import positive_each
from bayesagg_pyro.heads._input import Missing, TargetKind
from bayesagg_pyro.heads._one_predictor import OnePredictor


class Bernoulli(OnePredictor):
    """T binary tasks. Targets are 0 or 1, floating point, integer or bool.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        bias: whether each task has an intercept.
        pos_weight: factor of the log-likelihood of positives, one or one per task.
        prior_variance: variance of the default prior of `model`.
        missing: "nan" or an integer (255): what is read as a target that was not observed.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if a positive weight is not positive and finite, or a size is not positive.
        ShapeError: if there is neither one positive weight nor one per task.
    """

    target_kind: ClassVar[TargetKind] = "binary"
    per_task: ClassVar[tuple[str, ...]] = ("pos_weight",)
    pos_weight: Tensor | None  #: [] or [tasks]

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        bias: bool = True,
        pos_weight: float | Sequence[float] | Tensor | None = None,
        prior_variance: float = 1.0,
        missing: Missing = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )
        if pos_weight is not None:
            pos_weight = positive_each("pos_weight", pos_weight, tasks)
        self.register_buffer("pos_weight", pos_weight)

    def likelihood(self, outputs: Tensor) -> Any:
        """Bernoulli(logits), batch shape [..., B, tasks]."""
        return dist.Bernoulli(logits=outputs, validate_args=False)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """softplus((1 − 2y) u), times the weight of positives; [..., B, tasks]."""
        sign = 1 - 2 * targets.to(outputs.dtype)
        loss = torch.nn.functional.softplus(sign * outputs)
        return self.weighed(loss, targets)

    def target_weight(self, targets: Tensor) -> Tensor | None:
        """The weight of positives where y = 1, else 1."""
        if self.pos_weight is None:
            return None
        return torch.where(targets > 0, self.pos_weight, 1.0)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """sigmoid(u) − y, as −sigmoid(−u) for positives; weighted."""
        sign = 1 - 2 * targets.to(outputs.dtype)
        return self.weighed(torch.sigmoid(sign * outputs) * sign, targets)

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """sigmoid(u) − y and sigmoid(u) sigmoid(−u), weighted."""
        sign = 1 - 2 * targets.to(outputs.dtype)
        wrong = torch.sigmoid(sign * outputs)  # probability of the other label
        slope, curvature = sign * wrong, wrong * torch.sigmoid(-sign * outputs)
        return self.weighed(slope, targets), self.weighed(curvature, targets)

    @property
    def support_description(self) -> str:
        """What targets must be, for messages."""
        return "binary targets are 0 or 1"

    def supports(self, values: Tensor) -> Tensor:
        """Which values are 0 or 1."""
        return (values == 0) | (values == 1)
