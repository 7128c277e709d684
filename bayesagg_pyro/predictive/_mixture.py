"""Mixtures of a head's likelihood at drawn outputs, and of normals for Student's t."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.predictive._distribution import PredictiveDistribution, beside, log_likelihood

__all__ = ["NormalMixture", "SampledPredictive"]


class SampledPredictive(PredictiveDistribution):
    """The likelihood at S drawn outputs, each with weight 1/S.

    Args:
        head: whose likelihood.
        outputs: [S, B, tasks], or [S, B, tasks, C] for a head with several outputs per task.
    """

    def __init__(self, head: Head, outputs: Tensor) -> None:
        self._event = outputs.shape[3:]
        super().__init__(outputs.shape[1:3], head)
        self._head = head
        self.outputs = outputs

    @cached_property
    def components(self) -> Any:
        """The likelihoods, a distribution of batch shape [S, B, tasks]."""
        with following(self.outputs):
            return self._head.likelihood(self.outputs)

    @property
    def support(self) -> Any:
        """That of the likelihood."""
        return self.components.support

    @property
    def mean(self) -> Tensor:
        """Average of the components' means."""
        mean: Tensor = self.components.mean.mean(0)
        return mean

    @property
    def epistemic_variance(self) -> Tensor:
        """Variance of the components' means."""
        variance: Tensor = self.components.mean.var(0, correction=0)
        return variance

    @property
    def standard_error(self) -> Tensor:
        """Sampling error of `mean`, [B, tasks]; right for independent draws, not for chains."""
        degrees = len(self.outputs) - 1
        return (self.epistemic_variance / degrees).sqrt() if degrees else self.mean + torch.inf

    @property
    def aleatoric_variance(self) -> Tensor:
        """Average of the components' variances."""
        variance: Tensor = self.components.variance.mean(0)
        return variance

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the average density, [..., B, tasks]."""
        value, count = self.taken(value, self.outputs.dtype), len(self.outputs)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        outputs = beside(self.outputs, value).expand(count, *shape, *self._event)
        with following(outputs):
            each = log_likelihood(self._head, outputs, value.expand(count, *shape))
        return each.logsumexp(0) - math.log(count)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks], where the likelihood's distribution has one."""
        value = self.placed(value).to(self.outputs.dtype)
        cdf: Tensor = self._head.likelihood(beside(self.outputs, value)).cdf(value).mean(0)
        return cdf

    def draw(self, shape: torch.Size) -> Tensor:
        """A component for each example and task, then a target from it."""
        device = self.outputs.device
        pick = torch.randint(len(self.outputs), shape, device=device)
        rows, columns = (torch.arange(n, device=device) for n in self.batch_shape)
        outputs = self.outputs[pick, rows[:, None], columns]
        drawn: Tensor = self._head.likelihood(outputs).sample()
        return drawn


class NormalMixture(PredictiveDistribution):
    """Σ_n p_n N(mean, epistemic + noise_n): a normal whose noise is uncertain.

    Args:
        mean: [B, tasks].
        epistemic: variance that all components share, [B, tasks].
        noise: variances of the components, [N, 1, tasks or 1].
        log_weight: [N, 1, tasks or 1], normalised.
        aleatoric: variance of the noise, in closed form, [B, tasks].
        centre: E[y] where it exists, [B, tasks]; the mean if None.
    """

    def __init__(
        self,
        mean: Tensor,
        epistemic: Tensor,
        noise: Tensor,
        log_weight: Tensor,
        aleatoric: Tensor,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__(mean.shape)
        self._location = mean
        self._epistemic = epistemic
        self._noise = noise
        self._log_weight = log_weight
        self._aleatoric = aleatoric
        self._centre = mean if centre is None else centre

    support = torch.distributions.constraints.real

    @property
    def mean(self) -> Tensor:
        """E[y]."""
        return self._centre

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance that the components share."""
        return self._epistemic

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise; infinite or NaN where it has none."""
        return self._aleatoric

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the mixed density, [..., B, tasks]."""
        value = self.taken(value, self._location.dtype)
        noise, log_weight = (beside(x, value) for x in (self._noise, self._log_weight))
        each = self._normal(noise).log_prob(value)
        log_prob: Tensor = (each + log_weight).logsumexp(0)
        return log_prob

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks]."""
        value = self.placed(value).to(self._location.dtype)
        noise, log_weight = (beside(x, value) for x in (self._noise, self._log_weight))
        cdf: Tensor = (self._normal(noise).cdf(value) * log_weight.exp()).sum(0)
        return cdf

    def draw(self, shape: torch.Size) -> Tensor:
        """A component for each example and task, then a target from it."""
        weight = self._log_weight.exp().movedim(0, -1).expand(*self.batch_shape, -1)
        pick = torch.distributions.Categorical(weight).sample(shape[: len(shape) - 2])
        noise = self._noise.movedim(0, -1).expand(*shape, -1).gather(-1, pick[..., None])
        drawn: Tensor = self._normal(noise[..., 0]).sample()
        return drawn

    def _normal(self, noise: Tensor) -> torch.distributions.Normal:
        scale = (self._epistemic + noise).sqrt()
        return torch.distributions.Normal(self._location, scale, validate_args=False)
