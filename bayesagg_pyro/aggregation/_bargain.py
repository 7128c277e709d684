"""A Nash bargain of the tasks over the distributions of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, from_weights
from bayesagg_pyro.aggregation._lengths import shares, spreads
from bayesagg_pyro.aggregation._matrix_aggregator import gramian_of
from bayesagg_pyro.gradients import GradientDistribution

#: Relative addition to the second moments.
_RIDGE: Final = 1e-6
#: Newton steps: twice what random gradients of 100 tasks take, and enough for opposed ones.
_NEWTON: Final = 20


class Bargain(Aggregation):
    """g = Σ_t α_t μ_t with α > 0 from G α ∝ 1 / α, G_ij = E⟨g_i, g_j⟩.

    Here g_t, [B · d], is the gradient of task t's mean loss by all features of the batch, and
    posteriors of tasks are independent, so that

        G_ij = ⟨μ_i, μ_j⟩ + δ_ij tr Cov(g_i),   tr Cov(g_i) = Σ_b,d Var[g_ibd] / n_i²

    with moments of single examples, over the n_i that have task i's target. The solution is the
    minimum of the convex ½ αᵀGα − Σ log α_t: the bargain of Nash-MTL (Navon et al., 2022,
    https://arxiv.org/abs/2202.01017), which is FairGrad with α = 1 (Ban & Ji, 2024,
    https://arxiv.org/abs/2402.15638), of expected inner products in place of those of one gradient.

    - Where variances are 0 it is that bargain. Where they dominate, or gradients are orthogonal,
      α_t ∝ E[‖g_t‖²]^(−1/2): an uncertain gradient counts as a long one.
    - There is no power to choose, and units do not matter to the direction: a loss times c has a
      weight over c, relative to the others'.
    - The update is as long as the mean of the tasks' gradients, in root mean square. Equally long
      gradients with equal inner products have 1 / T each, whatever the pattern of missing labels.

    Gradients that add up to nothing in some proportion have no bargain without variance: second
    moments E‖g_t‖² are taken 1 + 1e-6 times as large, so that there always is one. Such gradients
    then give next to no update. A task without any target in the batch, or whose gradient is
    certainly 0, takes no part and has weight 0. A step takes time of T³ beside that of G.
    """

    flat = True

    @property
    def variance_per_example(self) -> bool:
        """False: the sum over the batch is what matters."""
        return False

    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """One weight per task."""
        return self._bargained([grad], grad.tasks)[0]

    def aggregate_each(
        self, grads: Sequence[GradientDistribution], heads: Mapping[str, int]
    ) -> list[Aggregated]:
        """One bargain over all tasks; those that read different features are orthogonal."""
        return self._bargained(grads, sum(heads.values()))

    def _bargained(self, grads: Sequence[GradientDistribution], tasks: int) -> list[Aggregated]:
        inner = [_second_moments(grad) for grad in grads]
        weights = _weights(inner[0] if len(inner) == 1 else torch.block_diag(*inner), tasks)
        each = weights.split([grad.tasks for grad in grads])
        return [
            from_weights(own.to(grad.like.dtype)[:, None, None], grad)
            for own, grad in zip(each, grads, strict=True)
        ]

    def __repr__(self) -> str:
        return "Bargain()"


def _second_moments(grad: GradientDistribution) -> Tensor:
    """E⟨g_i, g_j⟩ of the gradients of the tasks' mean losses, [T, T]."""
    inner = gramian_of(grad.mean.flatten(1))
    share = shares(grad).to(inner.dtype)
    return inner * share * share[:, None] + spreads(grad).to(inner.dtype).diag_embed()


def _weights(inner: Tensor, tasks: int) -> Tensor:
    """α, [T], of E⟨g_i, g_j⟩, for an update as long as the mean over so many tasks."""
    inner = inner + (_RIDGE * inner.diagonal()).diag_embed()
    size = inner.diagonal().sqrt()
    present = size > 0
    unit = torch.where(present, size, 1.0)
    cosines = inner / unit / unit[:, None] + (~present).to(inner.dtype).diag_embed()
    length = (inner.sum() / present.sum().clamp(min=1)).sqrt() / tasks  # αᵀGα is their number
    return torch.where(present, solve(cosines) / unit * length, 0.0)


def solve(matrix: Tensor) -> Tensor:
    """v > 0 with v_i (C v)_i = 1, [T], for C [T, T] positive definite with a diagonal of ones.

    A fixed number of Newton steps, nothing of which is looked at on the host: far from the minimum
    with the best of twelve lengths, near it (in the sense of self-concordance) of full length.
    """
    v = torch.full_like(matrix[0], len(matrix) ** -0.5)
    lengths = 2.0 ** torch.arange(-6, 6, dtype=v.dtype, device=v.device)
    for _ in range(_NEWTON):
        slope = matrix @ v - 1 / v
        factor, _ = torch.linalg.cholesky_ex(matrix + v.pow(-2).diag_embed())
        step = -torch.cholesky_solve(slope[:, None], factor)[:, 0]
        decrement = -(slope @ step)  # squared
        turned = matrix @ step
        # Half of (v + t step)ᵀ C (v + t step), less what does not depend on t, and the barrier.
        value = lengths * (v @ turned) + lengths.square() * (step @ turned) / 2
        value = value - (v + lengths[:, None] * step).clamp(min=0).log().sum(1)
        best = lengths.gather(0, value.argmin(0, keepdim=True))
        v = v + torch.where(decrement < 0.05, 1.0, best) * step
    return v
