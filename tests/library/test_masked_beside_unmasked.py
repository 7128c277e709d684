"""Heads with and without holes in one engine, whole and in uneven pieces, against loops over tasks.

Each task's loss averages over its own observed examples, so its gradient is scaled by B / n_t; a
head without a mask has scale 1 whatever stands beside it.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from oracles import close, moments, posterior, precision_weights
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, priors

B, D, NOISE = 11, 12, 0.7
F64 = torch.float64
TOLERANCE = 1e-8  # the dense moments subtract large numbers
TASKS = {"whole": 2, "holes": 3, "weighted": 2}
ORDERS = list(permutations(TASKS))


class Recording(aggregation.PrecisionWeighted):
    """Notes how many examples it is given at once."""

    def __init__(self, power: float) -> None:
        super().__init__(power, resolution="example")
        self.sizes: list[int] = []

    def aggregate(self, grad: gradients.GradientDistribution) -> aggregation.Aggregated:
        self.sizes.append(grad.mean.shape[1])
        return super().aggregate(grad)


class Batch:
    """Features and targets: of one head all are there, of one some, of one some have a weight."""

    def __init__(self, rng: torch.Generator) -> None:
        self.h = torch.randn(B, D, generator=rng, dtype=F64)
        self.y = {n: torch.randn(B, t, generator=rng, dtype=F64) for n, t in TASKS.items()}
        mask = torch.rand(B, TASKS["holes"], generator=rng) < 0.5
        mask[:, 1] = torch.arange(B) == 4  # seen once
        mask[9] = False
        self.observed = {"holes": mask}
        self.weight = torch.rand(B, TASKS["weighted"], generator=rng, dtype=F64) + 0.5

    def targets(self, name: str) -> ba.Targets | Tensor | tuple[Tensor, Tensor | None, Tensor]:
        if name == "holes":
            return self.y[name], self.observed[name]
        return (self.y[name], None, self.weight) if name == "weighted" else self.y[name]

    def seen(self, name: str) -> Tensor:
        return self.observed.get(name, torch.ones(B, TASKS[name], dtype=torch.bool))

    def expected(self, names: tuple[str, ...], power: float) -> tuple[Tensor, Tensor]:
        """α and the direction of all tasks, one task after the other."""
        means, variances, seen = [], [], []
        for name in names:
            tasks = TASKS[name]
            factor = self.weight if name == "weighted" else torch.ones(B, tasks, dtype=F64)
            for t in range(tasks):
                root = factor[:, t, None].sqrt()  # a weight is a number of equal examples
                eye, rows = torch.eye(D, dtype=F64)[None], self.seen(name)[:, t, None]
                y = self.y[name][:, t, None]
                m, s = posterior(self.h * root, y * root, [NOISE], 0 * eye[0, :1], eye, rows)
                mean, covariance = moments(m, s, self.h, y, D)
                means.append(mean * factor[:, t, None])
                variances.append(covariance.diagonal(dim1=2, dim2=3) * factor[:, t, None] ** 2)
                seen.append(self.seen(name)[:, t])
        rows = torch.stack(seen)
        alpha = precision_weights(torch.cat(variances), [power] * len(rows), rows)
        scale = (B / rows.sum(1))[:, None, None]
        direction = (alpha * scale * torch.cat(means)).sum(0)
        # What a task weighs where it is observed stands for it where it is not.
        typical = alpha.sum(1, keepdim=True) / rows.sum(1)[:, None, None]
        alpha = torch.where(rows[..., None], alpha, typical)
        return torch.where(rows.any(0)[:, None], alpha, torch.nan), direction


def engine(names, rule: aggregation.Aggregation, memory: int | None, scheme=None):
    own = {name: heads.Gaussian(D, TASKS[name], bias=False, noise_scale=NOISE) for name in names}
    mtl = ba.BayesAgg(
        own,
        rule,
        inference=scheme,
        prior=priors.Constant(1.0),
        reduction="mean",
        working_memory=memory,
    )
    return mtl.double()


def one_step(mtl, batch: Batch, names: tuple[str, ...]) -> Tensor:
    targets = {name: batch.targets(name) for name in names}
    mtl.collect(batch.h, targets)
    mtl.update_prior()
    mtl.start_bayes()
    h = batch.h.clone().requires_grad_()
    mtl.backward(h, targets)
    return h.grad * B


@pytest.mark.parametrize("names", [*ORDERS, ("whole", "holes"), ("holes", "whole")])
def test_a_step_is_the_loop_over_tasks(rng, names) -> None:
    batch = Batch(rng)
    mtl = engine(names, aggregation.PrecisionWeighted.paper(0.6), None)
    alpha, direction = batch.expected(names, 0.6)
    close(one_step(mtl, batch, names), direction, TOLERANCE)
    close(mtl.info.weights, alpha.nanmean((1, 2)), TOLERANCE)


@pytest.mark.parametrize("scheme", [inference.Conjugate(), inference.TaylorGGN()], ids=repr)
def test_uneven_pieces_are_the_whole(rng, scheme) -> None:
    """11 examples, and the tasks of dense posteriors, in pieces of which the last is smaller."""
    names, batch, sizes = ORDERS[0], Batch(rng), set()
    alpha, direction = batch.expected(names, 0.6)
    effective = (alpha.sum(0) ** 2 / (alpha**2).sum(0)).nanmean()
    for memory in range(6_000, 200_000, 8_000):
        rule = Recording(0.6)
        mtl = engine(names, rule, memory, scheme)
        close(one_step(mtl, batch, names), direction, TOLERANCE)
        close(mtl.info.weights, alpha.nanmean((1, 2)), TOLERANCE)
        close(mtl.info.effective_tasks, effective, TOLERANCE)
        sizes |= set(rule.sizes[:-1])
        assert rule.sizes == [*[rule.sizes[0]] * ((B - 1) // rule.sizes[0]), rule.sizes[-1]]
        assert sum(rule.sizes) == B
    assert sizes >= {1, 2, 3, 4, 5, 7, 8, 10}


def test_joined_scales_are_each_heads_own() -> None:
    """B / n_t of 4 examples where some head knows its batch, in every order."""
    ones = torch.ones(2, 4, 3, dtype=F64)
    seen = torch.tensor([[True, True, True, False], [True, False, False, False]])
    whole = gradients.GradientDistribution(ones, ones)
    holes = gradients.GradientDistribution(ones, ones, seen)
    known = gradients.GradientDistribution(
        ones, ones, batch_loss_scale=torch.tensor([5.0, 7.0], dtype=F64)[:, None, None]
    )
    scales = {"whole": [1.0, 1.0], "holes": [4 / 3, 4.0], "known": [5.0, 7.0]}
    parts = {"whole": whole, "holes": holes, "known": known}
    for count in (2, 3):
        for names in permutations(parts, count):
            joint = gradients.cat({name: parts[name] for name in names})
            expected = torch.tensor([s for name in names for s in scales[name]], dtype=F64)
            close(joint.loss_scale()[:, 0, 0], expected)
            piece = joint.examples(slice(1, 3))
            close(piece.loss_scale()[:, 0, 0], expected)  # of the batch, not of the piece
            if joint.observed is not None:
                rows = [seen if name == "holes" else torch.ones_like(seen) for name in names]
                assert torch.equal(joint.observed, torch.cat(rows))
                assert torch.equal(piece.observed, torch.cat(rows)[:, 1:3])
    assert gradients.cat({"a": whole, "b": whole}).loss_scale() is None


def test_a_task_that_nobody_has_seen_has_no_scale() -> None:
    seen = torch.tensor([[False] * 4, [True] * 4])
    scale = gradients.loss_scale(seen, F64)
    assert scale.tolist() == [[[0.0]], [[1.0]]]
