"""Exact inference for Gaussian heads: the conjugate posterior (paper, eq. reg_post).

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.heads import Gaussian as GaussianHead
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._cavity import cavity
from bayesagg_pyro.inference._curvature import Dense, gaussian_prior
from bayesagg_pyro.inference._gaussian_sums import GaussianStatistics
from bayesagg_pyro.inference._normal_equations import (
    condition,
    gaussian,
    noise_precision,
    sums,
)
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import Storage
from bayesagg_pyro.posteriors import Gaussian as GaussianPosterior
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets, Targets


class Conjugate(Scheme):
    """Λ = S_p⁻¹ + τ⁻² HᵀH,  m = m_p + τ⁻² Λ⁻¹ Hᵀ(y − H m_p).

    The mean is in innovation form: it corrects the prior mean by what the data say against it, so
    no large `Λ m_p` is formed and cancelled. Tasks with a common noise, prior precision and set of
    observed examples share one Λ.

    On the CPU a batch whose Λ is badly conditioned goes through a square root (QR) of the stacked
    prior and features, which needs no jitter and loses half the digits that Λ itself would; Λ is
    given too, but rounded. Elsewhere, and for the sums of a full-data prior, `info.rounding` says
    what is lost.
    """

    gives = GaussianPosterior

    def infer(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianPosterior:
        """The exact posterior.

        Raises:
            DtypeError: if head or prior are not Gaussian, or the head no longer is.
            ShapeError, NonFiniteError: for bad features or targets.
            NumericalError: if Λ cannot be factored.
        """
        if not isinstance(targets, Parsed):  # parsed targets come with checked features
            head.check_features(features)
        head, known, observed, noise, precision, shift = _given(head, features, targets, prior)
        total = known.precision_matrix + precision
        if features.device.type == "cpu":  # where looking at the outcome costs nothing
            tril, failed = torch.linalg.cholesky_ex(total)
            if not linalg.is_lossy(tril, failed):
                return condition(head, known, total, shift, linalg.Factor(tril, 0.0 * failed))
            if linalg.all_finite(total):
                design = head.design_matrix(features)
                return _by_square_root(known, total, design, observed, noise)
        return condition(head, known, total, shift)

    def check(self, head: Head, prior: Posterior) -> None:
        """Refuse priors that are not Gaussian, see `Scheme.check`."""
        gaussian_prior(head, prior, "Conjugate inference")

    def statistics(self, head: Head, storage: Storage) -> GaussianStatistics:
        """Empty sums: examples need not be kept."""
        return GaussianStatistics(gaussian(head, "Conjugate inference"))

    def leave_out(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        base: Posterior,
        weight: float = 1.0,
    ) -> GaussianFamily:
        """Λ_p − ω τ⁻² HᵀH, around m_p − ω τ⁻² Λ⁻¹ Hᵀ(y − H m_p); see `Scheme.leave_out`."""
        head, known, *_, precision, shift = _given(head, features, targets, prior)
        owner, terms = f"head {head.site!r}", Dense(weight * precision)
        return cavity(terms, weight * shift, known, gaussian_prior(head, base, "a cavity"), owner)


def _given(
    head: Head, features: Tensor, targets: RawTargets, prior: Posterior
) -> tuple[GaussianHead, GaussianPosterior, Parsed, Tensor, Tensor, Tensor]:
    """Head, prior and targets as they are needed; τ⁻², and what the batch adds.

    That is τ⁻² HᵀH to the precision, [1 or tasks, D, D], and τ⁻² Hᵀ(y − H m_p) to precision × mean
    beyond that of the prior's, [tasks, D], over the observed examples.
    """
    head = gaussian(head, "Conjugate inference")
    known = gaussian_prior(head, prior, "Conjugate inference").to_gaussian()
    observed = head.parse_targets(targets, len(features))
    known = known.to(features.device, linalg.head_dtype(features.device))
    noise, found = noise_precision(head, known.mean), sums(head, features, observed, known.mean)
    each = noise.reshape(-1, 1)
    return head, known, observed, noise, found.gram * each[..., None], found.moment * each


def _by_square_root(
    prior: GaussianPosterior,
    total: Tensor,
    design: Tensor,
    targets: Targets,
    noise_precision: Tensor,
) -> GaussianPosterior:
    """The same posterior with half the digits lost, at several times the cost."""
    residual = targets.values.to(design.dtype) - design @ prior.mean.mT
    root = noise_precision.sqrt().reshape(1, -1).expand(len(design), -1)
    factor = targets.factor(design.dtype)
    root = root if factor is None else root * factor.sqrt()
    tril, step = linalg.square_root(
        prior.precision_tril.expand(len(total), -1, -1),
        design,
        root.expand_as(residual)[:, : len(total)],  # of tasks that share Λ all columns are alike
        residual,
    )
    made = GaussianPosterior(prior.mean + step, total, precision_tril=tril)
    return made.with_info(square_root=made.info.jitter == 0)
