"""Methods that turn the vector of the tasks' losses into one number, and descend that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.heads import Head
from experiments.errors import DivergenceError
from experiments.methods.base import Capture, Level, MethodOptions, Needs, Scale
from experiments.methods.network import Network
from experiments.settings import require, require_numbers


class WeightedLosses(Network):
    """Weighs losses; backbone and heads descend the same weighted sum."""

    scale = Scale.SUM
    level = Level.LOSSES

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass of :meth:`total`."""
        features = self.backbone(inputs)
        losses, present = self.losses(features, targets)
        vector = torch.cat(list(losses.values()))
        self.total(vector, present).backward()
        return self.done(features, targets, losses, present)

    @abstractmethod
    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """What is descended, ``[]``.

        Args:
            losses: ``[K]``, with their graph; 0 where not present.
            present: ``[K]``, which tasks have a target in this batch; None where none can be
                missing. The others must neither weigh nor be remembered as tasks of loss 0.
        """


class LinearScalarization(WeightedLosses):
    """Descend the plain sum of all tasks' mean losses (LS).

    This is the loop that anybody would write by hand, and nothing more, so that its speed and its
    result can serve as the reference.
    """

    name, title = "ls", "LS"
    capture = Capture.RUN

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ ℓ_k."""
        return losses.sum()


class ScaleInvariant(WeightedLosses):
    """Descend Σ log ℓ_k: the gradient does not change when a task's loss is multiplied.

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022 (a baseline there).
    """

    name, title = "si", "SI"
    capture = Capture.RUN

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ log ℓ_k over the tasks that are present."""
        logs = log_losses(losses, self.tasks)
        return (logs if present is None else torch.where(present, logs, 0.0)).sum()


@dataclass(frozen=True)
class SeededOptions(MethodOptions):
    """Options of a method that draws random numbers.

    Attributes:
        seed: Of its draws. None takes one from torch's global generator when the method is made, as
            initial weights do, so that it follows the seed of the run.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        right = self.seed is None or (isinstance(self.seed, int) and self.seed >= 0)
        remedy = "give a whole number of at least 0, or leave it out"
        require(right, "seed", self.seed, remedy)


class RandomWeights(WeightedLosses):
    """Descend Σ w_k ℓ_k with w = K softmax(z), z ~ N(0, I) drawn anew for each batch.

    Source: Lin et al., Reasonable Effectiveness of Random Weighting, TMLR 2022, whose weights sum
    to 1; here to K, so that the step is as large as that of LS.
    """

    name, title = "rlw", "RLW"
    options_type = SeededOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: SeededOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.generator = self.kept["generator"] = new_generator(options.seed)

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ w_k ℓ_k, over the tasks that are present."""
        drawn = torch.randn(len(losses), generator=self.generator)
        return balanced(drawn.to(losses), present) @ losses


@dataclass(frozen=True)
class DynamicAverageOptions(MethodOptions):
    """Options of dynamic weight average.

    Attributes:
        temperature: T; larger makes weights more alike.
    """

    temperature: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "temperature", above=0, such_as="2")


class DynamicAverage(WeightedLosses):
    """Descend Σ w_k ℓ_k with w = K softmax(r / T), r_k = L_k(t − 1) / L_k(t − 2).

    L_k(t) is the task's mean training loss in epoch t, over batches that have its targets, and K
    the number of tasks in the batch. In the first two epochs all weights are 1. A task whose loss
    has been 0, or that an epoch had no targets of, counts as one that no longer falls, r_k = 1.

    Source: Liu et al., End-to-End Multi-Task Learning with Attention, CVPR 2019, eq. 7.
    """

    name, title = "dwa", "DWA"
    needs = frozenset({Needs.EPOCHS})
    options_type = DynamicAverageOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: DynamicAverageOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.temperature = options.temperature
        self.weights = torch.ones(len(self.tasks))
        self._averages: list[Tensor] = []
        self._sum: Tensor | None = None
        self._batches = torch.zeros(len(self.tasks))

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ w_k ℓ_k."""
        seen = losses.detach()
        self._sum = seen.clone() if self._sum is None else self._sum.add_(seen)
        self._batches = self._batches.to(losses)
        self._batches += 1 if present is None else present
        self.weights = self.weights.to(losses)
        if present is None:
            return self.weights @ losses
        return shared_out(self.weights, present) @ losses

    def end_epoch(self, epoch: int) -> None:
        """Work out the next epoch's weights."""
        if self._sum is None:
            return
        average = self._sum / self._batches  # NaN for a task without any target
        if self._averages:
            average = torch.where(self._batches > 0, average, self._averages[-1])
        self._averages = [*self._averages, average][-2:]
        self._sum, self._batches = None, torch.zeros(len(self.tasks))
        if len(self._averages) == 2:
            older, newer = self._averages
            rate = torch.where(older > 0, newer / older, 1.0)
            self.weights = len(rate) * (rate / self.temperature).softmax(0)

    def state_dict(self) -> dict[str, Any]:
        """State of the network, the weights and the last epochs' losses."""
        return {**super().state_dict(), "weights": self.weights, "averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self.weights = state["weights"].clone()
        place = next(self.heads.parameters()).device
        self._averages = [average.to(place) for average in state["averages"]]
        self._sum, self._batches = None, torch.zeros(len(self.tasks))


class UncertaintyWeights(WeightedLosses):
    """Descend Σ (exp(−s_k) ℓ_k + s_k) / 2 in the network and in the log variances s.

    All s begin at 0 and are trained by the network's optimiser, weight decay included. The weight
    of a task settles at 1 / ℓ_k.

    Source: Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses, CVPR 2018, the
    form for regression, which published comparisons use for every kind of task.
    """

    name, title = "uw", "UW"

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: MethodOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        like = next(iter(heads.values())).weight
        self.log_variance = Parameter(torch.zeros(len(self.tasks), device=like.device))
        self.kept["log_variance"] = self.log_variance

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ (exp(−s_k) ℓ_k + s_k) / 2 over the tasks that are present."""
        each = (-self.log_variance).exp() * losses + self.log_variance
        return (each if present is None else torch.where(present, each, 0.0)).sum() / 2

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, heads, log variances."""
        return chain(super().parameters(), [self.log_variance])


def balanced(logits: Tensor, present: Tensor | None) -> Tensor:
    """Weights ``[K]``: K softmax, over the tasks that are present where some are not.

    Args:
        logits: ``[K]``.
        present: ``[K]``; None when all are.
    """
    if present is None:
        return len(logits) * logits.softmax(0)
    weights = torch.where(present, logits, -torch.inf).softmax(0)
    return present.sum() * torch.where(present, weights, 0.0)  # 0/0 where none is


def shared_out(weights: Tensor, present: Tensor) -> Tensor:
    """Weights ``[K]`` that sum to K, as ones of the tasks that are present, which sum to theirs."""
    kept = torch.where(present, weights, 0.0)
    factor = present.sum() / kept.sum().clamp(min=torch.finfo(kept.dtype).tiny)
    return kept * torch.where(present.all(), 1.0, factor)


def log_losses(losses: Tensor, tasks: tuple[str, ...]) -> Tensor:
    """Logarithms of losses, ``[K]``; a task whose loss is 0 gets no gradient.

    Raises:
        DivergenceError: A loss is negative (looked for on the CPU alone).
    """
    if losses.device.type == "cpu" and (losses < 0).any():
        task = int((losses < 0).nonzero()[0])
        raise DivergenceError(
            f"training loss of task {tasks[task]} is {float(losses[task].detach())}: the logarithm "
            "needs positive losses; use a method without it, such as ls, uw or rlw"
        )
    return losses.clamp(min=torch.finfo(losses.dtype).tiny).log()


def new_generator(seed: int | None) -> torch.Generator:
    """A generator on the CPU; see :class:`SeededOptions`."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ()))
    return torch.Generator().manual_seed(seed)
