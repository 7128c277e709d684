"""The paper's posterior for classification: a Gaussian one Newton step away (eq. post_cls).

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._expansion import Chunk, value
from bayesagg_pyro.inference._newton import (
    SecondOrder,
    newton_step,
    with_info,
)
from bayesagg_pyro.posteriors import GaussianFamily

__all__ = ["TaylorGGN"]


class TaylorGGN(SecondOrder):
    """N(ŵ − B⁻¹ a, B⁻¹) at the current point estimate ŵ, gradient term a kept.

    a = ∇NLL(ŵ) + Λ_p (ŵ − m_p) and B = GGN(ŵ) + Λ_p. Away from the optimum the step can overshoot
    (on separable data the curvature vanishes while the gradient does not): `info.gain_ratio`
    compares it with what the quadratic promised and `info.overlong` flags it.
    """

    def fit(
        self, head: Head, chunks: Iterable[Chunk], prior: GaussianFamily, point: Tensor
    ) -> GaussianFamily:
        """One expansion at the point, one Newton step."""
        at = self.expand(head, chunks, point)
        newton = newton_step(head, prior, point, at)
        step = newton.step
        mean = point + step
        predicted = 0.5 * newton.decrement.square()
        # The prior's half of the decrease needs no product with Λ_p: sᵀ Λ_p s = sᵀ Λ s − sᵀ GGN s,
        # a difference that costs the ratio no more than a rounding error.
        tension = newton.decrement.square() - (at.curvature.matvec(step) * step).sum(-1)
        rise = (newton.pull * step).sum(-1) + 0.5 * tension
        actual = at.value - value(head, chunks, mean) - rise
        # At the optimum both decreases are rounding errors: nothing overshot.
        noise = torch.finfo(mean.dtype).eps * newton.value.abs().clamp(min=1) * 64
        ratio = torch.where(predicted > noise, actual / predicted, 1.0)
        return with_info(
            newton.posterior.with_mean(mean),
            newton_decrement=newton.decrement,
            gain_ratio=ratio,
        )

    def __repr__(self) -> str:
        return f"TaylorGGN(structure={self.structure!r})"
