"""How a posterior came about."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

#: What is held of a whole run rather than of each task, and what of each weight.
_OF_ALL_TASKS = ("elbo", "divergences", "acceptance")
_OF_WEIGHTS = ("r_hat", "ess")


@dataclass(frozen=True, repr=False)
class Info:
    """How a posterior was found. Tensors stay on their device; reading one may synchronise.

    Attributes:
        jitter: [tasks or 1], multiple of the precision's diagonal added to factor it (0: none).
        condition: [tasks or 1], a lower bound on the condition number of the precision, read off
            its factor's diagonal at no cost.
        square_root: [tasks or 1] bool, whether the factor was made without forming the precision.
        newton_decrement: [tasks], sqrt(aᵀ Λ⁻¹ a) for the gradient a of the negative log-posterior
            at the expansion point: the length of the Newton step in posterior standard deviations.
        gain_ratio: [tasks], actual over predicted decrease of the negative log-posterior along
            that step. 1 where the quadratic is exact, negative where the step made things worse.
        dropped_curvature: [tasks], share of the likelihood's curvature in the outputs that was
            negative and taken for 0, of all curvature by size. 0 where it is log-concave, or gives
            Fisher's information; where it is large, the posterior is wider than the quadratic's.
        steps: [tasks], damped Newton steps taken before the last expansion.
        converged: [tasks] bool, whether the decrement fell below the tolerance; for variational
            inference, whether the bound had stopped rising before its steps became small.
        elbo: [steps], estimates of the evidence lower bound (all tasks) while it was maximised.
        divergences: [chains], trajectories after the warm-up that left the energy's level.
        acceptance: [chains], mean acceptance probability after the warm-up.
        r_hat: [tasks, P], rank-normalised split R-hat of the chains (Vehtari et al., 2021,
            https://arxiv.org/abs/1903.08008).
        ess: [tasks, P], bulk effective sample size over all chains.
        log_evidence: [tasks], log p(targets) under prior and noise, where the scheme maximised it.
        prior_variance: [tasks], mean variance of the prior chosen with it, and
        prior_scale: [tasks], the factor γ by which that prior is wider than the one given.
        noise_scale: [tasks], τ of Gaussian heads: chosen with it where the noise is learned, and
            by cross-validation, for predictions alone, where none is given.
        temperature: [tasks], by which logits are divided in predictions; None for 1.
        left_out: [tasks] bool, whether a batch was left out of this prior.
    """

    jitter: Tensor
    condition: Tensor
    newton_decrement: Tensor | None = None
    gain_ratio: Tensor | None = None
    steps: Tensor | None = None
    converged: Tensor | None = None
    elbo: Tensor | None = None
    divergences: Tensor | None = None
    acceptance: Tensor | None = None
    r_hat: Tensor | None = None
    ess: Tensor | None = None
    log_evidence: Tensor | None = None
    prior_variance: Tensor | None = None
    prior_scale: Tensor | None = None
    noise_scale: Tensor | None = None
    temperature: Tensor | None = None
    left_out: Tensor | None = None
    square_root: Tensor | None = None
    dropped_curvature: Tensor | None = None

    @classmethod
    def unknown(cls, like: Tensor) -> Info:
        """For a posterior of which nothing is known: no jitter, a condition of 1."""
        none = like.new_zeros(1)
        return cls(none, none + 1)

    @property
    def rounding(self) -> Tensor:
        """Relative rounding error of deviations and of the shift of the mean, [tasks or 1].

        The machine's precision times `condition`, or times its square root where the factor is a
        square root. `condition` being a lower bound, this is an estimate, mostly within a factor of
        100. A jitter of 0 says that nothing was added, not that nothing was lost; any other that
        some combination of weights is as wide as the jitter makes it: 1.
        """
        condition = self.condition
        if self.square_root is not None:
            condition = torch.where(self.square_root, condition.sqrt(), condition)
        lost = torch.finfo(condition.dtype).eps * condition
        return torch.where(self.jitter > 0, lost.clamp(min=1), lost)

    @property
    def overlong(self) -> Tensor | None:
        """Whether each task's Newton step went too far to be trusted, [tasks] bool.

        It gained less than a quarter of what its quadratic promised; the usual trust-region test.
        """
        return None if self.gain_ratio is None else self.gain_ratio < 0.25

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Info:
        """Move all tensors; floating numbers also to another precision."""
        return replace(
            self,
            **{
                name: value.to(device=device, dtype=dtype if value.is_floating_point() else None)
                for name, value in self.known().items()
            },
        )

    def part(self, rows: slice, tasks: int) -> Info:
        """What is known of some of the tasks; what holds for all together stays."""
        each = {name: value for name, value in self.known().items() if name not in _OF_ALL_TASKS}
        return replace(
            self, **{name: value[rows] for name, value in each.items() if len(value) == tasks}
        )

    def where(self, flag: Tensor, other: Info) -> Info:
        """What is known of each task here where its flag is set, [tasks] bool, else there."""
        theirs, mixed = other.known(), {}
        for name, value in self.known().items():
            if name in theirs and name not in _OF_ALL_TASKS:
                own = flag.reshape(-1, *[1] * (value.ndim - 1))
                mixed[name] = torch.where(own, value, theirs[name])
        return replace(self, **mixed)

    def fits(self, tasks: int, size: int, chains: int | None = None) -> bool:
        """Whether all shapes are those of a posterior over so many tasks and weights."""
        return all(
            value.ndim == 1 and (name == "elbo" or chains in (None, len(value)))
            if name in _OF_ALL_TASKS
            else value.shape == (tasks, size)
            if name in _OF_WEIGHTS
            else value.shape in ((1,), (tasks,))
            for name, value in self.known().items()
        )

    def __repr__(self) -> str:
        return f"Info({', '.join(f'{name}={value}' for name, value in self.known().items())})"

    def known(self) -> dict[str, Tensor]:
        """What is known, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}
