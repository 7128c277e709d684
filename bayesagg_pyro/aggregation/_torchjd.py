"""Any aggregator of TorchJD inside the engine, on posterior means or on posterior samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._pieces import LARGE, fitting, slices
from bayesagg_pyro._settings import integers
from bayesagg_pyro._state import named, part, read_generator, set_generator
from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, observed_weights
from bayesagg_pyro.aggregation._matrix_aggregator import MatrixAggregator
from bayesagg_pyro.gradients import GradientDistribution


class TorchJD(Aggregation):
    """An aggregator of TorchJD, applied to the posterior-mean gradients of the batch.

    Quinton and Rey (2024), https://arxiv.org/abs/2406.16232.

    The matrix that it sees is [T, B · d]: for each task the gradient of its mean loss with respect
    to the features, as methods do that work at the level of the representation. A task without any
    label in the batch is no row of it, and gets weight 0.

    Args:
        aggregator: such as `torchjd.aggregation.UPGrad()`.
        generator: randomness of aggregators that draw; a new one with seed 0 if None.

    Raises:
        DtypeError: if `aggregator` is none.
    """

    flat = True

    def __init__(self, aggregator: Any, *, generator: torch.Generator | None = None) -> None:
        self.rows = MatrixAggregator(aggregator, generator=generator)
        self.reduction = self.rows.reduction

    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Direction, and one weight per task where the aggregator has weights.

        Raises:
            NonFiniteError, NumericalError: naming the task, or the aggregator that failed.
        """
        mean, scale = grad.mean, grad.loss_scale()
        if scale is not None:
            mean = mean * scale
        batch = mean.shape[1]
        present = None if grad.observed is None else grad.observed.any(1)
        direction, weights = self.rows(mean.flatten(1) / batch, _names(grad), present)
        # A mean over the tasks of the batch is their share of one over all tasks, as elsewhere.
        share: Tensor | float = 1.0
        if present is not None and self.reduction == "mean":
            share = present.to(mean.dtype).mean()
        if weights is not None:
            weights = observed_weights((share * weights.to(mean.dtype))[:, None, None], grad)
        direction = direction.reshape(mean.shape[1:]) * (batch * share)
        return Aggregated(direction, weights, observed=grad.observed)

    def state_dict(self) -> dict[str, Tensor]:
        """What the aggregator remembers, and its generator."""
        return named("TorchJD", self.rows.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        self._check_state(state, ("TorchJD",))
        self.rows.load_state_dict(part(state, "TorchJD"))

    def __repr__(self) -> str:
        return f"TorchJD({self.rows.aggregator!r})"


class PerSample(Aggregation):
    """Aggregates the gradients at each of several draws of the head weights, and averages.

    E_w[A(g(w))] differs from A(E_w[g(w)]) wherever A is not linear, so any aggregator comes to know
    of the posterior's width: conflicts that only some plausible weights have are met in part.

    Args:
        aggregator: an aggregator of TorchJD, or an object of this package, which then gets each
            draw as a distribution without variance.
        samples: draws. The error of the average falls with the square root of their number.
        generator: randomness of the draws and of aggregators that draw; a new one with seed 0 if
            None. It must live on the device of the posterior.

    Raises:
        DtypeError: if `aggregator` is none.
        SettingError: if `samples` is below 1.
    """

    def __init__(
        self, aggregator: Any, *, samples: int = 32, generator: torch.Generator | None = None
    ) -> None:
        integers(samples=samples)
        if not isinstance(aggregator, Aggregation):
            aggregator = TorchJD(aggregator)
        self.aggregator: Aggregation = aggregator
        self.samples = samples
        self.generator = generator
        self._own = generator is None  # made at the first draw, on the device that it then needs
        self._waiting: dict[str, Tensor] = {}  # its state until then
        self.reduction = aggregator.reduction
        self.flat = aggregator.flat

    def check_heads(self, tasks: Mapping[str, int]) -> None:
        """Refuse what the aggregator inside refuses."""
        self.aggregator.check_heads(tasks)

    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Mean direction and mean weights over the draws.

        Raises:
            StateError: if the distribution was built from moments alone.
        """
        if self.generator is None:
            self.generator = torch.Generator(grad.mean.device).manual_seed(0)
            set_generator(self.generator, self._waiting)
        direction = torch.zeros_like(grad.mean[0])
        weights: Tensor | None = None
        for drawn in slices(self.samples, fitting(grad.mean.numel(), 2 * LARGE)):
            for draw in grad.sample((drawn.stop - drawn.start,), generator=self.generator):
                result = self.aggregator.aggregate(_certain(draw, grad))
                direction += result.direction / self.samples
                if result.weights is not None:
                    share = result.weights / self.samples
                    weights = share if weights is None else weights + share
        return Aggregated(direction, weights, observed=grad.observed)

    def state_dict(self) -> dict[str, Tensor]:
        """What the aggregator inside remembers, and the state of the draws once there were any."""
        inside = named("aggregator", self.aggregator.state_dict())
        return named("PerSample", {**inside, **(read_generator(self.generator) or self._waiting)})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        self._check_state(state, ("PerSample",))
        own = part(state, "PerSample")
        self.aggregator.load_state_dict(part(own, "aggregator"))
        if self._own and "generator" not in own:  # of before the first draw
            self.generator = None
        if self.generator is None:
            self._waiting = {k: v.clone() for k, v in own.items() if k == "generator"}
        set_generator(self.generator, own)

    def __repr__(self) -> str:
        return f"PerSample({self.aggregator!r}, samples={self.samples})"


def _certain(draw: Tensor, grad: GradientDistribution) -> GradientDistribution:
    """One draw of the gradients, [tasks, B, d], as a distribution without variance."""
    mean = draw.to(grad.mean.dtype)
    if grad.observed is not None:
        mean = torch.where(grad.observed[..., None], mean, 0.0)
    return GradientDistribution(
        mean, torch.zeros_like(mean), grad.observed, grad.groups, batch_loss_scale=grad.loss_scale()
    )


def _names(grad: GradientDistribution) -> list[str]:
    if not grad.groups:
        return [str(task) for task in range(grad.tasks)]
    return [
        name if rows.stop - rows.start == 1 else f"{name}[{task}]"
        for name, rows in grad.groups.items()
        for task in range(rows.stop - rows.start)
    ]
