"""Steps on heads "tag", "mood" (1 task each) and "span" (2), in one layout against another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients
from bayesagg_pyro.aggregation import PrecisionWeighted

#: Makes what `backward` takes, of a network and its data.
Way = Callable[[Any, Any, Any], tuple[Any, ...]]


class Maximum(aggregation.Aggregation):
    """As a user writes one: of each number, the mean gradient that is largest."""

    def aggregate(self, grad: gradients.GradientDistribution) -> aggregation.Aggregated:
        scale = grad.loss_scale()
        mean = grad.mean if scale is None else grad.mean * scale
        best = mean.abs().argmax(0, keepdim=True)
        return aggregation.Aggregated(mean.gather(0, best)[0])


def torchjd(name: str) -> aggregation.Aggregation:
    methods = pytest.importorskip("torchjd.aggregation")
    return aggregation.TorchJD(getattr(methods, name)())


RULES: dict[str, Callable[[], aggregation.Aggregation]] = {
    "task": PrecisionWeighted,
    "task, bounded": lambda: PrecisionWeighted(0.8, floor=0.5, max_ratio=3.0),
    "dimension": lambda: PrecisionWeighted(resolution="dimension"),
    "example": lambda: PrecisionWeighted.paper(0.7),
    "off": lambda: PrecisionWeighted(0.0),
    "power of each head": lambda: PrecisionWeighted({"mood": 0.3, "tag": 0.9, "span": 0.0}),
    "kept length": lambda: PrecisionWeighted(
        {"mood": 0.3, "tag": 0.9, "span": 0.0}, keep_length=True
    ),
    "power of each task": lambda: PrecisionWeighted([0.2, 0.9, 0.5, 0.6], resolution="dimension"),
    "of each task, example": lambda: PrecisionWeighted([0.2, 0.9, 0, 0], resolution="example"),
    "full": lambda: PrecisionWeighted(covariance="full"),
    "full, dimension": lambda: PrecisionWeighted(covariance="full", resolution="dimension"),
    "mean": aggregation.Mean,
    "sum": aggregation.Sum,
    "bargain": aggregation.Bargain,
    "a user's": Maximum,
    "UPGrad": lambda: torchjd("UPGrad"),
    "GradDrop": lambda: torchjd("GradDrop"),
}


def life(
    net: nn.Module, mtl: ba.BayesAgg, way: Way, x: Any, y: Any, steps: int = 3
) -> list[Tensor]:
    """A warm-up step and Bayesian ones; all that they give."""
    found: list[Tensor] = []
    for _ in range(steps):
        net.zero_grad()
        mtl.zero_grad()
        found += mtl.backward(*way(net, x, y)).values()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
        found += [h.weight.grad.clone() for h in mtl.heads.values() if h.weight.grad is not None]
        assert mtl.info is not None
        if mtl.info.weights is not None and mtl.info.effective_tasks is not None:
            found += [mtl.info.weights, mtl.info.effective_tasks, mtl.info.observed_tasks * 1.0]
        mtl.update_prior()
        mtl.start_bayes()
        found += [prior.mean for prior in mtl.priors().values()]
    return found


def same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
