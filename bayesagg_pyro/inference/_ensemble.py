"""Ensembles of modes under randomised priors and data: samples by optimisation."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bayesagg_pyro._optimise import maximise
from bayesagg_pyro._settings import integers, positive
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference._iterative import Iterative
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._scheme import Refresh
from bayesagg_pyro.inference._whitening import approximate
from bayesagg_pyro.posteriors import Empirical, Posterior

Data: TypeAlias = Literal["auto", "noise", "bootstrap", "fixed"]


class Ensemble(Iterative):
    """Members are posterior modes for perturbed data and a prior mean drawn from the prior.

    With Gaussian likelihoods and targets that get another draw of their noise, the members are
    exact, independent draws from the posterior (randomised maximum a posteriori; Bardsley et al.,
    2014, https://doi.org/10.1137/140964023); elsewhere they are an approximation without a
    distributional form. All members are optimised at once, by Newton's method on automatic
    derivatives.

    Args:
        members: how many, at least 2.
        data: "noise" adds N(0, τ²) to the targets (Gaussian heads). "bootstrap" weighs examples by
            draws of Exp(1) (the weighted likelihood bootstrap; Newton and Raftery, 1994,
            https://doi.org/10.1111/j.2517-6161.1994.tb01956.x), those of weight ω by draws of
            Gamma(ω, 1), the sum of ω of them. "fixed" leaves the data as they are, so that only the
            anchors differ (too narrow a posterior). "auto" is "noise" for Gaussian heads, else
            "bootstrap".
        tolerance: on the Newton decrement, in posterior standard deviations.
        max_steps: after which `info.converged` is False.
        refresh: see `Scheme.refresh`.
        generator: see `Iterative`.

    Raises:
        SettingError: for arguments outside their range.
    """

    gives = Empirical

    def __init__(
        self,
        members: int = 32,
        *,
        data: Data = "auto",
        tolerance: float = 1e-4,
        max_steps: int = 30,
        refresh: Refresh = "epoch",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(refresh=refresh, generator=generator)
        integers(2, members=members)
        integers(max_steps=max_steps)
        positive("tolerance", tolerance)
        if data not in get_args(Data):
            raise SettingError(f"data must be one of {get_args(Data)}, not {data!r}")
        self.members = members
        self.data = data
        self.tolerance = tolerance
        self.max_steps = max_steps

    def check(self, head: Head, prior: Posterior) -> None:
        """Refuse noise for targets that have none."""
        self._kind(head)

    def fit(
        self, joint: Joint, start: Posterior | None, generator: torch.Generator | None
    ) -> Empirical:
        """The members, [members, tasks, P]."""
        kind = self._kind(joint.head)
        first = approximate(joint, start)
        anchors = joint.prior.sample((self.members,), generator=generator)
        noise, factor = self._perturbation(joint, kind, generator)

        def log_density(weight: Tensor) -> Tensor:
            likelihood = joint.log_likelihood(weight, perturbation=noise, factor=factor)
            return likelihood + joint.log_prior(weight, anchors)

        modes, _, decrement = maximise(
            log_density,
            first.mean.expand_as(anchors),
            tolerance=self.tolerance,
            max_steps=self.max_steps,
        )
        worst = decrement.amax(0)
        info = replace(first.info, newton_decrement=worst, converged=worst <= self.tolerance)
        return Empirical(modes, info=info)

    def _kind(self, head: Head) -> Data:
        gaussian = head.is_still(Gaussian, "likelihood")
        if self.data == "noise" and not gaussian:
            raise SettingError(
                f"head {head.site!r}: data='noise' perturbs real targets with the noise of a "
                f"Gaussian likelihood, not those of a {type(head).__name__}; use 'bootstrap'"
            )
        if self.data == "auto":
            return "noise" if gaussian else "bootstrap"
        return self.data

    def _perturbation(
        self, joint: Joint, kind: Data, generator: torch.Generator | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """What is added to targets, and weights of examples: [members, N, tasks] or None."""
        shape = (self.members, *joint.targets.values.shape)
        dtype, device = joint.features.dtype, joint.features.device
        if kind == "noise" and isinstance(joint.head, Gaussian):
            scale = joint.head.noise_scale.to(device, dtype)
            weight = joint.targets.weight
            if weight is not None:  # an example of weight ω has noise of variance τ² / ω
                scale = scale * weight.to(dtype).clamp(min=torch.finfo(dtype).tiny).rsqrt()
                scale = torch.where(weight > 0, scale, 0.0)
            noise = torch.randn(shape, generator=generator, dtype=dtype, device=device)
            return noise * scale, None
        if kind == "bootstrap":
            drawn = torch.empty(shape, dtype=dtype, device=device).exponential_(generator=generator)
            weight, own = joint.targets.weight, joint.head.target_weight(joint.targets.values)
            if own is not None:  # by which the likelihood is multiplied anyway
                weight = own if weight is None else weight * own
            if weight is not None:
                weight = weight.to(dtype).expand(shape)
                gamma = torch._standard_gamma(weight, generator=generator)
                drawn = torch.where(weight == 1, drawn, gamma)  # 1 is as none, to the bit
            if own is not None:
                drawn = torch.where(own > 0, drawn / own.to(dtype), 0.0)
            return None, drawn
        return None, None

    def __repr__(self) -> str:
        return f"Ensemble(members={self.members}, data={self.data!r}, refresh={self.refresh!r})"
