"""Simulation-based calibration and calibration of predictions."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from bayesagg_pyro import diagnostics, heads, inference, posteriors, priors
from bayesagg_pyro.diagnostics import Calibration
from bayesagg_pyro.errors import NonFiniteError, SettingError, ShapeError


def alarms(found: Any) -> dict[str, bool]:
    return {check.key: check.alarm for check in found.checks()}


def simulate(
    scheme: inference.Scheme, head: heads.Head, variance: float, n: int = 200
) -> Calibration:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    return diagnostics.simulate_calibration(
        head, scheme, priors.isotropic(head, variance), x, replications=n, generator=rng
    )


class Narrow(inference.Conjugate):
    """Believes in half the noise there is."""

    def infer(self, *arguments: Any, **how: Any) -> posteriors.Posterior:
        exact: Any = super().infer(*arguments, **how)
        return posteriors.Gaussian(exact.mean, 4 * exact.precision_matrix)


class NarrowModel(inference.Laplace):
    """Believes in half the standard deviation that there is."""

    def infer(self, *arguments: Any, **options: Any) -> posteriors.Posterior:
        exact: Any = super().infer(*arguments, **options)
        return posteriors.Gaussian(exact.mean, 4 * exact.precision_matrix)


class Shifted(inference.Conjugate):
    def infer(self, *arguments: Any, **how: Any) -> posteriors.Posterior:
        exact: Any = super().infer(*arguments, **how)
        return exact.with_mean(exact.mean + 0.5 * exact.variance.sqrt())


class Sampled(inference.Conjugate):
    """As exact, known through samples."""

    def infer(self, *arguments: Any, **how: Any) -> posteriors.Posterior:
        rng = torch.Generator().manual_seed(9)
        return posteriors.Empirical(super().infer(*arguments, **how).sample((500,), generator=rng))


def regression(tasks: int = 200) -> heads.Gaussian:
    return heads.Gaussian(3, tasks=tasks, noise_scale=0.5).double()


def test_conjugate_is_calibrated() -> None:
    found = simulate(inference.Conjugate(), regression(), 1.0)
    assert found.ranks.shape == (200, 3)
    assert alarms(found) == {"sbc": False, "coverage": False}
    assert found.coverage()[0.8] == pytest.approx(0.8, abs=0.06)
    assert float(found.ecdf_difference().abs().max()) < found.ecdf_band(0.999)
    assert found.z.square().mean() == pytest.approx(1, abs=0.15)
    assert int(found.histogram().sum()) == 600


def test_its_figure_shows_the_counts_the_curves_and_the_coverage() -> None:
    pytest.importorskip("matplotlib")
    g = torch.Generator().manual_seed(0)
    found = Calibration(torch.randint(0, 100, (60, 2), generator=g), 99, torch.randn(60, 2))
    figure = diagnostics.plot_calibration(found, "a title")
    bars, curves, coverage = figure.axes[:3]
    heights = [bar.get_height() for bar in bars.patches[: found.bins]]
    assert heights == found.histogram().sum(1).tolist()
    for line, expected in zip(curves.lines, found.ecdf_difference().unbind(1), strict=True):
        assert line.get_ydata() == pytest.approx(expected.tolist())
    stated, actual = coverage.lines[-1].get_data()
    assert dict(zip(stated, actual, strict=True)) == pytest.approx(found.coverage())
    assert figure.get_suptitle() == "a title"


def test_calibration_from_samples_and_from_one_task_at_a_time() -> None:
    assert alarms(simulate(Sampled(), regression(), 1.0))["sbc"] is False
    single = simulate(inference.Conjugate(), regression(1), 1.0, n=20)  # the smoke test
    assert single.ranks.shape == (20, 3)
    assert alarms(single) == {"sbc": False, "coverage": False}


def test_schemes_that_expand_around_weights_do_so_at_the_point_that_is_asked_for() -> None:
    seen: list[torch.Tensor] = []

    class Watched(inference.TaylorGGN):
        def infer(self, head: heads.Head, *arguments: Any, **how: Any) -> posteriors.Posterior:
            seen.append(head.point().detach().clone())
            return super().infer(head, *arguments, **how)

    head = heads.Bernoulli(3, tasks=20).double()
    before, prior = head.weight.detach().clone(), priors.isotropic(head, 1.0)
    x = torch.randn(20, 3, dtype=torch.float64)
    for point, wanted in ((None, 0.0), (lambda twin, _: twin.point() * 0 + 0.5, 0.5)):
        diagnostics.simulate_calibration(head, Watched(), prior, x, replications=20, point=point)
        assert (seen.pop() == wanted).all()
    assert torch.equal(head.weight, before)


def test_a_head_with_units_of_its_own_is_calibrated_in_them() -> None:
    head = heads.Gaussian(3, tasks=20).double()
    assert head.target_loc is not None
    assert head.target_scale is not None
    head.take_units(head.target_loc + 1000, head.target_scale + 20)
    found = simulate(inference.Conjugate(), head, 1.0)
    plain = simulate(inference.Conjugate(), heads.Gaussian(3, tasks=20).double(), 1.0)
    torch.testing.assert_close(found.z, plain.z)
    assert alarms(found) == {"sbc": False, "coverage": False}


def test_one_generator_draws_all() -> None:
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append(simulate(inference.Ensemble(members=99), regression(20), 1.0, n=20))
    assert torch.equal(found[0].ranks, found[1].ranks)


def test_smoke_of_a_sampler() -> None:
    head, rng = regression(20), torch.Generator().manual_seed(3)
    found = diagnostics.simulate_calibration(
        head,
        inference.NUTS(76, warmup=40, chains=1, generator=rng),
        priors.isotropic(head, 1.0),
        torch.randn(20, 3, generator=rng, dtype=torch.float64),
        replications=20,
        draws=19,
        generator=rng,
    )
    assert alarms(found) == {"sbc": False, "coverage": False}


@pytest.mark.parametrize("scheme", [Narrow(), Shifted()])
def test_wrong_posteriors_alarm(scheme: inference.Scheme) -> None:
    assert alarms(simulate(scheme, regression(), 1.0))["sbc"]


def test_a_narrow_posterior_covers_too_little() -> None:
    found = simulate(Narrow(), regression(), 1.0)
    assert alarms(found)["coverage"]
    assert found.coverage()[0.8] < 0.6
    bins = found.histogram().sum(1)
    assert bins[0] + bins[-1] > 3 * (bins[9] + bins[10])  # the ∪ shape


def test_one_newton_step_fails_where_laplace_still_holds() -> None:
    head = heads.Bernoulli(3, tasks=200, bias=False).double()
    taylor = simulate(inference.TaylorGGN(), head, 4.0)
    laplace = simulate(inference.Laplace(), head, 4.0)
    assert alarms(taylor)["sbc"]
    assert float(taylor.p_value) < 1e-4 * float(laplace.p_value)


@pytest.mark.parametrize("given", ["base", "posterior"])
def test_integrated_noise_is_drawn_with_the_truth(given: str) -> None:
    head, scheme = (
        heads.Gaussian(3, tasks=2000, noise_scale=0.3).double(),
        inference.IntegratedNoise(2.1),
    )
    prior: posteriors.Posterior = priors.isotropic(head, 1.0)
    x = torch.eye(3, dtype=torch.float64)[:2]
    if given == "posterior":
        prior = scheme.known(head, prior)[1]
    found = diagnostics.simulate_calibration(head, scheme, prior, x, replications=2000)
    assert alarms(found) == {"sbc": False, "coverage": False}


def test_the_head_is_left_alone() -> None:
    head = regression(20)
    before = head.weight.clone()
    state = torch.random.get_rng_state()
    first, second = (simulate(inference.Conjugate(), head, 1.0, n=20) for _ in range(2))
    assert torch.equal(first.ranks, second.ranks)
    assert torch.equal(head.weight, before)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_bad_settings() -> None:
    with pytest.raises(SettingError, match="replications must be an integer of at least 20"):
        simulate(inference.Conjugate(), regression(2), 1.0, n=5)
    head = regression(20)
    prior, x = priors.isotropic(head, 1.0), torch.randn(20, 3, dtype=torch.float64)
    with pytest.raises(SettingError, match="gives 500 samples, fewer than the 999 draws"):
        diagnostics.simulate_calibration(head, Sampled(), prior, x, draws=999)


def test_p_values_of_uniformity_are_uniform(rng: torch.Generator) -> None:
    values = torch.rand(300, 2000, generator=rng, dtype=torch.float64)
    for p in diagnostics.uniformity(values):
        assert p.shape == (2000,)
        for level in (0.05, 0.5, 0.9):
            assert float((p < level).double().mean()) == pytest.approx(level, abs=0.035)
    for p in diagnostics.uniformity(values.square()):
        assert float(p.max()) < 1e-3


def test_kolmogorov_is_scipys(rng: torch.Generator) -> None:
    stats: Any = pytest.importorskip("scipy.stats")
    values = torch.rand(500, generator=rng, dtype=torch.float64) ** 1.05
    expected = stats.kstest(values.numpy(), "uniform", method="asymp").pvalue
    assert float(diagnostics.uniformity(values)[1]) == pytest.approx(expected, rel=0.1)


# -- predictions -----------------------------------------------------------------------------------


def binary(rng: torch.Generator, sharpen: float) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(3000, 2, generator=rng)
    labels = (torch.rand(3000, 2, generator=rng) < logits.sigmoid()).float()
    return (sharpen * logits).sigmoid(), labels


@pytest.mark.parametrize(("sharpen", "alarm"), [(1.0, False), (3.0, True)])
def test_reliability(rng: torch.Generator, sharpen: float, alarm: bool) -> None:
    probabilities, labels = binary(rng, sharpen)
    found = diagnostics.reliability(probabilities, labels)
    assert alarms(found) == {"ece": alarm}
    functional: Any = pytest.importorskip("torchmetrics.functional.classification")
    # Its binary version bins by probability, as ours.
    expected = functional.binary_calibration_error(
        probabilities.flatten(), labels.flatten().int(), n_bins=15, norm="l1"
    )
    assert float(found.ece) == pytest.approx(float(expected), abs=1e-5)
    assert float(diagnostics.brier(probabilities, labels)) == pytest.approx(
        float((probabilities - labels).square().mean())
    )


def test_reliability_of_classes(rng: torch.Generator) -> None:
    logits = torch.randn(2000, 4, generator=rng)
    labels = torch.distributions.Categorical(logits=logits).probs.multinomial(1, generator=rng)[
        :, 0
    ]
    probabilities = (2 * logits).softmax(-1)
    found = diagnostics.reliability(probabilities, labels)
    functional: Any = pytest.importorskip("torchmetrics.functional.classification")
    expected = functional.multiclass_calibration_error(
        probabilities, labels, num_classes=4, n_bins=15, norm="l1"
    )
    assert float(found.ece) == pytest.approx(float(expected), abs=1e-5)
    one_hot = torch.nn.functional.one_hot(labels, 4)
    assert float(diagnostics.brier(probabilities, labels)) == pytest.approx(
        float((probabilities - one_hot).square().sum(-1).mean())
    )
    shuffled = diagnostics.reliability(probabilities, labels[torch.randperm(2000, generator=rng)])
    assert alarms(shuffled) == {"ece": True}


def test_what_is_not_observed_does_not_count(rng: torch.Generator) -> None:
    probabilities, labels = binary(rng, 1.0)
    seen = torch.rand(labels.shape, generator=rng) < 0.5
    garbage = torch.where(seen, labels, 1 - labels)
    for measure in (diagnostics.brier, lambda *a, **k: diagnostics.reliability(*a, **k).ece):
        assert float(measure(probabilities, garbage, observed=seen)) == pytest.approx(
            float(measure(probabilities[seen], labels[seen]))
        )
    nothing = torch.zeros_like(seen)
    with pytest.raises(ShapeError, match="no target is observed"):
        diagnostics.reliability(probabilities, labels, observed=nothing)
    with pytest.raises(ShapeError, match="no target is observed"):
        diagnostics.brier(probabilities, labels, observed=nothing)
    with pytest.raises(ShapeError, match="do not fit"):
        diagnostics.reliability(probabilities, labels[:5])


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.float64])
def test_masks_of_zeros_and_ones_are_masks(rng: torch.Generator, dtype: torch.dtype) -> None:
    """Not indices of the first two examples."""
    p, labels = binary(rng, 1.0)
    law, y = torch.distributions.Normal(torch.zeros(3000, 2), 1.0), torch.randn(3000, 2)
    for seen in (torch.rand(3000, 2, generator=rng) < 0.5, torch.rand(3000, generator=rng) < 0.5):
        mask, all_tasks = seen.to(dtype), seen if seen.ndim == 2 else seen[:, None].expand(-1, 2)
        brier = float(diagnostics.brier(p, labels, observed=mask))
        assert brier == pytest.approx(float((p - labels).square()[all_tasks].mean()))
        nats = float(diagnostics.negative_log_density(law, y, observed=mask))
        assert nats == pytest.approx(float(-law.log_prob(y)[all_tasks].mean()))
        found = diagnostics.pit(law, y, observed=mask)
        assert torch.equal(found.values[1], law.cdf(y)[all_tasks[:, 1], 1])
        uncertain = diagnostics.epistemic_against_error(p, labels - p, observed=mask)
        assert uncertain.count == int(all_tasks.sum())
        assert diagnostics.reliability(p, labels, observed=mask).count.sum() == uncertain.count
    for wrong, error in ((2 * seen.to(dtype), SettingError), (mask[:-1], ShapeError)):
        for call in (
            lambda mask: diagnostics.brier(p, labels, observed=mask),
            lambda mask: diagnostics.reliability(p, labels, observed=mask),
            lambda mask: diagnostics.negative_log_density(law, y, observed=mask),
            lambda mask: diagnostics.pit(law, y, observed=mask),
            lambda mask: diagnostics.epistemic_against_error(p, p, observed=mask),
        ):
            with pytest.raises(error, match="observed must"):
                call(wrong)


def test_a_pyro_model_is_calibrated(rng: torch.Generator) -> None:
    """Linear and Gaussian, for which Laplace's approximation is exact."""

    def model(features: Tensor, targets: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.ones(3), 2.0).to_event(1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", dist.Normal(features @ w, 0.5), obs=targets)

    head = heads.FromPyro(model, 3)
    found = simulate(inference.Laplace(max_steps=3), head, 1.0, n=100)
    assert not any(alarms(found).values())
    narrow = simulate(NarrowModel(max_steps=3), head, 1.0, n=100)
    assert any(alarms(narrow).values())


def test_numbers_that_are_none_are_no_silence(rng: torch.Generator) -> None:
    """NaN would be a correlation of any size, or a p-value that raises no alarm."""
    p, labels = binary(rng, 1.0)
    holes = torch.where(torch.rand(3000, 2, generator=rng) < 0.1, torch.nan, labels)
    law = torch.distributions.Normal(torch.zeros(3000, 2), 1.0, validate_args=False)
    seen = ~holes.isnan()
    calls: tuple[Any, ...] = (
        lambda **k: diagnostics.brier(p, holes, **k),
        lambda **k: diagnostics.reliability(p, holes, **k).ece,
        lambda **k: diagnostics.reliability(holes, labels, **k).ece,
        lambda **k: diagnostics.negative_log_density(law, holes, **k),
        lambda **k: diagnostics.pit(law, holes, **k).p_values,
        lambda **k: diagnostics.epistemic_against_error(p, holes - p, **k).correlation,
        lambda **k: diagnostics.epistemic_against_error(holes, p, **k).correlation,
    )
    for call in calls:
        assert call(observed=seen).isfinite().all()
        with pytest.raises(NonFiniteError, match="give observed="):
            call()
    with pytest.raises(SettingError, match="groups"):
        diagnostics.epistemic_against_error(p, p, groups=0)


def test_labels_that_are_no_class(rng: torch.Generator) -> None:
    p = torch.randn(50, 1, 4, generator=rng).softmax(-1)
    labels = torch.randint(4, (50,), generator=rng)
    seen = torch.rand(50, generator=rng) < 0.7
    ignored = torch.where(seen, labels, -100)
    for measure in (diagnostics.brier, lambda *a, **k: diagnostics.reliability(*a, **k).ece):
        assert torch.equal(measure(p, ignored, observed=seen), measure(p[seen], labels[seen]))
        for wrong in (ignored, labels + 4):
            with pytest.raises(SettingError, match="classes are 0 to 3"):
                measure(p, wrong)


@pytest.mark.parametrize(("scale", "alarm"), [(1.0, False), (0.6, True), (1.6, True)])
def test_pit(rng: torch.Generator, scale: float, alarm: bool) -> None:
    mean = torch.randn(500, 2, generator=rng, dtype=torch.float64)
    targets = mean + torch.randn(500, 2, generator=rng, dtype=torch.float64)
    predictive = torch.distributions.Normal(mean, scale)
    found = diagnostics.pit(predictive, targets)
    assert alarms(found) == {"pit": alarm}
    assert found.p_values.shape == (2, 2)
    few = torch.zeros(500, 2, dtype=torch.bool)
    few[:10, 0] = True
    assert diagnostics.pit(predictive, targets, observed=few).checks() == []
    density = diagnostics.negative_log_density(predictive, targets, observed=~few)
    assert float(density) == pytest.approx(float(-predictive.log_prob(targets)[~few].mean()))


def test_uncertainty_that_knows_and_that_does_not(rng: torch.Generator) -> None:
    deviation = torch.rand(2000, generator=rng, dtype=torch.float64) + 0.1
    error = deviation * torch.randn(2000, generator=rng, dtype=torch.float64)
    found = diagnostics.epistemic_against_error(deviation, error)
    assert alarms(found) == {"epistemic": False}
    torch.testing.assert_close(found.error, found.deviation, rtol=0.25, atol=0)
    stats: Any = pytest.importorskip("scipy.stats")
    expected = stats.spearmanr(deviation.numpy(), error.abs().numpy()).statistic
    assert float(found.correlation) == pytest.approx(expected)
    assert alarms(diagnostics.epistemic_against_error(1 / deviation, error)) == {"epistemic": True}
    with pytest.raises(ShapeError, match="cannot make 10 groups"):
        diagnostics.epistemic_against_error(deviation[:5], error[:5])
    with pytest.raises(ShapeError, match="one shape"):
        diagnostics.epistemic_against_error(deviation[:5], error)


@pytest.mark.parametrize("classes", [2, 3])
def test_flat_labels_of_a_single_task(classes) -> None:
    """Labels [B] beside probabilities [B, 1] or [B, 1, C] are those of the one task."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(0, classes, (50,), generator=rng)
    p = torch.rand(50, 1, classes, generator=rng).softmax(-1)
    p = p[..., 1] if classes == 2 else p
    seen = torch.rand(50, generator=rng) < 0.7
    for observed, table in ((None, None), (seen, seen[:, None])):
        flat = diagnostics.reliability(p, labels, observed=observed)
        whole = diagnostics.reliability(p, labels[:, None], observed=table)
        assert torch.equal(flat.count, whole.count)
        assert torch.equal(flat.ece, whole.ece)
        score = diagnostics.brier(p, labels, observed=observed)
        assert torch.equal(score, diagnostics.brier(p, labels[:, None], observed=table))


def test_flat_targets_of_a_single_task() -> None:
    rng = torch.Generator().manual_seed(1)
    mean, y = torch.randn(2, 50, 1, generator=rng, dtype=torch.float64)
    head = heads.Gaussian(1).double()
    prior = priors.isotropic(head, 1.0)
    law = head.predictive(mean, prior)
    seen = torch.rand(50, generator=rng) < 0.7
    for observed, table in ((None, None), (seen, seen[:, None])):
        flat = diagnostics.pit(law, y[:, 0], observed=observed)
        whole = diagnostics.pit(law, y, observed=table)
        assert torch.equal(flat.values[0], whole.values[0])
        nll = diagnostics.negative_log_density(law, y[:, 0], observed=observed)
        assert torch.equal(nll, diagnostics.negative_log_density(law, y, observed=table))
    with pytest.raises(ShapeError):
        diagnostics.pit(law, y, observed=seen[:-1])
    with pytest.raises(ShapeError):
        diagnostics.negative_log_density(law, y.expand(50, 2))
