"""Mixtures: of likelihoods at draws of the weights, and of normals for Student's t."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head, StudentT
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.predictive._distribution import PredictiveDistribution, log_likelihood
from bayesagg_pyro.predictive._laws import beside
from bayesagg_pyro.quadrature import gamma_rule


class EqualMixture(PredictiveDistribution):
    """(1/S) Σ_s p(y | h, w_s) over S draws of the weights.

    Subclasses give `means`, `variances`, `log_probs` and `cdfs` of the components, and `draw`.

    Args:
        batch_shape: [B, tasks].
        head: whose targets are scored.
        dtype: of densities.
    """

    def __init__(self, batch_shape: torch.Size, head: Head, dtype: torch.dtype) -> None:
        super().__init__(batch_shape, head)
        self._dtype = dtype

    @property
    @abstractmethod
    def means(self) -> Tensor:
        """Means of the components, [S, B, tasks]."""

    @property
    @abstractmethod
    def variances(self) -> Tensor:
        """Variances of the components, [S, B, tasks]."""

    @abstractmethod
    def log_probs(self, value: Tensor) -> Tensor:
        """Log-densities of targets [..., B, tasks] under each component, [S, ..., B, tasks]."""

    @abstractmethod
    def cdfs(self, value: Tensor) -> Tensor:
        """P(Y ≤ y) under each component, [S, ..., B, tasks], where torch has it."""

    @property
    def mean(self) -> Tensor:
        """Average of the components' means."""
        return self.means.mean(0)

    @property
    def epistemic_variance(self) -> Tensor:
        """Variance of the components' means."""
        return self.means.var(0, correction=0)

    @property
    def aleatoric_variance(self) -> Tensor:
        """Average of the components' variances."""
        return self.variances.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Sampling error of `mean`, [B, tasks]; right for independent draws, not for chains."""
        return standard_error(self.means)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the average density, [..., B, tasks]."""
        value = self.taken(value, self._dtype)
        each = self.log_probs(value.expand(torch.broadcast_shapes(value.shape, self.batch_shape)))
        return each.logsumexp(0) - math.log(len(each))

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks], where the likelihood's distribution has one."""
        value = self.placed(value).to(self._dtype)
        try:
            return self.cdfs(value).mean(0)
        except NotImplementedError:
            return super().cdf(value)


class SampledPredictive(EqualMixture):
    """The likelihood at S drawn outputs.

    Args:
        head: whose likelihood.
        outputs: [S, B, tasks], or [S, B, tasks, C] for a head with several outputs per task.
        independent: how many of the draws are; None for all.
    """

    def __init__(self, head: Head, outputs: Tensor, independent: int | None = None) -> None:
        self._event = outputs.shape[3:]
        super().__init__(outputs.shape[1:3], head, outputs.dtype)
        self._head = head
        self._independent = independent
        self.outputs = outputs

    @property
    def standard_error(self) -> Tensor:
        """Sampling error of `mean`, [B, tasks]; right for independent draws, not for chains."""
        return standard_error(self.means, self._independent)

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
    def means(self) -> Tensor:
        """Means of the likelihoods, [S, B, tasks]."""
        means: Tensor = self.components.mean
        return means

    @property
    def variances(self) -> Tensor:
        """Variances of the likelihoods, [S, B, tasks]."""
        variances: Tensor = self.components.variance
        return variances

    def log_probs(self, value: Tensor) -> Tensor:
        """Log-densities by the head's own formula, [S, ..., B, tasks]."""
        shape = (len(self.outputs), *value.shape)
        outputs = beside(self.outputs, value).expand(*shape, *self._event)
        with following(outputs):
            return log_likelihood(self._head, outputs, value.expand(shape))

    def cdfs(self, value: Tensor) -> Tensor:
        """Of the likelihoods, [S, ..., B, tasks]."""
        cdfs: Tensor = self._head.likelihood(beside(self.outputs, value)).cdf(value)
        return cdfs

    def draw(self, shape: torch.Size) -> Tensor:
        """A component for each example and task, then a target from it."""
        device = self.outputs.device
        pick = torch.randint(len(self.outputs), shape, device=device)
        rows, columns = (torch.arange(n, device=device) for n in self.batch_shape)
        outputs = self.outputs[pick, rows[:, None], columns]
        drawn: Tensor = self._head.likelihood(outputs).sample()
        return drawn


class MixtureOfDraws(EqualMixture):
    """Any likelihoods of one batch shape, each made at a draw of its own.

    Args:
        head: whose targets are scored.
        components: S distributions of batch shape [B, tasks].
    """

    support = torch.distributions.constraints.real

    def __init__(self, head: Head, components: Sequence[Any]) -> None:
        super().__init__(components[0].batch_shape, head, components[0].mean.dtype)
        self.components = tuple(components)

    @property
    def means(self) -> Tensor:
        """Means of the likelihoods, [S, B, tasks]."""
        return torch.stack([c.mean for c in self.components])

    @property
    def variances(self) -> Tensor:
        """Variances of the likelihoods, [S, B, tasks]."""
        return torch.stack([c.variance for c in self.components])

    def log_probs(self, value: Tensor) -> Tensor:
        """Log-densities of the likelihoods, [S, ..., B, tasks]."""
        return torch.stack([c.log_prob(value) for c in self.components])

    def cdfs(self, value: Tensor) -> Tensor:
        """Of the likelihoods, [S, ..., B, tasks]."""
        return torch.stack([c.cdf(value) for c in self.components])

    def draw(self, shape: torch.Size) -> Tensor:
        """A target from each component, of which one is kept."""
        drawn = torch.stack([c.sample(shape[:-2]) for c in self.components])
        pick = torch.randint(len(self.components), shape, device=drawn.device)
        return drawn.gather(0, pick[None])[0]


def standard_error(draws: Tensor, independent: int | None = None) -> Tensor:
    """Standard error of an average over the first axis; infinite for one draw.

    Args:
        draws: [S, ...].
        independent: how many of them are; None for all.
    """
    count = independent or len(draws)
    return draws.std(0) / math.sqrt(count) if count > 1 else draws[0] + torch.inf


class NormalMixture(PredictiveDistribution):
    """Σ_n p_n N(mean, epistemic + noise_n): a normal whose noise is uncertain.

    Args:
        mean: [B, tasks].
        epistemic: variance that all components share, [B, tasks].
        noise_variance: of the components, [N, 1, tasks or 1].
        log_weight: [N, 1, tasks or 1], normalised.
        aleatoric: variance of the noise, in closed form, [B, tasks].
        centre: E[y] where it exists, [B, tasks]; the mean if None.
    """

    def __init__(
        self,
        mean: Tensor,
        epistemic: Tensor,
        noise_variance: Tensor,
        log_weight: Tensor,
        aleatoric: Tensor,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__(mean.shape)
        self._location = mean
        self._epistemic = epistemic
        self._noise_variance = noise_variance
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
        noise, log_weight = (beside(x, value) for x in (self._noise_variance, self._log_weight))
        each = self._normal(noise).log_prob(value)
        log_prob: Tensor = (each + log_weight).logsumexp(0)
        return log_prob

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks]."""
        value = self.placed(value).to(self._location.dtype)
        noise, log_weight = (beside(x, value) for x in (self._noise_variance, self._log_weight))
        cdf: Tensor = (self._normal(noise).cdf(value) * log_weight.exp()).sum(0)
        return cdf

    def draw(self, shape: torch.Size) -> Tensor:
        """A component for each example and task, then a target from it."""
        weight = self._log_weight.exp().movedim(0, -1).expand(*self.batch_shape, -1)
        pick = torch.distributions.Categorical(weight).sample(shape[: len(shape) - 2])
        noise = self._noise_variance.movedim(0, -1).expand(*shape, -1).gather(-1, pick[..., None])
        drawn: Tensor = self._normal(noise[..., 0]).sample()
        return drawn

    def _normal(self, noise_variance: Tensor) -> torch.distributions.Normal:
        scale = (self._epistemic + noise_variance).sqrt()
        return torch.distributions.Normal(self._location, scale, validate_args=False)


def student_t(head: StudentT, mean: Tensor, variance: Tensor) -> NormalMixture:
    """Student's t noise on top of predictors of that mean and variance, [B, tasks].

    τ t_ν is N(0, τ² / λ) with λ ~ Gamma(ν/2, ν/2), so y ~ N(hᵀm, hᵀSh + τ²/λ): smooth in y however
    narrow the noise is beside the posterior, which a mixture over u would not be.
    """
    df, scale = head.df.to(mean), head.scale.to(mean)
    log_precision, log_weight = gamma_rule(df.expand(torch.broadcast_shapes(df.shape, (1,))))
    noise = scale.square() * (-log_precision).exp()  # [N, tasks or 1]
    noise_variance = torch.where(df > 2, df / (df - 2), torch.where(df > 1, torch.inf, torch.nan))
    aleatoric = (scale.square() * noise_variance).expand_as(mean)
    centre = torch.where(df > 1, mean, torch.nan)
    return NormalMixture(mean, variance, noise[:, None], log_weight[:, None], aleatoric, centre)
