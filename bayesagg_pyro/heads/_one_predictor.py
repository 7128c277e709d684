"""Heads whose likelihood depends on one linear predictor u = hᵀ w per task."""

from __future__ import annotations

from abc import ABC
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._output_curvature import DiagonalCurvature
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.quadrature import Transition
from bayesagg_pyro.targets import Targets


class PredictorMoments(NamedTuple):
    """Mean and variance of the linear predictors, [B, tasks] each."""

    mean: Tensor
    variance: Tensor


class OnePredictor(Head, ABC):
    """A head with one output per task; second-order inference and quadrature need no more.

    The derivatives below come from automatic differentiation of the likelihood; a head with simple
    or delicate ones overrides them. A subclass that changes the loss or the likelihood below them
    has the automatic ones again, unless it writes its own.
    """

    def counted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Outputs, and 0 for examples that do not count: exp(u) may overflow."""
        return targets.counted(outputs)

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """dℓ/du of `loss`, elementwise, [..., B, tasks].

        Args:
            outputs: u, [..., B, tasks].
            targets: [B, tasks]; they broadcast against the outputs.
        """
        targets = targets.expand_as(outputs)
        slope: Tensor = torch.func.grad(lambda u: self.loss(u, targets).sum())(outputs)
        return slope

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """First derivative and curvature of −log p(y | u) (times `target_weight`) in u.

        The curvature is at least 0 (generalised Gauss-Newton: negative parts are dropped).
        """

        def total(u: Tensor) -> Tensor:
            return self.negative_log_prob(u, targets).sum()

        def total_slope(u: Tensor) -> tuple[Tensor, Tensor]:
            slope = torch.func.grad(total)(u)
            return slope.sum(), slope

        # Elementwise: the gradient of the summed slope is each entry's own second derivative.
        curvature, slope = torch.func.grad(total_slope, has_aux=True)(outputs)
        return slope, curvature.clamp(min=0)

    def output_curvature(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, DiagonalCurvature]:
        """`nll_derivatives` with an axis for the one output."""
        slope, curvature = self.nll_derivatives(outputs, targets)
        return slope[..., None], DiagonalCurvature(curvature[..., None])

    def predictor_moments(self, features: Tensor, posterior: GaussianFamily) -> PredictorMoments:
        """Mean and variance of u under the posterior, with what an embedding leaves out.

        Differentiable in the features.
        """
        design = self.design_matrix(features, attached=True)
        mean = design @ posterior.mean.mT
        variance = posterior.project(design).variance.mT
        residual = self.unexpressed(features)
        if residual is not None:
            variance = variance + residual[:, None]
        return PredictorMoments(mean, variance.expand_as(mean))

    def transition(self, targets: Tensor) -> Transition | tuple[Tensor | float, Tensor | float]:
        """Where on the axis of u the derivative bends, and over what width: (centre, width).

        Quadrature puts its nodes there when the posterior is wider; broadcastable to [B, tasks].
        `bayesagg_pyro.quadrature.EXPONENTIAL` is that of derivatives such as exp(u) − y. Here: at
        the target over an unknown width for real targets, as robust losses do; else as a logistic.
        """
        if self.target_kind == "real":
            return Transition(targets, 0.0, growth=0.0, nodes=64, finest=1e-5)
        return 0.0, 1.0
