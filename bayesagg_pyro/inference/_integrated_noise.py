"""Regression with unknown noise, integrated out: the normal-inverse-gamma posterior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import real
from bayesagg_pyro.errors import DtypeError, SettingError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference._gaussian_sums import GaussianStatistics
from bayesagg_pyro.inference._normal_equations import gaussian
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import Storage
from bayesagg_pyro.posteriors import Gaussian as DenseGaussian
from bayesagg_pyro.posteriors import GaussianFamily, NormalInverseGamma, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets


class IntegratedNoise(Scheme):
    """Exact for Gaussian heads with unknown noise variance τ² ~ InverseGamma(a, b).

    With w | τ² ~ N(m_p, τ² Λ_p⁻¹),

        Λ = Λ_p + HᵀH,  m = m_p + Λ⁻¹ Hᵀ(y − H m_p),  a = a_p + n / 2,
        b = b_p + ½ (|y − H m|² + (m − m_p)ᵀ Λ_p (m − m_p)),

    where the sum in b has no negative term (Bernardo and Smith, 1994,
    appendix A, https://doi.org/10.1002/9780470316870). The predictive
    is Student-t, and so are the weights; the gradient's moments are exact. Weights of examples
    count as repetitions.

    A Gaussian prior, such as the base of a policy, is read in units of the noise: N(m_p, τ² S_p).
    Together with it τ² has the mean `head.noise_scale` squared, a guess worth 2 · shape examples.

    Args:
        shape: a of the noise's prior, above 2, so that its variance is finite.

    Raises:
        SettingError: if the shape is not above 2 and finite.
    """

    gives = NormalInverseGamma

    def __init__(self, shape: float = 3.0) -> None:
        if not 2 < real(shape) < math.inf:
            raise SettingError(
                f"shape must be above 2 (for a finite variance of the noise), not {shape!r}"
            )
        self.shape = shape

    def infer(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> NormalInverseGamma:
        """The exact posterior of weights and noise variance.

        Raises:
            DtypeError: if the head is not (or no longer) Gaussian, or the prior neither Gaussian
                nor a posterior of this scheme.
            SettingError: if the head learns its noise.
            NumericalError: if Λ cannot be factored.
        """
        if not isinstance(targets, Parsed):
            head.check_features(features)
        head, known, design, values, factor = self._given(head, features, targets, prior)
        weight = torch.ones_like(values) if factor is None else factor
        residual = values - design @ known.mean.mT
        total = known.unit.precision_matrix + linalg.gram(design, factor)
        innovation = (residual * weight).mT @ design
        mean, factors = _solved(head, known, total, innovation)
        misfit = ((values - design @ mean.mT).square() * weight).sum(0)
        return _updated(known, mean, total, factors, weight.sum(0), misfit)

    def statistics(self, head: Head, storage: Storage) -> GaussianStatistics:
        """Empty sums; examples need not be kept."""
        return _Sums(_gaussian(head), self)

    def leave_out(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        base: Posterior,
        weight: float = 1.0,
    ) -> NormalInverseGamma:
        """The posterior less the batch, where weights and noise stay proper.

        See `Scheme.leave_out`; of the rate b, too, at least half of the base's must be left.
        """
        head, known, design, values, factor = self._given(head, features, targets, prior)
        first = self.known(head, base)[1].to(design.device, design.dtype)
        share = weight * (torch.ones_like(values) if factor is None else factor)
        left = known.unit.precision_matrix - linalg.gram(
            design, weight * design.new_ones(len(design), 1) if factor is None else share
        )
        tril, failed = torch.linalg.cholesky_ex(left)
        floor = torch.linalg.cholesky_ex(left - 0.5 * first.unit.precision_matrix).info
        usable = (failed == 0) & (floor == 0)
        tril = torch.where(usable[:, None, None], tril, known.unit.precision_tril)
        residual = values - design @ known.mean.mT
        mean = known.mean - linalg.solve(tril, (residual * share).mT @ design)
        move = known.mean - mean
        shape = known.shape_parameter - 0.5 * share.sum(0)
        rate = known.rate - 0.5 * (
            (residual.square() * share).sum(0) + (linalg.matvec(left, move) * move).sum(-1)
        )
        found = usable & (rate >= 0.5 * first.rate) & (shape >= 0.5 * (2 + first.shape_parameter))
        keep = found[:, None, None]
        cavity = NormalInverseGamma(
            torch.where(found[:, None], mean, known.mean),
            torch.where(keep, left, known.unit.precision_matrix),
            torch.where(found, shape, known.shape_parameter),
            torch.where(found, rate, known.rate),
            precision_tril=torch.where(keep, tril, known.unit.precision_tril),
        )
        return cavity.with_info(left_out=found)

    def _given(
        self, head: Head, features: Tensor, targets: RawTargets, prior: Posterior
    ) -> tuple[Gaussian, NormalInverseGamma, Tensor, Tensor, Tensor | None]:
        """Head, prior, design [B, D], targets and how much each counts, [B, tasks]."""
        head, known = self.known(head, prior)
        observed = head.parse_targets(targets, len(features))
        design = head.design_matrix(features)
        known = known.to(design.device, design.dtype)
        values, factor = observed.values.to(design.dtype), observed.factor(design.dtype)
        return head, known, design, values, factor

    def known(self, head: Head, prior: Posterior) -> tuple[Gaussian, NormalInverseGamma]:
        """The head and its prior, as this scheme takes them."""
        head = _gaussian(head)
        head.check_weights(prior, "prior")
        if isinstance(prior, NormalInverseGamma):
            return head, prior
        if not isinstance(prior, GaussianFamily):
            raise DtypeError(
                f"head {head.site!r}: IntegratedNoise needs a Gaussian prior or a posterior of its "
                f"own, not {type(prior).__name__}"
            )
        dense: DenseGaussian = prior.to_gaussian()
        variance = head.noise_scale.to(dense.mean).square().expand(head.tasks)
        shape = torch.full_like(variance, self.shape)
        return head, NormalInverseGamma(
            dense.mean,
            dense.precision_matrix,
            shape,
            (self.shape - 1) * variance,
            precision_tril=dense.precision_tril,
            jitter=dense.info.jitter,
        )

    def __repr__(self) -> str:
        return f"IntegratedNoise(shape={self.shape})"


class _Sums(GaussianStatistics):
    """The same sums, whose posterior has the noise integrated out."""

    def __init__(self, head: Gaussian, scheme: IntegratedNoise) -> None:
        super().__init__(head)
        self._scheme = scheme

    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> NormalInverseGamma:
        self.tell_units()
        head, known = self._scheme.known(self.head, prior)
        known = known.to(self.moment.device, self.moment.dtype)
        total = known.unit.precision_matrix + self.gram
        innovation = self.moment - linalg.matvec(self.gram, known.mean)
        mean, factors = _solved(head, known, total, innovation)
        # |y − H m|² from sums: the one place where large numbers may cancel, in float64.
        misfit = self.square - ((2 * self.moment - linalg.matvec(self.gram, mean)) * mean).sum(-1)
        return _updated(known, mean, total, factors, self.total, misfit.clamp(min=0))


def _gaussian(head: Head) -> Gaussian:
    head = gaussian(head, "IntegratedNoise")
    if head.noise_source == "learned":
        raise SettingError(
            f"head {head.site!r} learns its noise, IntegratedNoise integrates over it; give the "
            "head a guess (noise_scale=1.0), or use Conjugate"
        )
    return head


def _solved(
    head: Gaussian, known: NormalInverseGamma, total: Tensor, innovation: Tensor
) -> tuple[Tensor, linalg.Factor]:
    factors = linalg.cholesky(total, what=f"posterior precision of head {head.site!r}")
    return known.mean + linalg.solve(factors.tril, innovation), factors


def _updated(
    known: NormalInverseGamma,
    mean: Tensor,
    total: Tensor,
    factors: linalg.Factor,
    count: Tensor,
    misfit: Tensor,
) -> NormalInverseGamma:
    move = mean - known.mean
    pull = (linalg.matvec(known.unit.precision_matrix, move) * move).sum(-1)
    return NormalInverseGamma(
        mean,
        total,
        known.shape_parameter + 0.5 * count,
        known.rate + 0.5 * (misfit + pull),
        precision_tril=factors.tril,
        jitter=factors.jitter,
    )
