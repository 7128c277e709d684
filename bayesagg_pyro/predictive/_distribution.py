"""What predictive distributions of regression and counts have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._torch_distribution import TorchDistribution
from bayesagg_pyro.heads import Head, Network
from bayesagg_pyro.predictive._laws import TakesTargets, drawn, no_formula


class PredictiveDistribution(TakesTargets, TorchDistribution):
    """p(y | h) of batch shape [B, tasks], with the variance in its two parts.

    Subclasses bring values to one form by `taken` and `placed`.

    Args:
        batch_shape: [B, tasks].
        head: whose targets are scored; None for real ones of nobody in particular.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)

    def __init__(self, batch_shape: torch.Size, head: Head | None = None) -> None:
        super().__init__(batch_shape, validate_args=False)
        if head is not None:
            self.target_kind = head.target_kind
            self.of(f"head {head.site!r}")

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E[y], [B, tasks]."""

    @property
    @abstractmethod
    def epistemic_variance(self) -> Tensor:
        """Var E[y | w], [B, tasks], of the weights, which more data would shrink."""

    @property
    @abstractmethod
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | w], [B, tasks], of the observation itself."""

    @property
    def variance(self) -> Tensor:
        """Var y, [B, tasks], the sum of its two parts."""
        return self.epistemic_variance + self.aleatoric_variance

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of y, [..., B, tasks]."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks], where there is a formula.

        Raises:
            UnsupportedError: where there is none, and what to do instead; likewise below.
        """
        raise no_formula(self, "cdf", "take draws, (law.sample((1000,)) <= y).double().mean(0)")

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels, [..., B, tasks], where there is a formula."""
        raise no_formula(
            self, "icdf", "take draws, law.sample((1000,)).double().quantile(level, 0)"
        )

    def entropy(self) -> Tensor:
        """Of each example and task, where there is a formula."""
        raise no_formula(self, "entropy", "take draws, -law.log_prob(law.sample((1000,))).mean(0)")

    @abstractmethod
    def draw(self, shape: torch.Size) -> Tensor:
        """Samples of that shape from torch's global generator."""

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw targets, [*sample_shape, B, tasks] (torch's global generator if none is given)."""
        shape = torch.Size([*torch.Size(sample_shape), *self.batch_shape])
        with torch.no_grad():
            return drawn(lambda: self.draw(shape), generator)


def log_likelihood(head: Head, outputs: Tensor, targets: Tensor) -> Tensor:
    """The density log p(y | f), [..., B, tasks], without the weights of tempering.

    By the head's own formula where that is one of its likelihood: a subclass that redefines
    `negative_log_prob` alone (tempered, smoothed) changes what inference sums, not what is
    predicted.
    """
    if isinstance(head, Network) and head.is_still(Network, "likelihood", "weight"):
        head = head.observation
    if head.has_own_density and head.target_weight(targets) is None:
        return -head.negative_log_prob(outputs, targets)
    density: Tensor = head.likelihood(outputs).log_prob(targets)
    return density
