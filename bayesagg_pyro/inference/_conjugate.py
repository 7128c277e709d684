"""Exact inference for Gaussian heads: the conjugate posterior (paper, eq. reg_post)."""

from __future__ import annotations

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
from bayesagg_pyro.targets import Parsed, RawTargets

__all__ = ["Conjugate"]


class Conjugate(Scheme):
    """Λ = S_p⁻¹ + τ⁻² HᵀH,  m = m_p + τ⁻² Λ⁻¹ Hᵀ(y − H m_p).

    The mean is in innovation form: it corrects the prior mean by what the data say against it, so
    no large `Λ m_p` is formed and cancelled. Tasks with a common noise, prior precision and set of
    observed examples share one Λ.
    """

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
        precision, shift = data_terms(
            design, observed._replace(values=residual), _noise_precision(head, design)
        )
        return _condition(head, prior, precision, shift)

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
        return _condition(head, prior, precision, shift - explained)

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
    head: Head, prior: GaussianPosterior, precision: Tensor, innovation: Tensor
) -> GaussianPosterior:
    total = prior.precision_matrix + precision
    tril, jitter = linalg.cholesky(total, what=f"posterior precision of head {head.site!r}")
    mean = prior.mean + linalg.solve(tril, innovation)
    return GaussianPosterior(mean, total, precision_tril=tril, jitter=jitter)


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
