"""Multi-class classification: p(y | f) = softmax(f)_y, f = W h + b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro._settings import integers, positive_each
from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._input import Missing
from bayesagg_pyro.heads._kinds import Classes
from bayesagg_pyro.heads._output_curvature import OutputCurvature, SoftmaxCurvature


class Categorical(Classes, Head):
    """One multi-class task, or several with equal class counts. Targets are class indices.

    Weights of a task are laid out class by class, bias last: the point estimate is
    [tasks · classes, D], a posterior has event size classes · D. Outputs are logits, [B, classes]
    for one task and [B, tasks, classes] for several.

    Args:
        in_features: d, the number of features.
        classes: C, at least 2.
        tasks: T, the number of tasks.
        bias: whether each class has an intercept.
        class_weight: factor of the log-likelihood of each true class, [C].
        prior_variance: variance of the default prior of `model`.
        missing: a label that is read as not observed (torch's `ignore_index`), such as -100 or 255.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if there are fewer than two classes or a class weight is not positive.
        ShapeError: if there is not one weight per class.
    """

    class_weight: Tensor | None  #: [C]

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        tasks: int = 1,
        bias: bool = True,
        class_weight: Sequence[float] | Tensor | None = None,
        prior_variance: float = 1.0,
        missing: Missing = "error",
        name: str | None = None,
    ) -> None:
        integers(2, classes=classes)
        super().__init__(
            in_features,
            tasks,
            outputs_per_task=classes,
            bias=bias,
            prior_variance=prior_variance,
            missing=missing,
            name=name,
        )
        self.classes = classes
        if class_weight is not None:
            class_weight = positive_each(
                "class_weight", class_weight, classes, "classes", one_for_all=False
            )
        self.register_buffer("class_weight", class_weight)

    def arranged(self, outputs: Tensor) -> Tensor:
        """Logits, [..., B, classes] for one task, [..., B, tasks, classes] for several."""
        return outputs[..., 0, :] if self.tasks == 1 else outputs

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs with the task axis, [..., B, tasks, classes]."""
        return outputs[..., None, :] if self.tasks == 1 else outputs

    def likelihood(self, outputs: Tensor) -> Any:
        """Categorical(logits), batch shape [..., B, tasks]."""
        return dist.Categorical(logits=self.logits(outputs), validate_args=False)

    def output_curvature(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | OutputCurvature]:
        """P − onehot(y), [B, tasks, C], and diag(p) − p pᵀ, times `target_weight`."""
        if not self.is_still(Categorical, "likelihood"):
            return super().output_curvature(outputs, targets)
        p = self.logits(outputs).softmax(-1)
        slope = p - torch.nn.functional.one_hot(targets, self.classes)
        curvature = SoftmaxCurvature(p, p)
        weight = self.target_weight(targets)
        if weight is None:
            return slope, curvature
        weight = weight.to(p.dtype)
        return slope * weight[..., None], curvature.weighed(weight)

    def target_weight(self, targets: Tensor) -> Tensor | None:
        """The weight of the true class."""
        return None if self.class_weight is None else self.class_weight[targets]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, classes={self.classes}"
