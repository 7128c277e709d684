"""The paper's posterior for classification: a Gaussian one Newton step away (eq. post_cls).

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._curvature import Structure
from bayesagg_pyro.inference._expansion import Chunk, curvature_matvec, value
from bayesagg_pyro.inference._newton import (
    SecondOrder,
    newton_step,
)
from bayesagg_pyro.posteriors import GaussianFamily


class TaylorGGN(SecondOrder):
    """One Newton step from the point estimate ŵ: N(ŵ − B⁻¹ a, B⁻¹), with gradient a.

    a = ∇NLL(ŵ) + Λ_p (ŵ − m_p) and B = GGN(ŵ) + Λ_p. Away from the optimum the step can overshoot
    (on separable data the curvature vanishes while the gradient does not): `info.gain_ratio`
    compares it with what the quadratic promised and `info.overlong` flags it.

    Of more than 131,072 weights of a task, a Kronecker B has the eigenvectors of a Kronecker Λ_p:
    what the batch adds is taken as diagonal in them (`posteriors.KroneckerGaussian.plus`).

    Args:
        structure: as for `SecondOrder`.
        separate_bias: as for `SecondOrder`.
        mean_steps: for "kron", iterations of conjugate gradients that lead the mean to that of the
            dense B, eight times as many for the examples of an epoch (in a step one alone for more
            than 131,072 weights of a task); 0 for the mean that goes with the Kronecker one. Of
            1,200 digits the first are 0.3 % of a step off, the second 1 % of a standard deviation.

    Raises:
        SettingError: for another structure, or a negative number of steps.
    """

    def __init__(
        self,
        structure: Structure = "full",
        *,
        separate_bias: bool = False,
        mean_steps: int = 2,
    ) -> None:
        super().__init__(structure, separate_bias=separate_bias)
        integers(0, mean_steps=mean_steps)
        self.mean_steps = mean_steps

    def for_epoch(self) -> TaylorGGN:
        """With more steps for the mean."""
        return TaylorGGN(
            self.structure, separate_bias=self.separate_bias, mean_steps=8 * self.mean_steps
        )

    def fit(
        self, head: Head, chunks: Iterable[Chunk], prior: GaussianFamily, point: Tensor
    ) -> GaussianFamily:
        """One expansion at the point, one Newton step."""
        at = self.expand(head, chunks, point)
        newton = newton_step(head, prior, point, at)
        if self.structure == "kron" and self.mean_steps:
            gradient = at.gradient + newton.pull
            step, decrease, tension = exact_mean(
                head,
                chunks,
                prior,
                point,
                gradient,
                newton.step,
                newton.posterior,
                self.mean_steps,
            )
        else:
            step, decrease = newton.step, newton.decrement.square()
            # The prior's half of the decrease needs no product with Λ_p: sᵀ Λ_p s = sᵀ Λ s −
            # sᵀ GGN s, a difference that costs the ratio no more than a rounding error.
            tension = decrease - (at.curvature.matvec(step) * step).sum(-1)
        mean = point + step
        predicted = 0.5 * decrease
        rise = (newton.pull * step).sum(-1) + 0.5 * tension
        actual = at.value - value(head, chunks, mean) - rise
        # At the optimum both decreases are rounding errors: nothing overshot.
        rounding = torch.finfo(mean.dtype).eps * newton.value.abs().clamp(min=1) * 64
        ratio = torch.where(predicted > rounding, actual / predicted, 1.0)
        return newton.posterior.with_mean(mean).with_info(
            newton_decrement=decrease.clamp(min=0).sqrt(), gain_ratio=ratio
        )

    def __repr__(self) -> str:
        return f"TaylorGGN(structure={self.structure!r})"


#: Weights of a task from which the step is made but as long as it should be.
_MANY = 2**17


class Solved(NamedTuple):
    """An approximate minimum of a quadratic.

    Attributes:
        step: s, [tasks, P].
        decrease: −aᵀ s, twice what the quadratic promises, [tasks].
        tension: sᵀ Λ_p s, [tasks].
    """

    step: Tensor
    decrease: Tensor
    tension: Tensor


def exact_mean(
    head: Head,
    chunks: Iterable[Chunk],
    prior: GaussianFamily,
    point: Tensor,
    gradient: Tensor,
    start: Tensor,
    preconditioner: GaussianFamily,
    steps: int,
) -> Solved:
    """Conjugate gradients for (Λ_p + Σ_b H_b ⊗ h_b h_bᵀ) s = −a: a dense posterior's mean.

    A Kronecker sum stands for Σ_b H_b ⊗ h_b h_bᵀ, which it is not, and a Newton step with it goes
    too far where few examples are uncertain. But it is a good preconditioner of the step with the
    sum itself, whose product with a vector needs no matrix: (H_b V h_b) h_bᵀ for each example. The
    first of the iterations alone finds how far to go along the Kronecker step. Hestenes and Stiefel
    (1952), https://doi.org/10.6028/jres.049.044.

    Args:
        head: with linear outputs.
        chunks: of the examples; gone through anew each time.
        prior: of precision Λ_p.
        point: weights at which H is taken, [tasks, P].
        gradient: a, [tasks, P].
        start: s by the preconditioner alone, [tasks, P].
        preconditioner: of a precision near that of the system.
        steps: of the iteration, at least 1; there is but one for very many weights, where each
            takes as long as the rest.
    """
    matvec = curvature_matvec(head, chunks, point)
    residual, direction = -gradient, start
    if start.shape[1] > _MANY:
        steps = 1
    length = (residual * direction).sum(-1, keepdim=True)
    step, pulled = torch.zeros_like(gradient), torch.zeros_like(gradient)
    for last in range(steps - 1, -1, -1):
        of_prior = prior.precision_times(direction)
        product = of_prior + matvec(direction)
        share = _ratio(length, (direction * product).sum(-1, keepdim=True))
        step = step + share * direction
        pulled = pulled + share * of_prior
        if not last:
            break
        residual = residual - share * product
        solved = preconditioner.solve(residual)
        before, length = length, (residual * solved).sum(-1, keepdim=True)
        direction = solved + _ratio(length, before) * direction
    return Solved(step, -(gradient * step).sum(-1), (pulled * step).sum(-1))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """0 where there is nothing left to do."""
    return torch.where(b > 0, a / b.clamp(min=torch.finfo(b.dtype).tiny), 0.0)
