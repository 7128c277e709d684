"""Predictive probabilities of classes, as logarithms, so that small ones are right too."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from bayesagg_pyro.heads import FromPyro, Head, OnePredictor
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.predictive._distribution import log_likelihood
from bayesagg_pyro.predictive._integral import log_expectation
from bayesagg_pyro.predictive._laws import BernoulliPredictive, CategoricalPredictive


def has_classes(head: Head) -> bool:
    """Whether targets are labels, two or more."""
    return head.target_kind in ("binary", "class")


def from_log_probabilities(
    head: Head, log_p: Tensor
) -> BernoulliPredictive | CategoricalPredictive:
    """The distribution over classes with those log-probabilities, [B, tasks, C]."""
    owner = f"head {head.site!r}"
    if head.target_kind == "binary":
        logits = log_p[..., 1] - log_p[..., 0]
        return BernoulliPredictive(logits=logits, validate_args=False).of(owner)
    return CategoricalPredictive(logits=log_p, validate_args=False).of(owner)


def integrated(head: OnePredictor, mean: Tensor, std: Tensor) -> Tensor:
    """log E p(k | u), u ~ N(mean, std²), of all classes, [B, tasks, C], by quadrature."""
    binary = head.target_kind == "binary"
    classes = 2 if binary else head.likelihood(mean[:1]).logits.shape[-1]
    labels = torch.arange(classes, device=mean.device, dtype=mean.dtype if binary else torch.long)

    def log_p(z: Tensor) -> Tensor:
        u = mean[..., None] + std[..., None] * z
        # Heads put tasks last.
        moved = u.movedim(-1, 0)
        y = labels.reshape(-1, *[1] * (moved.ndim - 1)).expand(moved.shape)
        return log_likelihood(head, moved, y).movedim(0, -1)

    return log_expectation(log_p, mean[..., None].expand(*mean.shape, classes))


def two_classes(mean: Tensor, covariance: Tensor) -> Tensor:
    """log E softmax of two logits, [B, tasks, 2]: a logistic in their difference."""
    centre = mean[..., 1] - mean[..., 0]
    spread = covariance[..., 0, 0] + covariance[..., 1, 1] - 2 * covariance[..., 0, 1]
    spread = torch.where(spread > 0, spread, 0.0)  # the root has no slope at 0
    std, sign = spread.sqrt()[..., None], mean.new_tensor([-1.0, 1.0])

    def log_p(z: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(sign * (centre[..., None] + std * z))

    return log_expectation(log_p, mean)


def probit(head: Head, mean: Tensor, variance: Tensor) -> BernoulliPredictive:
    """sigmoid(μ / sqrt(1 + π v / 8)): MacKay's approximation, within about 0.02.

    MacKay (1992), https://doi.org/10.1162/neco.1992.4.5.720.
    """
    logits = mean / (1 + math.pi / 8 * variance).sqrt()
    return BernoulliPredictive(logits=logits, validate_args=False).of(f"head {head.site!r}")


def sampled(
    head: Head, chunks: Iterable[Tensor], independent: int | None = None
) -> tuple[Tensor, Tensor]:
    """The log of the average probability of each class over drawn outputs, and its standard error.

    Args:
        head: whose likelihood.
        chunks: outputs, [n, B, ...] each.
        independent: how many of the draws are; None for all.

    Returns:
        [B, tasks, C] each; the error is of the probability itself, for independent draws.
    """
    total: Tensor | None = None
    count = 0
    for outputs in chunks:
        with following(outputs):
            log_p = log_probabilities(head, outputs)
            each = torch.stack([log_p.logsumexp(0), (2 * log_p).logsumexp(0)])
        total = each if total is None else torch.logaddexp(total, each)
        count += len(outputs)
    assert total is not None
    first, second = total - math.log(count)
    count = independent or count
    # Var p = (E p)² (E p² / (E p)² − 1)
    spread = torch.expm1((second - 2 * first).clamp(min=0))
    return first, first.exp() * (spread / (count - 1)).sqrt() if count > 1 else first + torch.inf


def log_probabilities(head: Head, outputs: Tensor) -> Tensor:
    """log p(k | f) of all classes at outputs, [..., B, tasks, C]."""
    if isinstance(head, FromPyro):  # whose outputs are probabilities of a 1, or logits of one task
        if head.target_kind == "binary":
            return torch.stack([torch.log1p(-outputs), outputs.log()], -1)
        return outputs[..., None, :].log_softmax(-1)
    if head.target_kind == "binary":
        labels = (torch.zeros_like(outputs), torch.ones_like(outputs))
        return torch.stack([log_likelihood(head, outputs, y) for y in labels], -1)
    logits: Tensor = head.likelihood(outputs).logits
    return logits.log_softmax(-1)
