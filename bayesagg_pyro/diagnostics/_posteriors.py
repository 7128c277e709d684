"""Whether to believe a posterior: its distance from another, its chains and its conditioning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from bayesagg_pyro import linalg
from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.errors import DtypeError, ShapeError
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Posterior
from bayesagg_pyro.posteriors._chains import effective_size, r_hat

#: Draws behind the covariance of a posterior that has no closed one.
_DRAWS = 4096


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
    _same_weights(p, q)
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
    _same_weights(p, q)
    first, second = _covariance_of(p, generator), _covariance_of(q, generator)
    root = _sqrt(first)
    cross = _sqrt(root @ second @ root)
    trace = (first + second - 2 * cross).diagonal(dim1=-2, dim2=-1).sum(-1)
    shift = (_mean_of(p) - _mean_of(q)).square().sum(-1)
    return (shift + trace.clamp(min=0)).sqrt()


@dataclass(frozen=True)
class AgainstReference:
    """A posterior compared with a reference, such as NUTS samples.

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
    """Compare a posterior with a reference that is taken to be exact.

    Args:
        posterior: what is to be judged.
        reference: what it should be, such as the draws of NUTS.
        generator: randomness for posteriors whose covariance needs draws.

    Raises:
        ShapeError: for posteriors of different heads.
        NumericalError: if the reference has no more samples than weights.
    """
    _same_weights(posterior, reference)
    own, truth = _covariance_of(posterior, generator), _covariance_of(reference, generator)
    deviations = [s.diagonal(dim1=-2, dim2=-1).sqrt() for s in (own, truth)]
    inverse = linalg.inverse_tril(linalg.cholesky(truth, what="reference covariance").tril)
    values = torch.linalg.eigvalsh(inverse @ own @ inverse.mT).clamp(min=0).sqrt()
    norm = torch.linalg.matrix_norm
    return AgainstReference(
        (_mean_of(posterior) - _mean_of(reference)) / deviations[1],
        deviations[0] / deviations[1],
        values[..., [0, -1]],
        norm(own - truth) / norm(truth),
    )


def _sqrt(matrix: Tensor) -> Tensor:
    """Symmetric square root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT
    return root


@dataclass(frozen=True)
class Conditioning:
    """Numerical health of a posterior.

    Attributes:
        condition: 2-norm condition number of the precision (of the sample covariance for samples),
            [tasks or 1].
        jitter: multiple of the diagonal that was added to factor it, [tasks or 1]; 0: none.
    """

    condition: Tensor
    jitter: Tensor

    def checks(self) -> list[Check]:
        """Condition number and jitter."""
        return [
            judge("condition", self.condition, ("task",)),
            judge("jitter", self.jitter, ("task",)),
        ]


def conditioning(posterior: Posterior) -> Conditioning:
    """Exact condition number of the precision, and the jitter that inference added."""
    if isinstance(posterior, GaussianFamily):
        matrix = posterior.precision_matrix.double()
    else:
        matrix = _covariance_of(posterior)
    values = torch.linalg.eigvalsh(matrix)
    low = values[..., 0].clamp(min=torch.finfo(values.dtype).tiny)
    info = posterior.info
    jitter = values.new_zeros(len(values)) if info is None else info.jitter
    return Conditioning(values[..., -1] / low, jitter)


@dataclass(frozen=True)
class Convergence:
    """R-hat and effective sample size of every weight.

    Attributes:
        rhat: rank-normalised split R-hat, the larger of that of the draws and of the folded draws
            (which differ in spread), [tasks, P].
        ess: bulk effective sample size over all chains, [tasks, P].
    """

    rhat: Tensor
    ess: Tensor

    def checks(self) -> list[Check]:
        """The worst weight of each."""
        axes = ("task", "weight")
        return [judge("rhat", self.rhat, axes), judge("ess", self.ess, axes)]


def convergence(samples: Tensor | Empirical) -> Convergence:
    """Convergence of chains (Vehtari et al., 2021, https://arxiv.org/abs/1903.08008).

    Args:
        samples: [chains, draws, tasks, P], or a posterior from NUTS or HMC, which knows its chains.

    Raises:
        DtypeError: for a posterior that is no set of draws.
        ShapeError: for other dimensions, or fewer than 4 draws per chain.
    """
    held = samples.by_chain if isinstance(samples, Empirical) else samples
    if not isinstance(held, Tensor):
        raise DtypeError(
            f"chains are a tensor or an Empirical posterior, not {type(held).__name__}; what other "
            "schemes tell of their convergence is in posterior.info"
        )
    if held.ndim != 4 or held.shape[1] < 4:
        raise ShapeError(
            f"samples must be [chains, draws of at least 4, tasks, weights], not {list(held.shape)}"
        )
    return Convergence(r_hat(held), effective_size(held))


def _mean_of(posterior: Posterior) -> Tensor:
    return posterior.mean.detach().double()


def _covariance_of(posterior: Posterior, generator: torch.Generator | None = None) -> Tensor:
    """[tasks, P, P]: exact for Gaussians and stored samples, else from 4,096 draws."""
    if isinstance(posterior, GaussianFamily):
        return posterior.covariance_matrix.double().expand(posterior.tasks, -1, -1)
    if isinstance(posterior, Empirical):
        draws = posterior.samples.double()
    else:
        draws = posterior.sample((_DRAWS,), generator=generator).double()
    centred = draws - draws.mean(0)
    return torch.einsum("stp,stq->tpq", centred, centred) / (len(draws) - 1)


def _same_weights(first: Posterior, second: Posterior) -> None:
    """Refuse posteriors over the weights of different heads.

    Raises:
        ShapeError: naming both shapes.
    """
    shapes = [[*p.batch_shape, *p.event_shape] for p in (first, second)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"posteriors over weights of shapes {shapes[0]} and {shapes[1]} (tasks, weights of one "
            "task) cannot be compared; take two of the same head"
        )
