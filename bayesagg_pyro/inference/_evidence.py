"""Prior variance and noise by the marginal likelihood (empirical Bayes, "type II")."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from bayesagg_pyro._optimise import search
from bayesagg_pyro._settings import numbers
from bayesagg_pyro.errors import DtypeError, NumericalError, SettingError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference._examples import Examples
from bayesagg_pyro.inference._gaussian_evidence import GaussianEvidence
from bayesagg_pyro.inference._gaussian_sums import GaussianStatistics
from bayesagg_pyro.inference._integrated_noise import IntegratedNoise
from bayesagg_pyro.inference._joint import log_likelihood
from bayesagg_pyro.inference._normal_equations import gaussian
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import DiagonalGaussian, GaussianFamily, Posterior
from bayesagg_pyro.posteriors import Gaussian as DenseGaussian
from bayesagg_pyro.targets import Targets

#: Grid and golden-section steps where each evaluation is an inference: log γ to about 1e-2.
_POINTS, _STEPS = 13, 14


def learns_noise(head: Head) -> TypeGuard[Gaussian]:
    """Whether the head's noise is learned, as with `heads.Gaussian(noise_scale="learned")`."""
    return isinstance(head, Gaussian) and head.noise_source == "learned"


def log_evidence(
    head: Head,
    examples: Iterable[tuple[Tensor, Targets]],
    prior: Posterior,
    posterior: Posterior,
) -> Tensor:
    """log p(y | H) ≈ log p(y | H, m) + log p(m) − log q(m) at the posterior mean m, [tasks].

    Exact for the conjugate posterior; Laplace's approximation for a Gaussian at the MAP.

    Args:
        head: the head.
        examples: features [B, d] and parsed targets [B, tasks], batch after batch.
        prior: p(w).
        posterior: q(w), which must have a density.

    Raises:
        DtypeError: for a posterior that is not Gaussian.
    """
    if not isinstance(posterior, GaussianFamily):
        raise _no_density(head, type(posterior))
    mean = posterior.mean
    total = prior.log_prob(mean) - posterior.log_prob(mean)
    for features, targets in examples:
        total = total + log_likelihood(head, mean, features.to(mean.dtype), targets)
    result: Tensor = total
    return result


class Evidence:
    """Learns the prior's variance, and the noise, by marginal likelihood ("type II").

    MacKay (1992), https://doi.org/10.1162/neco.1992.4.3.415.

    The covariance of the prior is multiplied by the γ that maximises log p(targets), for each task
    or for all; a head made with `noise_scale="learned"` gets its τ the same way. The `info` of the
    posterior reports `log_evidence`, `prior_variance` (γ times the prior's mean variance),
    `prior_scale` (γ) and `noise_scale`. Policies take it as their `variance`:
    `priors.FullData(priors.Evidence("shared"))`, or "learned" for the default.

    For Gaussian heads the evidence is exact, all γ and τ at the cost of one eigendecomposition; τ
    is not taken below 1e-6 of the targets' root mean square. Where a head's noise is left out, γ is
    in units of its variance: the posterior has the mean of the best pair of γ and τ, and noise 1.
    For other heads it is the approximation `log_evidence` with the posterior of the scheme, best
    with Laplace; about 30 inferences.

    Args:
        variance: "task" for one γ per task, "shared" for one for all, None to leave the prior.
        bounds: of γ. Where the data ask for more or less, γ is the bound.

    Raises:
        SettingError: for another `variance`, or bounds that are not 0 < low < high.
    """

    def __init__(
        self,
        variance: Literal["task", "shared"] | None = "task",
        *,
        bounds: tuple[float, float] = (1e-8, 1e8),
    ) -> None:
        if variance not in ("task", "shared", None):
            raise SettingError(f'variance must be "task", "shared" or None, not {variance!r}')
        given = numbers("bounds", bounds)
        if given.shape != (2,) or not 0 < given[0] < given[1] < math.inf:
            raise SettingError(f"bounds must be 0 < low < high, not {bounds!r}")
        self.variance = variance
        self.bounds = bounds

    def check(self, head: Head, scheme: Scheme) -> None:
        """Refuse a scheme whose posteriors have no evidence.

        Raises:
            DtypeError: naming the head and the remedy.
        """
        if isinstance(scheme, IntegratedNoise):
            raise DtypeError(
                f"head {head.site!r}: the evidence chooses a noise or takes the given one, which "
                "IntegratedNoise has integrated out; use Conjugate, or a variance that is a number"
            )
        if isinstance(head, Gaussian):
            gaussian(head, "the evidence")
            return
        kind = scheme.gives or GaussianFamily
        if self.variance and not issubclass(kind, GaussianFamily):
            raise _no_density(head, kind)

    @staticmethod
    def check_statistics(statistics: Statistics) -> None:
        """Refuse streamed sums of expansions, which hold no likelihood.

        Raises:
            SettingError: naming the remedy.
        """
        if not isinstance(statistics, GaussianStatistics):
            _examples(statistics)

    @torch.no_grad()
    def posterior(
        self,
        statistics: Statistics,
        prior: Posterior,
        *,
        temperature: float = 1.0,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """Choose γ and τ by all examples, then infer with the data tempered.

        Args:
            statistics: of a scheme, `scheme.statistics(head)`, filled with the data.
            prior: a Gaussian, whose covariance is multiplied.
            temperature: divides the log-likelihood in the posterior, not in the evidence.
            start: see `Scheme.infer`.
            generator: see `Scheme.infer`.

        Raises:
            DtypeError: if the prior is not Gaussian, or a Gaussian head no longer is.
            SettingError: if the statistics hold neither sums of a Gaussian head nor examples.
        """
        head = statistics.head

        def infer(of: Statistics, on: Posterior) -> Posterior:
            return of.posterior(on, start=start, generator=generator)

        if not isinstance(prior, GaussianFamily):
            raise DtypeError(
                f"head {head.site!r}: the evidence scales a Gaussian prior, not a "
                f"{type(prior).__name__}"
            )
        tempered = statistics if temperature == 1.0 else statistics.scaled(1 / temperature)
        if isinstance(head, Gaussian):
            head = gaussian(head, "the evidence")
            return self._of_gaussian(head, statistics, tempered, prior, infer)
        if self.variance is None:
            return infer(tempered, prior)

        def evidence(log_variance: Tensor) -> Tensor:
            values = []
            for point in log_variance:
                rescaled = scaled(prior, point.exp())
                try:
                    found = infer(statistics, rescaled)
                except NumericalError:  # a prior too vague to compute with is not the best one
                    values.append(torch.full_like(point, -torch.inf))
                    continue
                value = log_evidence(head, _examples(statistics), rescaled, found)
                values.append(torch.where(value.isfinite(), value, -torch.inf))
            return torch.stack(values)

        labelled, zero = statistics.labelled(), torch.zeros_like(prior.mean[:, 0])
        seen = torch.ones_like(zero, dtype=torch.bool) if labelled is None else labelled
        found = self._best(evidence, seen, zero, points=_POINTS, steps=_STEPS)
        chosen = scaled(prior, found.exp())
        posterior = infer(tempered, chosen)
        return _reported(posterior, chosen, found.exp(), evidence(found[None])[0], None)

    def _of_gaussian(
        self,
        head: Gaussian,
        statistics: Statistics,
        tempered: Statistics,
        prior: GaussianFamily,
        infer: Callable[[Statistics, Posterior], Posterior],
    ) -> Posterior:
        evidence = GaussianEvidence.of(_sums(head, statistics), prior)
        zero = torch.zeros_like(evidence.total)
        given = -2 * head.noise_scale.to(zero).log().expand_as(zero)
        learned = head.noise_source == "learned"

        # Posteriors have noise 1 there, so their prior's γ is a multiple of the noise's variance.
        relative = head.noise_source == "estimated" and self.variance is not None

        def precision(log_variance: Tensor) -> Tensor:
            if relative:
                return evidence.precision_at_ratio(log_variance)
            return evidence.best_precision(log_variance) if learned else given

        def at(log_variance: Tensor, beta: Tensor) -> Tensor:
            return evidence.log_evidence(log_variance - beta if relative else log_variance, beta)

        gamma = zero
        # A task without any data, or with zeros alone, keeps what it has.
        seen = (evidence.total > 0) & (evidence.size > 0)
        if self.variance is not None:
            points = 25 if learned or self.variance == "shared" else 40
            gamma = self._best(lambda g: at(g, precision(g)), seen, zero, points=points)
        chosen = prior if self.variance is None else scaled(prior, gamma.exp())
        beta = torch.where(seen, precision(gamma), given)
        noise = (-0.5 * beta).exp() if learned else None
        view = head if noise is None else head.with_noise_scale(noise)
        posterior = infer(tempered.for_head(view), chosen)
        return _reported(posterior, chosen, gamma.exp(), at(gamma, beta), noise)

    def _best(
        self, evidence: Callable[[Tensor], Tensor], seen: Tensor, like: Tensor, **search_how: int
    ) -> Tensor:
        """The log γ that maximises evidence [..., tasks], of each task or one for all, [tasks].

        Tasks that were not `seen`, [tasks] bool, have no say, and 0 unless others choose for them.
        """
        tasks, shared = len(like), self.variance == "shared"

        def objective(log_variance: Tensor) -> Tensor:
            if not shared:
                return evidence(log_variance)
            each = evidence(log_variance[..., None].expand(*log_variance.shape, tasks))
            return torch.where(seen, each, 0.0).sum(-1)

        shape = () if shared else (tasks,)
        low, high = (like.new_full(shape, math.log(bound)) for bound in self.bounds)
        found = search(objective, low, high, **search_how)
        return torch.where(seen.any() if shared else seen, found, 0.0).expand(tasks)

    def __repr__(self) -> str:
        return f"Evidence(variance={self.variance!r})"


def _sums(head: Gaussian, statistics: Statistics) -> GaussianStatistics:
    """Sums over the data, of whatever kind they are kept as."""
    if isinstance(statistics, GaussianStatistics):
        return statistics
    sums = GaussianStatistics(head)
    for features, targets in _examples(statistics):
        sums.add(features, targets)
    return sums


def _examples(statistics: Statistics) -> Iterable[tuple[Tensor, Targets]]:
    if isinstance(statistics, Examples):
        return statistics.chunks()
    raise SettingError(
        f"head {statistics.head.site!r}: the evidence needs the examples, which "
        f"{type(statistics).__name__} does not keep; use another scheme, "
        "Storage(streaming=False), a policy other than Running"
    )


def scaled(prior: GaussianFamily, factor: Tensor) -> GaussianFamily:
    """The same prior with each task's covariance multiplied by its factor, [tasks]."""
    if isinstance(prior, DiagonalGaussian):
        return DiagonalGaussian(
            prior.mean,
            prior.precision / factor[:, None],
            outputs_per_task=prior.outputs_per_task,
        )
    dense = prior.to_gaussian()
    return DenseGaussian(
        dense.mean,
        dense.precision_matrix / factor[:, None, None],
        outputs_per_task=prior.outputs_per_task,
    )


def _reported(
    posterior: Posterior,
    prior: GaussianFamily,
    scale: Tensor,
    evidence: Tensor,
    noise: Tensor | None,
) -> Posterior:
    known = {"log_evidence": evidence, "prior_scale": scale}
    known |= {} if noise is None else {"noise_scale": noise}
    return posterior.with_info(prior_variance=prior.variance.mean(-1), **known)


def _no_density(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: the evidence needs a posterior with a density, not {kind.__name__}; "
        "use Conjugate, Laplace or a Gaussian Variational"
    )
