"""Compound distributions: y given z of a likelihood, z ~ N(0, 1) for each example and task."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.linalg import reciprocal
from bayesagg_pyro.predictive._distribution import PredictiveDistribution, log_likelihood
from bayesagg_pyro.predictive._integral import log_expectation
from bayesagg_pyro.predictive._laws import beside
from bayesagg_pyro.quadrature import Transition, normal_rule

#: Nodes of rules for moments of y, which cost little beside those for densities.
_NODES = 256


def output_rule(mean: Tensor, std: Tensor, tail: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """Nodes z and weights, [N, ...], for expectations of the mean and variance of y given u.

    Both may bend like a logistic around 0 or grow like exp(2 tail · u).
    """
    # Where the nodes lie does not matter to the expectation, nor to its derivatives.
    return normal_rule(mean.detach(), std.detach(), _NODES, Transition(0.0, 1.0, tail=tail))


class Compound(PredictiveDistribution):
    """Base: densities by quadrature around their peak, samples through z."""

    @abstractmethod
    def given(self, z: Tensor) -> Any:
        """p(y | z), a distribution of the shape of z, [..., B, tasks]."""

    @abstractmethod
    def log_prob_given(self, z: Tensor, value: Tensor) -> Tensor:
        """The density log p(y | z), [..., B, tasks]."""

    @property
    def support(self) -> Any:
        """That of the likelihood."""
        return self.given(torch.zeros(self.batch_shape, dtype=self.mean.dtype)).support

    def log_prob(self, value: Tensor) -> Tensor:
        """log ∫ p(y | z) N(z; 0, 1) dz, [..., B, tasks]."""
        value = self.taken(value, self.mean.dtype)
        like = self.mean.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        return log_expectation(lambda z: self.log_prob_given(z, value.expand_as(z)), like)

    def draw(self, shape: torch.Size) -> Tensor:
        """z, then y."""
        mean = self.mean
        drawn: Tensor = self.given(
            torch.randn(shape, dtype=mean.dtype, device=mean.device)
        ).sample()
        return drawn


class PredictorCompound(Compound):
    """y ~ the head's likelihood at u ~ N(mean, std²).

    Args:
        head: with one predictor per task.
        predictor_mean: of u, [B, tasks].
        predictor_std: of u, [B, tasks].
    """

    def __init__(self, head: Head, predictor_mean: Tensor, predictor_std: Tensor) -> None:
        super().__init__(predictor_mean.shape, head)
        self._head = head
        self.predictor_mean = predictor_mean
        self.predictor_std = predictor_std

    def given(self, z: Tensor) -> Any:
        """The likelihood at u = mean + std z."""
        return self._head.likelihood(self.predictor_mean + self.predictor_std * z)

    def log_prob_given(self, z: Tensor, value: Tensor) -> Tensor:
        """The head's own log-likelihood, which is stabler than its distribution's may be."""
        return log_likelihood(self._head, self.predictor_mean + self.predictor_std * z, value)

    @property
    def mean(self) -> Tensor:
        """E[y] by quadrature."""
        return self._moments[0]

    @property
    def epistemic_variance(self) -> Tensor:
        """Var E[y | u] by quadrature."""
        return self._moments[1]

    @property
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | u] by quadrature."""
        return self._moments[2]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        z, p = output_rule(self.predictor_mean, self.predictor_std)
        with following(self.predictor_mean):
            given = self.given(z)
            mean = (p * given.mean).sum(0)
            epistemic = (p * (given.mean - mean).square()).sum(0)
            return mean, epistemic, (p * given.variance).sum(0)


class NormalCompound(Compound):
    """y ~ N(f, exp(s)), (f, s) jointly Gaussian: f is integrated out in closed form given s.

    Args:
        mean: of (f, s), [B, tasks, 2].
        covariance: of (f, s), [B, tasks, 2, 2].
    """

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        super().__init__(mean.shape[:-1])
        self._mean, self._log_mean = mean.unbind(-1)
        variance, self._log_variance = covariance.diagonal(dim1=-2, dim2=-1).unbind(-1)
        # The root has no slope at 0.
        self._log_std = torch.where(self._log_variance > 0, self._log_variance, 0.0).sqrt()
        # f = E f + slope z + a part of variance `left` that s says nothing about.
        self._slope = covariance[..., 0, 1] * reciprocal(self._log_std)
        self._left = (variance - self._slope.square()).clamp(min=0)
        self._variance = variance

    def given(self, z: Tensor) -> Any:
        """N(E[f | z], Var[f | z] + exp(s))."""
        noise = (self._log_mean + self._log_std * z).exp()
        return Normal(
            self._mean + self._slope * z, (self._left + noise).sqrt(), validate_args=False
        )

    def log_prob_given(self, z: Tensor, value: Tensor) -> Tensor:
        """Log-density of the normal that `given` returns."""
        log_prob: Tensor = self.given(z).log_prob(value)
        return log_prob

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks], by quadrature over s."""
        value = self.placed(value).to(self._mean.dtype)
        z, p = (beside(x, value) for x in output_rule(self._log_mean, self._log_std))
        cdf: Tensor = (p * self.given(z).cdf(value)).sum(0)
        return cdf

    @property
    def mean(self) -> Tensor:
        """E f."""
        return self._mean

    @property
    def epistemic_variance(self) -> Tensor:
        """Var f."""
        return self._variance

    @property
    def aleatoric_variance(self) -> Tensor:
        """E exp(s)."""
        return (self._log_mean + 0.5 * self._log_variance).exp()
