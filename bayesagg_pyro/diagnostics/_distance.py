"""How far two posteriors are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from bayesagg_pyro import linalg
from bayesagg_pyro.diagnostics._moments import covariance_of, mean_of, same_weights
from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.posteriors import GaussianFamily, Posterior

__all__ = ["AgainstReference", "against_reference", "kl", "wasserstein2"]


def kl(
    p: Posterior, q: Posterior, *, draws: int = 4096, generator: torch.Generator | None = None
) -> Tensor:
    """KL(p ‖ q) in nats, [tasks].

    Exact for two Gaussians, as `torch.distributions.kl_divergence` is. Where both have a density,
    E_p[log p − log q] over draws from p. A posterior known through samples alone has no density to
    take a logarithm of: compare such ones by `wasserstein2` or `against_reference`.

    Args:
        p: the distribution that the expectation is over.
        q: the other one.
        draws: samples for pairs without a closed form.
        generator: randomness for those.

    Raises:
        ShapeError: for posteriors of different heads.
        DtypeError: if one has no density.
    """
    same_weights(p, q)
    if isinstance(p, GaussianFamily) and isinstance(q, GaussianFamily):
        return kl_divergence(p.to(dtype=torch.float64), q.to(dtype=torch.float64))
    weight = p.sample((draws,), generator=generator)
    try:
        ratio: Tensor = p.log_prob(weight) - q.log_prob(weight)
    except NotImplementedError as error:
        raise DtypeError(
            f"KL({type(p).__name__} ‖ {type(q).__name__}) needs densities, which samples do not "
            "have; compare by wasserstein2 or against_reference"
        ) from error
    return ratio.double().mean(0)


def wasserstein2(p: Posterior, q: Posterior, *, generator: torch.Generator | None = None) -> Tensor:
    """2-Wasserstein distance in units of the weights, [tasks].

    Exact for two Gaussians. Otherwise it is the distance of the Gaussians with the same moments,
    which is a lower bound for any two distributions (Gelbrich, 1990,
    https://doi.org/10.1002/mana.19901470121).

    Args:
        p: one posterior.
        q: the other.
        generator: randomness for posteriors whose covariance needs draws.

    Raises:
        ShapeError: for posteriors of different heads.
    """
    same_weights(p, q)
    first, second = covariance_of(p, generator), covariance_of(q, generator)
    root = _sqrt(first)
    cross = _sqrt(root @ second @ root)
    trace = (first + second - 2 * cross).diagonal(dim1=-2, dim2=-1).sum(-1)
    shift = (mean_of(p) - mean_of(q)).square().sum(-1)
    return (shift + trace.clamp(min=0)).sqrt()


@dataclass(frozen=True)
class AgainstReference:
    """A posterior beside a reference, such as NUTS samples.

    Attributes:
        z: (mean − reference mean) / reference standard deviation, [tasks, P].
        ratio: standard deviation over the reference's, [tasks, P].
        spread: square roots of the extreme eigenvalues of S relative to the reference's S, over all
            directions of the weights, [tasks, 2]: smallest, largest. From S samples of P weights
            even a perfect match reads 1 ± sqrt(P / S).
        covariance_error: ‖S − S_ref‖_F / ‖S_ref‖_F, [tasks].
    """

    z: Tensor
    ratio: Tensor
    spread: Tensor
    covariance_error: Tensor

    def checks(self) -> list[Check]:
        """The largest z-score and the largest factor between standard deviations."""
        factor = torch.maximum(self.ratio, 1 / self.ratio)
        return [
            judge("z_score", self.z.abs(), ("task", "weight")),
            judge("covariance_ratio", factor, ("task", "weight")),
        ]


def against_reference(
    posterior: Posterior, reference: Posterior, *, generator: torch.Generator | None = None
) -> AgainstReference:
    """Compare a posterior with one that is taken to be right.

    Args:
        posterior: what is to be judged.
        reference: what it should be, such as the draws of NUTS.
        generator: randomness for posteriors whose covariance needs draws.

    Raises:
        ShapeError: for posteriors of different heads.
        NumericalError: if the reference has no more samples than weights.
    """
    same_weights(posterior, reference)
    own, truth = covariance_of(posterior, generator), covariance_of(reference, generator)
    deviations = [s.diagonal(dim1=-2, dim2=-1).sqrt() for s in (own, truth)]
    inverse = linalg.inverse_tril(linalg.cholesky(truth, what="reference covariance").tril)
    values = torch.linalg.eigvalsh(inverse @ own @ inverse.mT).clamp(min=0).sqrt()
    norm = torch.linalg.matrix_norm
    return AgainstReference(
        (mean_of(posterior) - mean_of(reference)) / deviations[1],
        deviations[0] / deviations[1],
        values[..., [0, -1]],
        norm(own - truth) / norm(truth),
    )


def _sqrt(matrix: Tensor) -> Tensor:
    """Symmetric square root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT
    return root
