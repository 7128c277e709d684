"""References for softmax gradients: many draws of the weights, with their standard errors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from dense import F64, normal
from torch import Tensor

from bayesagg_pyro import gradients, heads, inference, posteriors, priors

STRUCTURES = ("full", "kron", "diag")


class Moments(NamedTuple):
    """Mean and variance [T, B, d] and the standard errors of both."""

    mean: Tensor
    variance: Tensor
    mean_error: Tensor
    variance_error: Tensor


class World(NamedTuple):
    """A posterior and a batch to take gradients of."""

    head: heads.Categorical
    posterior: posteriors.GaussianFamily
    features: Tensor
    targets: Tensor


def world(
    rng: torch.Generator,
    structure: str,
    classes: int,
    d: int,
    examples: int,
    *,
    tasks: int = 1,
    batch: int = 3,
    bias: bool = True,
    variance: float = 1.0,
    class_weight: Tensor | None = None,
) -> World:
    """TaylorGGN's posterior of random examples; few of them leave it wide."""
    head = heads.Categorical(d, classes, tasks=tasks, bias=bias, class_weight=class_weight).double()
    h, y = normal(rng, examples, d), torch.randint(0, classes, (examples, tasks), generator=rng)
    prior = priors.isotropic(head, variance)
    p = inference.TaylorGGN(structure).infer(head, h, y, prior)
    features = normal(rng, batch, d)
    targets = torch.randint(0, classes, (batch, tasks), generator=rng)
    return World(head, p, features, targets)


def reference(
    rng: torch.Generator, w: World, draws: int = 1_000_000, chunk: int = 50_000
) -> Moments:
    """Moments over draws of the weights by a dense factor.

    Draws are in float32, whose rounding is far below their scatter; sums around a first estimate
    are in float64.
    """
    head, posterior, features, targets = w
    dense = posterior.to_gaussian()
    tasks, classes = head.tasks, head.classes
    s = torch.linalg.inv(dense.precision_matrix).expand(tasks, -1, -1)
    factor = torch.linalg.cholesky(0.5 * (s + s.mT))
    ones = torch.ones(len(features), 1, dtype=F64)
    design = torch.cat([features, ones], 1) if head.bias else features
    result = []
    for t in range(tasks):
        weight = torch.ones(len(features)).double()
        if head.class_weight is not None:
            weight = head.class_weight[targets[:, t]]
        sums = torch.zeros(4, *features.shape, dtype=F64)
        shift: Tensor | None = None
        for _ in range(draws // chunk):
            z = torch.randn(chunk, dense.mean.shape[1], generator=rng)
            matrix = (dense.mean[t].float() + z @ factor[t].T.float()).unflatten(-1, (classes, -1))
            p = torch.einsum("scd,bd->sbc", matrix, design.float()).softmax(-1)
            p[:, torch.arange(len(features)), targets[:, t]] -= 1
            g = torch.einsum("sbc,scd->sbd", p, matrix[..., : head.in_features])
            g *= weight[:, None].float()
            shift = g.mean(0) if shift is None else shift
            g -= shift
            square = g.square()
            sums += torch.stack(
                [x.sum(0, dtype=F64) for x in (g, square, square * g, square.square())]
            )
        assert shift is not None
        m1, m2, m3, m4 = sums / draws
        variance = m2 - m1**2
        fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        result.append(
            (
                m1 + shift,
                variance,
                (variance / draws).sqrt(),
                ((fourth - variance**2) / draws).sqrt(),
            )
        )
    return Moments(*(torch.stack(part) for part in zip(*result, strict=True)))


def estimates(w: World, estimator: gradients.Estimator, seeds: int) -> tuple[Tensor, Tensor]:
    """Means and variances of as many seeds, [seeds, T, B, d] each."""
    found = [
        gradients.distribution(
            *w, estimator=estimator, generator=torch.Generator().manual_seed(1000 + seed)
        )
        for seed in range(seeds)
    ]
    return torch.stack([g.mean for g in found]), torch.stack([g.variance for g in found])


class Errors(NamedTuple):
    """Root mean squares over seeds and entries."""

    mean: float  #: in standard deviations of the gradient
    variance: float  #: relative


def errors(w: World, estimator: gradients.Estimator, truth: Moments, seeds: int = 50) -> Errors:
    mean, variance = estimates(w, estimator, seeds)
    return Errors(
        ((mean - truth.mean).square() / truth.variance).mean().sqrt().item(),
        (variance / truth.variance - 1).square().mean().sqrt().item(),
    )
