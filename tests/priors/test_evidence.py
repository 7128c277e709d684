"""Prior variance and noise by the marginal likelihood."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from setups import bernoulli, categorical, close, gaussian, same
from torch import Tensor
from torch.distributions import MultivariateNormal

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors
from bayesagg_pyro._optimise import search
from bayesagg_pyro.inference._gaussian_evidence import GaussianEvidence

WHOLE = slice(0, 30)


def brute_force(data, base, gamma: Tensor, noise: Tensor) -> Tensor:
    """Log N(y; H m_b, τ² Ω⁻¹ + γ H S_b Hᵀ) of the observed examples, for weights of one."""
    h, targets = data.parsed(WHOLE)
    design = data.head.design_matrix(h)
    values = []
    for t in range(data.head.tasks):
        seen = targets.mask[:, t]
        x, y = design[seen], targets.values[seen, t]
        s = base.covariance_matrix.expand(data.head.tasks, -1, -1)[t]
        covariance = gamma[t] * x @ s @ x.T + noise[t] ** 2 * torch.eye(len(x)).double()
        values.append(MultivariateNormal(x @ base.mean[t], covariance).log_prob(y))
    return torch.stack(values)


def unweighted(rng, **settings):
    data = gaussian(rng, **settings)
    data.targets = data.targets[:2]
    return data


def sums_of(data) -> inference.GaussianStatistics:
    sums = inference.GaussianStatistics(data.head)
    sums.add(*data.parsed(WHOLE))
    return sums


@pytest.mark.parametrize("base", ["isotropic", "dense"])
def test_the_closed_form_is_the_density_of_the_targets(base, rng) -> None:
    data = unweighted(rng)
    prior = priors.isotropic(data.head, 0.7)
    if base == "dense":
        prior = priors.dense(data.head, torch.eye(5).double() + 0.4, mean=0.3)
    evidence = GaussianEvidence.of(sums_of(data), prior)
    for g, n in product([1e-4, 1.0, 50.0], [0.05, 1.0, 8.0]):
        gamma, noise = torch.full((3,), g).double(), torch.full((3,), n).double()
        found = evidence.log_evidence(gamma.log(), -2 * noise.log())
        close(found, brute_force(data, prior, gamma, noise), 1e-8)


def test_its_gradient_is_that_of_finite_differences(rng) -> None:
    evidence = GaussianEvidence.of(sums_of(gaussian(rng)), priors.isotropic(gaussian(rng).head, 1))
    for start in ([-3.0, 0.5, 2.0], [4.0, 0.0, -8.0]):
        at = torch.tensor(start).double()
        pair = (at.clone().requires_grad_(), (at.flip(0) / 2).requires_grad_())
        assert torch.autograd.gradcheck(evidence.log_evidence, pair)
        gradient = torch.autograd.grad(evidence.log_evidence(*pair).sum(), pair)
        step = 1e-5
        for i in range(2):
            up, down = ([p.detach().clone() for p in pair] for _ in range(2))
            up[i] += step
            down[i] -= step
            slope = (evidence.log_evidence(*up) - evidence.log_evidence(*down)) / (2 * step)
            close(gradient[i], slope, 1e-6)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("variance", ["task", "shared", None])
def test_the_optimum_has_no_slope_and_nothing_near_is_better(variance, learned, rng) -> None:
    data = gaussian(rng, n=60)
    if learned:
        data.head = heads.Gaussian(4, 3, bias=True, noise_scale="learned")
    before = data.head.noise_scale.clone()
    prior = priors.isotropic(data.head, 1.0)
    sums = sums_of(data)
    found = priors.Evidence(variance).posterior(sums, prior)
    assert torch.equal(data.head.noise_scale, before)  # it changes nothing
    gamma = found.info.prior_variance.log().requires_grad_()
    noise = found.info.noise_scale if learned else data.head.noise_scale
    beta = (-2 * noise.log()).requires_grad_()
    evidence = GaussianEvidence.of(sums, prior)
    value = evidence.log_evidence(gamma, beta)
    close(value, found.info.log_evidence)
    slopes = torch.autograd.grad(value.sum(), (gamma, beta))
    if variance == "task":
        assert slopes[0].abs().max() < 1e-5
    if variance == "shared":
        assert abs(slopes[0].sum()) < 1e-5
        assert gamma.detach().std() < 1e-12
    if learned:
        assert slopes[1].abs().max() < 1e-5
    grid = torch.linspace(-6, 6, 121).double()[:, None]
    around = evidence.log_evidence(gamma.detach() + grid * (variance is not None), beta.detach())
    best = around.sum(1).max() if variance == "shared" else around.amax(0)
    mine = value.sum() if variance == "shared" else value
    assert (mine >= best - 1e-9).all()
    # The posterior is Conjugate's with what was chosen.
    view = data.head.with_noise_scale(noise)
    direct = sums.for_head(view).posterior(priors.isotropic(data.head, found.info.prior_variance))
    same(found, direct)


def test_variance_and_noise_are_recovered(rng) -> None:
    """4,000 examples, 60 weights for each of three tasks with their own γ and τ."""
    variance, noise = torch.tensor([0.05, 1.0, 9.0]), torch.tensor([2.0, 0.3, 0.05])
    head = heads.Gaussian(60, 3, noise_scale="learned")
    h = torch.randn(4000, 60, generator=rng, dtype=torch.float64)
    w = variance.sqrt() * torch.randn(60, 3, generator=rng, dtype=torch.float64)
    y = h @ w + noise * torch.randn(4000, 3, generator=rng, dtype=torch.float64)
    mtl = ba.BayesAgg({"a": head}, prior=priors.FullData("learned"))
    for part in range(0, 4000, 500):
        rows = slice(part, part + 500)
        mtl.backward(h[rows].requires_grad_(), {"a": y[rows]})
    mtl.update_prior()
    info = mtl.priors()["a"].info
    assert ((info.noise_scale / noise - 1).abs() < 4 / math.sqrt(2 * 3940)).all()
    assert ((info.prior_variance / variance).log().abs() < 4 * math.sqrt(2 / 60)).all()
    close(head.noise_scale, info.noise_scale)
    # The step's posterior and the predictive see it.
    mtl.start_bayes()
    predictive = mtl.predictive(h[:5])["a"]
    assert ((predictive.stddev / noise - 1).abs() < 0.05).all()


@pytest.mark.parametrize("variance", ["task", "shared"])
def test_noise_that_is_left_out_is_the_unit_of_the_variance(variance, rng) -> None:
    """γ over τ² of the best pair; the posterior keeps noise 1, and so has the best pair's mean."""
    data = gaussian(rng, n=60)
    data.head = heads.Gaussian(4, 3, bias=True)
    sums, prior = sums_of(data), priors.isotropic(data.head, 0.7)
    found = priors.Evidence(variance).posterior(sums, prior)
    ratio, evidence = found.info.prior_scale, GaussianEvidence.of(sums, prior)

    def best(log_ratio: Tensor) -> Tensor:
        """By a search over the noise, with γ in its units."""
        low, high = (torch.full_like(log_ratio, end) for end in (-20.0, 20.0))
        return search(lambda beta: evidence.log_evidence(log_ratio - beta, beta), low, high)

    beta = best(ratio.log())
    close(evidence.precision_at_ratio(ratio.log()), beta, 1e-6)
    value = evidence.log_evidence(ratio.log() - beta, beta)
    close(found.info.log_evidence, value, 1e-9)
    for shift in (-0.05, 0.05):
        near = ratio.log() + shift
        beside = evidence.log_evidence(near - best(near), best(near))
        assert (value.sum() > beside.sum()) if variance == "shared" else (value > beside).all()
    plain = sums.posterior(priors.isotropic(data.head, 0.7 * ratio))
    same(found, plain)
    close(found.info.noise_scale, plain.info.noise_scale)  # of predictions: by cross-validation
    if variance == "task":
        learned = sums.for_head(data.head.with_noise_scale((-0.5 * beta).exp()))
        pair = priors.isotropic(data.head, 0.7 * ratio / beta.exp())
        close(learned.posterior(pair).mean, found.mean, 1e-8)


def test_learned_noise_is_learned_by_every_policy_with_data(rng) -> None:
    true = 0.2
    h = torch.randn(600, 4, generator=rng, dtype=torch.float64)
    w = torch.randn(4, 2, generator=rng, dtype=torch.float64)
    y = h @ w + true * torch.randn(600, 2, generator=rng, dtype=torch.float64)
    for policy in (
        priors.FullData(),
        priors.Constant(),
        priors.Running(2000),
        priors.Fresh(),
        priors.FullData(priors.Evidence("shared")),
    ):
        head = heads.Gaussian(4, 2, noise_scale="learned")
        mtl = ba.BayesAgg({"a": head}, prior=policy)
        mtl.backward(h.clone().requires_grad_(), {"a": y})
        batches = [(h, {"a": y})] if isinstance(policy, priors.Fresh) else None
        mtl.update_prior(batches)
        assert ((head.noise_scale / true - 1).abs() < 0.12).all(), policy
        view = head.with_noise_scale(head.noise_scale)
        base = priors.isotropic(head, 1.0)
        if policy.evidence is None:
            direct = inference.Conjugate().infer(view, h, y, base)
            same(mtl.posteriors()["a"], direct, 1e-9)


@pytest.mark.parametrize("make", [priors.Constant, priors.Fresh, priors.Running])
def test_every_policy_with_data_learns_a_variance(make, rng) -> None:
    """The same as `FullData` from the same examples; `Running` keeps it between updates."""
    h = torch.randn(60, 4, generator=rng, dtype=torch.float64)
    y = 3 * h @ torch.randn(4, 2, generator=rng, dtype=torch.float64)

    def trained(policy: priors.Policy) -> ba.BayesAgg:
        mtl = ba.BayesAgg({"a": heads.Gaussian(4, 2, standardise=False)}, prior=policy)
        mtl.backward(h.clone().requires_grad_(), {"a": y})
        mtl.update_prior([(h, {"a": y})] if make is priors.Fresh and policy is mine else None)
        return mtl

    mine = make(1e9, variance="learned") if make is priors.Running else make(variance="learned")
    found, expected = trained(mine), trained(priors.FullData("learned"))
    chosen = expected.posteriors()["a"].info.prior_variance
    assert chosen.max() > 2
    close(found.posteriors()["a"].info.prior_variance, chosen)
    same(found.posteriors()["a"], expected.posteriors()["a"])
    if make is priors.Running:
        found.start_bayes()
        found.backward(h.clone().requires_grad_(), {"a": y})
        left = found.priors()["a"].precision_matrix.diagonal(dim1=1, dim2=2)
        twice = 2 * h.square().sum(0) + 1 / chosen[:, None]
        close(left, twice, 1e-5)


def test_a_head_can_be_told_to_learn_its_noise(rng) -> None:
    head = heads.Gaussian(4, 3, noise_scale=0.5)
    assert head.learn_noise() is head
    assert head.noise_source == "learned"
    assert head.noise_scale.tolist() == [0.5, 0.5, 0.5]
    head.set_noise_scale([1.0, 2.0, 3.0])  # one for each task now
    assert heads.Gaussian(4, 3, noise_scale=[1.0, 2.0, 3.0]).learn_noise().noise_scale[2] == 3


def test_iterative_schemes_infer_with_the_noise_just_learned(rng) -> None:
    """The posterior put in force is at the new τ, which is 50 times the old one."""
    h = torch.randn(80, 3, generator=rng, dtype=torch.float64)
    y = 50 * torch.randn(80, 1, generator=rng, dtype=torch.float64)
    head = heads.Gaussian(3, noise_scale="learned")
    mtl = ba.BayesAgg(
        {"a": head},
        inference=inference.Variational(steps=300, refresh="epoch"),
        prior=priors.FullData(10.0),
        generator=torch.Generator().manual_seed(0),
    )
    mtl.collect(h, {"a": y})
    mtl.update_prior()
    assert 30 < head.noise_scale < 70
    exact = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 10.0))
    ratio = mtl.priors()["a"].variance / exact.variance
    assert ((ratio > 0.5) & (ratio < 2)).all()  # at τ = 1 it would be 1 / 400


def test_one_formula_serves_every_gaussian_posterior(rng) -> None:
    """Exact for Conjugate; for Laplace the usual determinant formula."""
    data = unweighted(rng)
    prior = priors.isotropic(data.head, 0.7)
    found = inference.Conjugate().infer(data.head, *data.rows(WHOLE), prior)
    value = inference.log_evidence(data.head, [data.parsed(WHOLE)], prior, found)
    one = torch.ones(3).double()
    close(value, brute_force(data, prior, one, data.head.noise_scale), 1e-8)

    binary = bernoulli(rng)
    prior = priors.isotropic(binary.head, 0.7)
    found = inference.Laplace().infer(binary.head, *binary.rows(WHOLE), prior)
    h, targets = binary.parsed(WHOLE)
    u = binary.head(h, found.mean)
    fit = binary.head.negative_log_prob(u, targets.values).sum(0)
    log_det = torch.linalg.slogdet(found.precision_matrix)[1]
    expected = -fit + prior.log_prob(found.mean) + 2.5 * math.log(2 * math.pi) - 0.5 * log_det
    close(inference.log_evidence(binary.head, [(h, targets)], prior, found), expected)


@pytest.mark.parametrize(("make", "variance"), [(bernoulli, "task"), (categorical, "shared")])
def test_laplace_evidence_is_at_its_maximum(make, variance, rng) -> None:
    data = make(rng, n=60)
    logits = 1.5 * data.features[:, :3] + 0.5 * torch.randn(60, 3, generator=rng).double()
    data.targets = (logits > 0).double() if make is bernoulli else logits.argmax(1)
    laplace = inference.Laplace(tolerance=1e-5)
    prior = priors.isotropic(data.head, 1.0)
    kept = laplace.statistics(data.head, inference.Storage())
    kept.add(*data.parsed(slice(0, 60)))
    found = priors.Evidence(variance, bounds=(1e-3, 1e2)).posterior(kept, prior)

    def value(factor: float) -> Tensor:
        scaled = priors.isotropic(data.head, found.info.prior_variance * factor)
        at = laplace.infer(data.head, *data.rows(slice(0, 60)), scaled)
        return inference.log_evidence(data.head, [data.parsed(slice(0, 60))], scaled, at)

    middle = value(1.0)
    close(found.info.log_evidence, middle, 1e-6)
    inside = (found.info.prior_variance > 2e-3) & (found.info.prior_variance < 50)
    assert inside.any()
    for factor in (0.7, 1.4):
        other = value(factor)
        if variance == "shared":
            assert middle.sum() > other.sum()
        else:
            assert (middle > other)[inside].all()


def test_a_task_without_data_keeps_prior_and_noise(rng) -> None:
    head = heads.Gaussian(4, 3, bias=True, noise_scale="learned")
    data = gaussian(rng)
    values, mask, weight = data.targets
    mask = mask.clone()
    mask[:, 1] = False
    tracker = priors.FullData("learned").start(head, inference.Conjugate())
    tracker.collect(data.features, head.parse_targets((values, mask, weight), 30))
    tracker.update()
    assert tracker.prior.info.prior_variance[1] == 1
    assert head.noise_scale[1] == 1
    assert (head.noise_scale[[0, 2]] != 1).all()
    assert torch.isfinite(tracker.prior.mean).all()


@pytest.mark.parametrize("variance", ["task", "shared"])
@pytest.mark.parametrize(
    ("kind", "lacks"),
    [*product(["learned", "left out"], ["labels", "weight", "spread"]), ("classes", "labels")],
)
def test_a_task_that_says_nothing_has_no_say(kind, variance, lacks, rng) -> None:
    """Its evidence is as good for every variance, or NaN for some."""
    h = torch.randn(60, 4, generator=rng, dtype=torch.float64)
    y = h @ torch.randn(4, 3, generator=rng, dtype=torch.float64)
    y = y + torch.randn(60, 3, generator=rng, dtype=torch.float64)
    y = (y > 0).double() if kind == "classes" else y
    seen = torch.ones(60, 3, dtype=torch.bool)
    seen[:, 2] = False
    targets = {"labels": (y, seen), "weight": (y, None, seen.double()), "spread": y * seen}[lacks]

    def chosen(tasks: int, data) -> Tensor:
        head: heads.Head = heads.Bernoulli(4, tasks, bias=False)
        if kind != "classes":
            noise = {"noise_scale": "learned"} if kind == "learned" else {"standardise": False}
            head = heads.Gaussian(4, tasks, **noise)
        policy = priors.FullData(priors.Evidence(variance))
        mtl = ba.BayesAgg({"a": head}, inference=inference.Laplace(), prior=policy)
        mtl.collect(h, {"a": data})
        mtl.update_prior()
        return mtl.posteriors()["a"].info.prior_scale

    found, alone = chosen(3, targets), chosen(2, y[:, :2])
    close(found[:2], alone, 1e-6)
    close(found[2], alone[0] if variance == "shared" else torch.ones(()).double())


def test_degenerate_data_stay_finite(rng) -> None:
    """Targets explained to the last digit, dead features, fewer rows than weights."""
    head = heads.Gaussian(6, 2, noise_scale="learned")
    h = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    h[:, 2:4] = 0
    y = h @ torch.randn(6, 2, generator=rng, dtype=torch.float64)
    y[:, 1] = 0
    tracker = priors.FullData("learned").start(head, inference.Conjugate())
    tracker.collect(h, head.parse_targets(y, 4))
    tracker.update()
    assert torch.isfinite(tracker.prior.mean).all()
    assert (head.noise_scale > 0).all()
    assert torch.isfinite(tracker.prior.info.log_evidence).all()


def test_search_finds_the_higher_of_two_peaks_and_ends() -> None:
    def bumps(x: Tensor) -> Tensor:
        return torch.exp(-((x - 2) ** 2)) + 1.5 * torch.exp(-((x + 3) ** 2))

    low, high = (
        torch.tensor([-10.0, 0.0, -20.0]).double(),
        torch.tensor([10.0, 10.0, -5.0]).double(),
    )
    close(search(bumps, low, high), torch.tensor([-3.0, 2.0, -5.0]).double(), 1e-6)


def test_refusals(rng) -> None:
    conjugate = inference.Conjugate()
    with pytest.raises(errors.DtypeError, match="IntegratedNoise has"):
        priors.FullData("learned").start(heads.Gaussian(4), inference.IntegratedNoise())
    with pytest.raises(errors.SettingError, match="variance must be"):
        priors.Evidence("each")
    with pytest.raises(errors.SettingError, match='"learned" or Evidence'):
        priors.FullData("each")
    for bounds in ((1.0, 0.1), (1.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (1.0, math.inf)):
        with pytest.raises(errors.SettingError, match="0 < low < high"):
            priors.Evidence(bounds=bounds)
    with pytest.raises(errors.SettingError, match="variance must be"):
        priors.Evidence(0.5)
    data = bernoulli(rng)
    streaming = priors.FullData("learned", storage=inference.Storage(streaming=True))
    with pytest.raises(errors.SettingError, match="evidence needs the examples"):
        streaming.start(data.head, inference.TaylorGGN())
    learned = heads.Gaussian(4, noise_scale="learned")
    for policy, scheme in (
        (priors.FullData(), inference.Delta()),
        (priors.FullData(storage=inference.Storage(streaming=True)), inference.TaylorGGN()),
        (priors.Running(half_life=30), inference.Laplace()),
    ):
        with pytest.raises(errors.SettingError, match="evidence needs the examples"):
            policy.start(learned, scheme)
    draws = posteriors.Empirical(torch.ones(2, 3, 5).double())
    kept = inference.Laplace().statistics(data.head, inference.Storage())
    with pytest.raises(errors.DtypeError, match="scales a Gaussian prior"):
        priors.Evidence().posterior(kept, draws)
    learns = heads.Gaussian(4, noise_scale="learned")
    with pytest.raises(errors.SettingError, match="which PreviousBatch keeps no data for"):
        priors.PreviousBatch().start(learns, conjugate)
    with pytest.raises(errors.SettingError, match='positive numbers or "learned"'):
        heads.Gaussian(4, noise_scale="guess")
    with pytest.raises(errors.ShapeError, match="one noise scale for all its tasks"):
        heads.Gaussian(4, 2).set_noise_scale([1.0, 2.0])
    with pytest.raises(errors.SettingError, match="positive and finite"):
        learns.set_noise_scale(-1.0)


def test_variances_that_cannot_be_computed_are_not_chosen(rng) -> None:
    class Fragile(inference.Laplace):
        """Laplace, which gives up under priors wider than 10."""

        def infer_chunks(self, head, source, prior):
            if prior.variance.max() > 10:
                raise errors.NumericalError("too vague")
            return super().infer_chunks(head, source, prior)

    head = heads.Bernoulli(2).double()
    features = torch.randn(40, 2, generator=rng, dtype=torch.float64)
    values = (torch.rand(40, 1, generator=rng) < torch.sigmoid(features[:, :1])).double()

    def chosen(scheme) -> torch.Tensor:
        kept = scheme.statistics(head, inference.Storage())
        kept.add(features, head.parse_targets(values, 40))
        found = priors.Evidence().posterior(kept, priors.isotropic(head, 1.0))
        return found.info.prior_variance

    torch.testing.assert_close(chosen(Fragile()), chosen(inference.Laplace()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("variance", ["task", "shared"])
def test_the_policy_chooses_as_by_hand(rng, variance) -> None:
    """Two tasks whose weights differ in size by 100; bounds that one of them would pass."""
    h = torch.randn(60, 3, generator=rng, dtype=torch.float64)
    y = h @ torch.tensor([[1.0, -1, 1], [100, 100, -100]], dtype=torch.float64).mT
    y = y + 0.1 * torch.randn(60, 2, generator=rng, dtype=torch.float64)
    head = heads.Gaussian(3, 2, noise_scale=0.1)
    bounds = (1e-2, 1e2)
    mtl = ba.BayesAgg({"a": head}, prior=priors.FullData(priors.Evidence(variance, bounds=bounds)))
    mtl.collect(h, {"a": y})
    mtl.update_prior()
    sums = inference.GaussianStatistics(head)
    sums.add(h, head.parse_targets(y, 60))
    evidence = priors.Evidence(variance, bounds=bounds)
    right = evidence.posterior(sums, priors.isotropic(head, 1.0))
    found = mtl.priors()["a"].info.prior_variance.expand(2)
    close(found, right.info.prior_variance.expand(2))
    assert (found[0] == found[1]) == (variance == "shared")
    assert found.max() == pytest.approx(100, rel=1e-2)


@pytest.mark.parametrize("make", [gaussian, bernoulli])
def test_a_temperature_tempers_the_posterior_and_not_the_evidence(make, rng) -> None:
    data = make(rng)
    scheme = inference.Conjugate() if make is gaussian else inference.TaylorGGN()
    base = priors.isotropic(data.head, 1.0)
    sums = scheme.statistics(data.head, inference.Storage())
    sums.add(*data.parsed(WHOLE))
    cold, hot = (priors.Evidence().posterior(sums, base, temperature=t) for t in (1.0, 4.0))
    close(hot.info.prior_variance, cold.info.prior_variance)
    chosen = torch.diag_embed((1 / hot.info.prior_variance)[:, None].expand_as(hot.mean))
    data_terms = [p.to_gaussian().precision_matrix - chosen for p in (cold, hot)]
    assert data_terms[0].abs().max() > 1
    close(4 * data_terms[1], data_terms[0], 1e-6)


def test_a_tracker_forgets_its_scale_with_a_state_that_has_none(rng) -> None:
    data = gaussian(rng)
    start = lambda: priors.FullData("learned").start(data.head, inference.Conjugate())  # noqa: E731
    fresh, used = start().state_dict(), start()
    used.collect(*data.parsed(WHOLE))
    used.accept(used.propose())
    assert any(name.endswith("scale") for name in used.state_dict())
    used.load_state_dict(fresh)
    assert used.state_dict().keys() == fresh.keys()
    assert used.prior is None


@pytest.mark.parametrize("peak", [0.0, 0.03, 0.96, 0.999, 1.0])
def test_the_search_finds_maxima_near_and_at_the_ends(peak) -> None:
    low, high = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found = search(lambda x: -((x - peak) ** 2), low, high, points=11)
    assert float(found) == pytest.approx(peak, abs=1e-6)
