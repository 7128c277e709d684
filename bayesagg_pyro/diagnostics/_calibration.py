"""Simulation-based calibration: does a scheme give the posterior of its own model?

Talts et al. (2018), https://arxiv.org/abs/1804.06788.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._modes import seeded
from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics._thresholds import Check, judge, tail
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import FromPyro, Head
from bayesagg_pyro.inference import IntegratedNoise, Scheme
from bayesagg_pyro.posteriors import Empirical, NormalInverseGamma, Posterior
from bayesagg_pyro.predictive._gaussian import drawn_weights
from bayesagg_pyro.targets import Targets

#: Central credible intervals whose coverage is looked at.
LEVELS = (0.5, 0.8, 0.95)
_NULL = 4000


@dataclass(frozen=True)
class Calibration:
    """Ranks of true weights among posterior draws, which are uniform for an exact posterior.

    Attributes:
        ranks: number of draws below the truth, 0 … draws, [replications, P].
        draws: L, posterior draws per replication.
        z: (truth − posterior mean) / posterior standard deviation, [replications, P].
    """

    ranks: Tensor
    draws: int
    z: Tensor

    @property
    def bins(self) -> int:
        """Bins of the histogram: about ten ranks expected in each, at most 20."""
        return max(2, min(20, len(self.ranks) // 10, self.draws + 1))

    def histogram(self) -> Tensor:
        """Counts of ranks, [bins, P]."""
        index = (self.ranks * self.bins) // (self.draws + 1)
        one_hot = torch.nn.functional.one_hot(index.long(), self.bins)
        return one_hot.sum(0).mT

    def ecdf_difference(self) -> Tensor:
        """Share of ranks at most r, less its expectation, [draws + 1, P]."""
        levels = torch.arange(self.draws + 1)
        below = (self.ranks <= levels[:, None, None]).double().mean(1)
        expected = (levels.double() + 1) / (self.draws + 1)
        return below - expected[:, None]

    def ecdf_band(self, level: float = 0.95) -> float:
        """Half-width of the band that holds a whole true difference curve with this probability."""
        return float(_null_distances(len(self.ranks), self.draws).quantile(level))

    @property
    def chi_square(self) -> Tensor:
        """p-value of equal counts in all bins, [P]."""
        return _chi_square(self.histogram(), self._expected())

    @property
    def ecdf(self) -> Tensor:
        """p-value of the largest distance between the ECDF and the diagonal, [P].

        By 4,000 simulations of uniform ranks; it is at least 1/4,001.
        """
        null = _null_distances(len(self.ranks), self.draws)
        found = self.ecdf_difference().abs().amax(0)
        beyond = (null[:, None] >= found - 1e-12).sum(0)
        return (beyond + 1) / (len(null) + 1)

    @property
    def p_value(self) -> Tensor:
        """p-value of all tests of all weights together (Bonferroni), []."""
        every = torch.cat([self.chi_square, self.ecdf.double()])
        return (every.min() * len(every)).clamp(max=1.0)

    def coverage(self) -> dict[float, float]:
        """{nominal: actual} share of truths in central credible intervals, all weights together."""
        position = (self.ranks.double() + 0.5) / (self.draws + 1)
        return {
            level: float(((position - 0.5).abs() <= level / 2).double().mean()) for level in LEVELS
        }

    def coverage_error(self) -> Tensor:
        """Coverage off its nominal value in binomial standard errors, [levels, P].

        The nominal value is that of ranks, which come in steps of 1 / (draws + 1).
        """
        ranks = torch.arange(self.draws + 1, dtype=torch.float64)
        rows = []
        for level in LEVELS:
            inside = ((ranks + 0.5) / (self.draws + 1) - 0.5).abs() <= level / 2
            nominal = float(inside.double().mean())
            actual = inside[self.ranks.long()].double().mean(0)
            error = math.sqrt(nominal * (1 - nominal) / len(self.ranks))
            # Few draws cannot leave such an interval, which then says nothing.
            rows.append((actual - nominal) / error if error > 0 else torch.zeros_like(actual))
        return torch.stack(rows)

    def checks(self) -> list[Check]:
        """Uniformity of ranks, and coverage."""
        errors = self.coverage_error().abs()
        found = judge("coverage", errors, ("interval", "weight"))
        chance = tail(0.05 / 2 / errors.numel())  # Bonferroni: many weights scatter past the limit
        return [
            judge("sbc", self.p_value),
            replace(found, alarm=found.alarm and not found.value <= chance),
        ]

    def _expected(self) -> Tensor:
        """Ranks expected in each bin, which hold unequal numbers where bins do not divide."""
        index = torch.arange(self.draws + 1) * self.bins // (self.draws + 1)
        share = torch.bincount(index, minlength=self.bins).double() / (self.draws + 1)
        return share * len(self.ranks)


def simulate_calibration(
    head: Head,
    scheme: Scheme,
    prior: Posterior,
    features: Tensor,
    *,
    replications: int = 200,
    draws: int = 99,
    point: Callable[[Head, Targets], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Simulation-based calibration: ranks of true weights among draws from their posteriors.

    A head with T tasks makes T replications at once: its tasks are independent given the features.

    Args:
        head: the head; it is not changed.
        scheme: what is to be tested.
        prior: of the truth and of the inference, batch shape [tasks]. Under `IntegratedNoise` the
            noise of the truth is drawn with it.
        features: of every replication, [N, d].
        replications: at least that many; rounded up to whole passes over the head's tasks.
        draws: L, of each posterior. Stored samples are thinned to so many; they must be worth them.
        point: the weights [tasks, P] that schemes such as TaylorGGN expand around, given the head
            and the targets; the prior's mean if None.
        generator: randomness.

    Raises:
        SettingError: for fewer than 20 replications or 9 draws, a posterior with fewer samples than
            draws, or a head whose tasks share weights.
    """
    integers(20, replications=replications)
    integers(9, draws=draws)
    if head.blocks != head.tasks:
        raise SettingError(
            f"head {head.site!r}: its tasks share their weights, so they are no replications; "
            "calibrate a head of one task"
        )
    generator = generator or torch.Generator(features.device).manual_seed(0)
    if isinstance(scheme, IntegratedNoise):
        prior = scheme.known(head, prior)[1]
    passes = -(-replications // head.tasks)
    twin = copy.deepcopy(head)
    ranks, scores = [], []
    for _ in range(passes):
        law: Any = twin
        if isinstance(prior, NormalInverseGamma):  # whose weights go with a noise
            drawn: Any = drawn_weights(twin, prior, 1, generator)
            (truth,), (noise,) = drawn
            law = law.with_noise_scale(noise)
        else:
            truth = prior.sample(generator=generator)
        targets = _targets(law, truth, features, generator)
        at = prior.mean if point is None else point(twin, targets)
        with torch.no_grad():
            twin.weight.copy_(at.reshape(twin.weight.shape))
        posterior = scheme.infer(twin, features, targets, prior, generator=generator)
        samples = _draws(posterior, draws, generator)
        ranks.append((samples < truth).sum(0))
        scores.append((truth - posterior.mean) / posterior.variance.sqrt())
    return Calibration(torch.cat(ranks).cpu(), draws, torch.cat(scores).double().cpu())


def uniformity(values: Tensor, bins: int = 20) -> tuple[Tensor, Tensor]:
    """Test whether values in [0, 1] are uniform.

    Args:
        values: [N, ...].
        bins: of the chi-square test.

    Returns:
        p-values of the chi-square and the Kolmogorov-Smirnov test, [...] each.
    """
    values = values.double()
    index = (values * bins).long().clamp(0, bins - 1)
    histogram = torch.nn.functional.one_hot(index, bins).sum(0)
    histogram = histogram.movedim(-1, 0)
    expected = torch.full((bins,), len(values) / bins, dtype=values.dtype, device=values.device)
    ordered = values.sort(0).values
    count = len(values)
    above = torch.arange(1, count + 1, dtype=values.dtype, device=values.device) / count
    above = above.reshape(-1, *[1] * (values.ndim - 1))
    distance = torch.maximum((above - ordered).amax(0), (ordered - above + 1 / count).amax(0))
    return _chi_square(histogram, expected), _kolmogorov(distance, count)


def _targets(head: Head, truth: Tensor, features: Tensor, generator: torch.Generator) -> Targets:
    with seeded(generator, features.device, 2**31), torch.no_grad():
        if isinstance(head, FromPyro):  # whose likelihood takes more than outputs
            values = head.likelihood_at(features, truth[0]).sample()
        else:
            values = head.likelihood(head(features.to(truth.dtype), truth)).sample()
    return head.parse_targets(head.in_target_units(values), len(features))


def _draws(posterior: Posterior, draws: int, generator: torch.Generator) -> Tensor:
    if not isinstance(posterior, Empirical):
        return posterior.sample((draws,), generator=generator)
    held = len(posterior.samples)
    if held < draws:
        raise SettingError(
            f"the scheme gives {held} samples, fewer than the {draws} draws that ranks are taken "
            "among; sample more, or lower draws"
        )
    index = torch.linspace(0, held - 1, draws).round().long()
    return posterior.samples[index.to(posterior.samples.device)]


def _chi_square(counts: Tensor, expected: Tensor) -> Tensor:
    expected = expected.reshape(-1, *[1] * (counts.ndim - 1))
    statistic = ((counts - expected).square() / expected).sum(0)
    freedom = torch.full_like(statistic, (len(counts) - 1) / 2)
    p: Tensor = torch.special.gammaincc(freedom, statistic / 2)
    return p


def _null_distances(count: int, draws: int) -> Tensor:
    """Largest ECDF distances of so many truly uniform ranks, [simulations]; always the same."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randint(draws + 1, (_NULL, count), generator=generator)
    counts = torch.zeros(_NULL, draws + 1).scatter_add_(
        1, ranks, torch.ones(1).expand(_NULL, count)
    )
    below = counts.cumsum(1).double() / count
    expected = (torch.arange(draws + 1, dtype=torch.float64) + 1) / (draws + 1)
    return (below - expected).abs().amax(1)


def _kolmogorov(distance: Tensor, count: int) -> Tensor:
    """Asymptotic p-value of the Kolmogorov-Smirnov distance, with Stephens' correction."""
    root = math.sqrt(count)
    scaled = distance * (root + 0.12 + 0.11 / root)
    k = torch.arange(1, 101, dtype=distance.dtype, device=distance.device)
    k = k.reshape(-1, *[1] * distance.ndim)
    terms = (-1) ** (k - 1) * torch.exp(-2 * k.square() * scaled.square())
    # The series is useless where the distance is tiny, and the p-value 1.
    return torch.where(scaled < 0.2, 1.0, (2 * terms.sum(0)).clamp(0, 1))
