"""Laplace's approximation: a Gaussian at the MAP with the curvature found there."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from bayesagg_pyro._optimise import backtrack
from bayesagg_pyro._settings import integers, positive
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._curvature import Structure
from bayesagg_pyro.inference._expansion import Chunk
from bayesagg_pyro.inference._newton import (
    NewtonStep,
    SecondOrder,
    newton_step,
    potential,
)
from bayesagg_pyro.posteriors import GaussianFamily


class Laplace(SecondOrder):
    """N(w_MAP, B(w_MAP)⁻¹), found by damped Newton steps from the point estimate.

    MacKay (1992), https://doi.org/10.1162/neco.1992.4.3.448.

    Every task takes its own step length, halved until the negative log-posterior falls enough
    (Armijo). `info` reports steps, the last decrement and whether it fell below the tolerance. It
    looks at values between steps, so on a GPU it waits for the device: a scheme for once per epoch.

    Args:
        structure: of the curvature, for steps and posterior alike; see `TaylorGGN`. With "diag" or
            "kron" the steps are quasi-Newton and more of them are needed.
        tolerance: on the Newton decrement, in posterior standard deviations.
        max_steps: after which `info.converged` is False.
        separate_bias: see `TaylorGGN`.

    Raises:
        SettingError: if tolerance or max_steps is not positive.
    """

    def __init__(
        self,
        structure: Structure = "full",
        *,
        tolerance: float = 1e-8,
        max_steps: int = 200,
        separate_bias: bool = False,
    ) -> None:
        super().__init__(structure, separate_bias=separate_bias)
        positive("tolerance", tolerance)
        integers(max_steps=max_steps)
        self.tolerance = tolerance
        self.max_steps = max_steps

    def fit(
        self, head: Head, chunks: Iterable[Chunk], prior: GaussianFamily, point: Tensor
    ) -> GaussianFamily:
        """Iterate to the MAP, then expand there."""
        steps = torch.zeros(head.blocks, dtype=torch.long, device=point.device)
        newton = newton_step(head, prior, point, self.expand(head, chunks, point))
        first = torch.ones_like(newton.decrement)
        for _ in range(self.max_steps):
            active = newton.decrement > self.tolerance
            if not active.any():
                break
            length, _ = backtrack(
                lambda trial: potential(head, chunks, prior, trial),
                point,
                newton.step,
                newton.value,
                newton.decrement.square(),
                active * first,
            )
            point = point + length[:, None] * newton.step
            steps += active
            last, newton = (
                newton,
                newton_step(head, prior, point, self.expand(head, chunks, point)),
            )
            first = _secant(last, newton, length)
        return newton.posterior.with_mean(point).with_info(
            newton_decrement=newton.decrement,
            steps=steps,
            converged=newton.decrement <= self.tolerance,
        )

    def __repr__(self) -> str:
        return f"Laplace(structure={self.structure!r}, tolerance={self.tolerance})"


def _secant(last: NewtonStep, now: NewtonStep, length: Tensor) -> Tensor:
    """The length, at most 1, that would have ended the last step where its slope vanishes; [tasks].

    True Newton steps have length 1. Quasi-Newton ones overshoot where the structure leaves out
    curvature, which the value no longer shows close to the optimum; the slope does.
    """
    before = -last.decrement.square()
    after = -(now.posterior.precision_times(now.step) * last.step).sum(-1)
    rise = (after - before).clamp(min=torch.finfo(before.dtype).tiny)
    return torch.where(length > 0, -length * before / rise, 1.0).clamp(max=1)
