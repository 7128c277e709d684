"""Exact inference for Gaussian heads: the conjugate posterior (paper, eq. reg_post)."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference._cavity import without
from bayesagg_pyro.inference._curvature import Dense
from bayesagg_pyro.inference._examples import Keep
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import (
    GaussianStatistics,
    Statistics,
    data_terms,
    gaussian,
)
from bayesagg_pyro.posteriors import Gaussian as GaussianPosterior
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets, Targets

__all__ = ["Conjugate"]

#: Relative rounding error of a full-data posterior that is warned of.
_WORTH_TELLING = 1e-6


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
        self, head: Head, features: Tensor, targets: RawTargets, prior: Posterior
    ) -> GaussianPosterior:
        """The exact posterior.

        Args:
            head: a Gaussian head.
            features: [N, d].
            targets: [N, tasks], or (values, mask).
            prior: a Gaussian; a posterior serves.

        Raises:
            DtypeError: if head or prior are not Gaussian, or the head no longer is.
            ShapeError, NonFiniteError: for bad features or targets.
            NumericalError: if Λ cannot be factored.
        """
        if not isinstance(targets, Parsed):  # parsed targets come with checked features
            head.check_features(features)
        head, prior = _gaussians(head, prior)
        observed = head.parse_targets(targets, len(features))
        design = head.exact(features)
        prior = prior.to(design.device, design.dtype)
        residual = observed.values.to(design.dtype) - design @ prior.mean.mT
        noise_precision = _noise_precision(head, design)
        precision, shift = data_terms(design, observed._replace(values=residual), noise_precision)
        total = prior.precision_matrix + precision
        if design.device.type == "cpu":  # where looking at the outcome costs nothing
            tril, failed = torch.linalg.cholesky_ex(total)
            if linalg.is_lossy(tril, failed):
                return _by_square_root(prior, total, design, residual, observed, noise_precision)
            return _condition(head, prior, total, shift, linalg.Factor(tril, 0.0 * failed))
        return _condition(head, prior, total, shift)

    def statistics(self, head: Head, keep: Keep) -> GaussianStatistics:
        """Empty sums, from which `infer_from` makes a posterior; examples need not be kept."""
        return GaussianStatistics(gaussian(head, "Conjugate inference"))

    def infer_from(self, head: Head, statistics: Statistics, prior: Posterior) -> GaussianPosterior:
        """The posterior of all examples in `statistics`."""
        assert isinstance(statistics, GaussianStatistics)
        head, prior = _gaussians(head, prior)
        # Σ h (y − hᵀm_p) = Σ h y − (Σ h hᵀ) m_p; with the usual zero mean nothing is subtracted.
        precision, shift = statistics.terms(_noise_precision(head, statistics.moment))
        prior = prior.to(shift.device, shift.dtype)
        explained = (precision @ prior.mean[..., None])[..., 0]
        made = _condition(head, prior, prior.precision_matrix + precision, shift - explained)
        if shift.device.type == "cpu" and made.info.rounding.max() > _WORTH_TELLING:
            warnings.warn(
                f"head {head.site!r}: the precision is so badly conditioned, at least "
                f"{made.info.condition.max():.1e}, that the posterior of these sums may be off by "
                f"{made.info.rounding.max():.0e}, relatively. Strengthen the prior, or standardise "
                "or decorrelate the features.",
                RuntimeWarning,
                stacklevel=2,
            )
        return made

    def leave_out(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        base: Posterior,
        weight: float = 1.0,
    ) -> GaussianPosterior:
        """Λ_p − ω τ⁻² HᵀH, around m_p − ω τ⁻² Λ⁻¹ Hᵀ(y − H m_p); see `Scheme.leave_out`."""
        head, prior = _gaussians(head, prior)
        observed = head.parse_targets(targets, len(features))
        design = head.exact(features)
        prior = prior.to(design.device, design.dtype)
        residual = observed.values.to(design.dtype) - design @ prior.mean.mT
        precision, shift = data_terms(
            design, observed._replace(values=residual), _noise_precision(head, design)
        )
        cavity = without(Dense(weight * precision), weight * shift, prior, base)
        assert isinstance(cavity, GaussianPosterior)
        return cavity

    def __repr__(self) -> str:
        return "Conjugate()"


def _condition(
    head: Head,
    prior: GaussianPosterior,
    total: Tensor,
    innovation: Tensor,
    factor: linalg.Factor | None = None,
) -> GaussianPosterior:
    if factor is None:
        factor = linalg.cholesky(total, what=f"posterior precision of head {head.site!r}")
    mean = prior.mean + linalg.solve(factor.tril, innovation)
    return GaussianPosterior(mean, total, precision_tril=factor.tril, jitter=factor.jitter)


def _by_square_root(
    prior: GaussianPosterior,
    total: Tensor,
    design: Tensor,
    residual: Tensor,
    targets: Targets,
    noise_precision: Tensor,
) -> GaussianPosterior:
    """The same posterior with half the digits lost, at several times the cost."""
    root = noise_precision.sqrt().reshape(1, -1).expand(len(design), -1)
    factor = targets.factor(design.dtype)
    root = root if factor is None else root * factor.sqrt()
    tril, step = linalg.square_root(
        prior.precision_tril.expand(len(total), -1, -1),
        design,
        root.expand(-1, len(total)),
        residual,
    )
    made = GaussianPosterior(prior.mean + step, total, precision_tril=tril)
    made.info = replace(made.info, square_root=made.info.jitter == 0)
    return made


def _noise_precision(head: Gaussian, like: Tensor) -> Tensor:
    """τ⁻², [] or [tasks]."""
    return head.noise_scale.to(like.device, like.dtype).square().reciprocal()


def _gaussians(head: Head, prior: Posterior) -> tuple[Gaussian, GaussianPosterior]:
    head = gaussian(head, "Conjugate inference")
    if not isinstance(prior, GaussianFamily):
        raise DtypeError(
            f"head {head.site!r}: Conjugate inference is exact for Gaussian priors only, not "
            f"{type(prior).__name__}; choose another scheme from bayesagg_pyro.inference"
        )
    head.check_weights(prior, "prior")
    return head, prior.to_gaussian()
