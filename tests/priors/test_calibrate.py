"""Predictions as wide as data that training has not seen show them to be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, predictive
from bayesagg_pyro._optimise import likeliest_noise, search
from bayesagg_pyro.posteriors import Empirical, Gaussian, Posterior
from bayesagg_pyro.predictive import _calibrate

F64 = torch.float64


def posterior_of(head, mean: Tensor, variance: float) -> Gaussian:
    precision = torch.eye(mean.shape[1], dtype=F64) / variance
    return Gaussian(
        mean, precision.expand(len(mean), -1, -1), outputs_per_task=head.outputs_per_task
    )


def ordinal(link: str, scale: float) -> heads.Ordinal:
    """Four ordered classes."""
    cutpoints = [-1.0 * scale, 0.5 * scale, 2.0 * scale]
    return heads.Ordinal(4, 4, tasks=2, cutpoints=cutpoints, link=link).double()  # type: ignore[arg-type]


def parsed(head, features, targets):
    return [(features, head.parse_targets(targets, len(features)))]


def test_noise_covers_new_targets(rng) -> None:
    head = heads.Gaussian(6, tasks=2).double()
    features = torch.randn(5000, 6, generator=rng, dtype=F64)
    mean = torch.randn(2, 6, generator=rng, dtype=F64)
    posterior = posterior_of(head, mean, 0.5)
    scale = torch.tensor([0.3, 4.0], dtype=F64)
    width = scale * (1 + 0.5 * features.square().sum(1, keepdim=True)).sqrt()
    targets = features @ mean.T + width * torch.randn(5000, 2, generator=rng, dtype=F64)
    found = predictive.calibration(head, posterior, parsed(head, features, targets))
    torch.testing.assert_close(found, scale, rtol=0.05, atol=0)
    law = head.predictive(features, predictive.calibrated(head, posterior, found))
    level = law.cdf(targets)
    for quantile in (0.05, 0.5, 0.95):
        share = (level < quantile).double().mean(0)
        assert ((share - quantile).abs() < 4 * (0.25 / 5000) ** 0.5).all()


@pytest.mark.parametrize("kind", ["binary", "classes", "two", "logit", "probit"])
def test_temperature_is_the_one_of_the_highest_density(rng, kind) -> None:
    head = {
        "binary": lambda: heads.Bernoulli(4, tasks=2),
        "classes": lambda: heads.Categorical(4, 3, tasks=2),
        "two": lambda: heads.Categorical(4, 2, tasks=2),
        "logit": lambda: ordinal("logit", 3.0),
        "probit": lambda: ordinal("probit", 3.0),
    }[kind]().double()
    mean = 2 * torch.randn(2, head.weight_size, generator=rng, dtype=F64)
    posterior = posterior_of(head, 3 * mean, 1e-12)  # three times as sure as the targets are
    features = torch.randn(300, 4, generator=rng, dtype=F64)
    truth = ordinal(kind, 1.0) if isinstance(head, heads.Ordinal) else head
    targets = truth.likelihood(head(features, mean)).sample()
    found = predictive.calibration(head, posterior, parsed(head, features, targets))
    torch.testing.assert_close(found, torch.full((2,), 3.0, dtype=F64), rtol=0.25, atol=0)

    def density(temperature: Tensor) -> Tensor:
        trial = predictive.calibrated(head, posterior, temperature)
        total = head.predictive(features, trial).log_prob(targets).sum(0)
        return total - 0.5 * temperature.log().square()  # and log T ~ N(0, 1)

    for factor in (0.97, 1.03):
        assert (density(found) > density(found * factor)).all()
    exact = truth.predictive(features, posterior_of(head, mean, 1e-12))
    close = head.predictive(features, predictive.calibrated(head, posterior, 3 * torch.ones(2)))
    torch.testing.assert_close(close.logits, exact.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("kind", ["classes", "two", "ordered"])
def test_temperature_has_the_highest_density_under_wide_posteriors(rng, kind, drawn) -> None:
    """Against the density that `predictive` gives, of Gaussians and of stored draws."""
    head = {
        "classes": lambda: heads.Categorical(4, 3),
        "two": lambda: heads.Categorical(4, 2, tasks=2),
        "ordered": lambda: ordinal("logit", 1.0),
    }[kind]().double()
    mean = torch.randn(head.tasks, head.weight_size, generator=rng, dtype=F64)
    posterior: Posterior = posterior_of(head, mean, 0.5)
    if drawn:
        weights = posterior.sample((20,), generator=rng)
        posterior = Empirical(weights, outputs_per_task=head.outputs_per_task)
    features = torch.randn(80, 4, generator=rng, dtype=F64)
    targets = head.likelihood(head(features, 2 * mean)).sample()
    examples = parsed(head, features, targets)
    found = predictive.calibration(head, posterior, examples)

    def density(temperature: Tensor) -> Tensor:
        law = head.predictive(features, predictive.calibrated(head, posterior, temperature))
        return law.log_prob(examples[0][1].values).sum(0) - 0.5 * temperature.log().square()

    for factor in (0.98, 1.02):
        assert (density(found) > density(found * factor)).all()


@pytest.mark.parametrize("labels", [600, 5])
def test_temperature_of_many_examples(rng, labels, monkeypatch) -> None:
    """Looked for at few of them first, of which a task with rare labels may have none."""
    monkeypatch.setattr(_calibrate, "_FEW", (60, 200))
    head = heads.Bernoulli(4, tasks=3).double()
    posterior = posterior_of(head, 3 * torch.randn(3, 5, generator=rng, dtype=F64), 0.1)
    features = torch.randn(600, 4, generator=rng, dtype=F64)
    targets = (torch.rand(600, 3, generator=rng) < 0.5).double()
    mask = torch.ones(600, 3, dtype=torch.bool)
    mask[labels:, 1] = mask[:, 2] = False
    parsed = head.parse_targets((targets, mask), 600)
    pieces = [slice(0, 250), slice(250, 251), slice(251, 600)]
    found = predictive.calibration(
        head, posterior, [(features[rows], parsed.examples(rows)) for rows in pieces]
    )

    def density(log_temperature: Tensor) -> Tensor:
        at = [predictive.calibrated(head, posterior, t) for t in log_temperature.exp()]
        each = [head.predictive(features, trial).log_prob(targets) for trial in at]
        return (torch.stack(each) * mask).sum(1) - 0.5 * log_temperature.square()

    far = torch.full((3,), 5.0, dtype=F64)
    exact = search(density, -far, far, points=20, steps=30).exp()
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=0)
    assert found[2] == 1


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_ordered_classes_at_a_temperature(rng, link) -> None:
    """P(y ≤ k) = E F((θ_k − u) / T), against 20,001 nodes over 12 standard deviations."""
    head = ordinal(link, 1.0)
    mean = torch.randn(2, head.weight_size, generator=rng, dtype=F64)
    plain = posterior_of(head, mean, 4.0)
    features = torch.randn(7, 4, generator=rng, dtype=F64)
    temperature = torch.tensor([2.5, 0.3], dtype=F64)
    posterior = predictive.calibrated(head, plain, temperature)
    z = torch.linspace(-12, 12, 20_001, dtype=F64)
    u = features @ mean.mT + 2 * features.square().sum(1, keepdim=True).sqrt() * z[:, None, None]
    far = torch.full((2, 1), torch.inf, dtype=F64)
    bounds = torch.cat([-far, head.cutpoints, far], 1) - u[..., None]
    below = {"logit": torch.sigmoid, "probit": torch.special.ndtr}[link]
    shares = below(bounds / temperature[:, None]).diff(dim=-1)
    wanted = torch.einsum("n,nbtc->btc", (-0.5 * z.square()).softmax(0), shares)
    law = head.predictive(features, posterior)
    torch.testing.assert_close(law.probs, wanted, rtol=1e-8, atol=1e-12)
    drawn = head.predictive(features, posterior, method="samples", samples=4000)
    assert ((drawn.probs - wanted).abs() < 5 * drawn.standard_error + 1e-6).all()
    entropy = predictive.uncertainty(head, posterior, features).total
    torch.testing.assert_close(entropy, law.entropy(), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        head.predictive(features, plain).probs.sum(-1), torch.ones(7, 2, dtype=F64)
    )


def test_labels_that_are_all_right_do_not_make_predictions_certain(rng) -> None:
    head = heads.Bernoulli(4, tasks=1).double()
    posterior = posterior_of(head, torch.ones(1, 5, dtype=F64), 1e-12)
    features = torch.randn(20, 4, generator=rng, dtype=F64)
    targets = (features.sum(1, keepdim=True) + 1 > 0).double()
    found = predictive.calibration(head, posterior, parsed(head, features, targets))
    assert 0.1 < found.item() < 0.6  # the highest density alone has it at the end of the range


def test_every_way_to_predict_divides_the_logits(rng) -> None:
    head = heads.Bernoulli(4, tasks=2).double()
    mean = torch.randn(2, 5, generator=rng, dtype=F64)
    features = torch.randn(7, 4, generator=rng, dtype=F64)
    temperature = torch.tensor([2.0, 0.5], dtype=F64)
    trial = predictive.calibrated(head, posterior_of(head, mean, 0.3), temperature)
    cooled = Gaussian(
        mean / temperature[:, None],
        trial.precision_matrix * temperature[:, None, None].square(),
    )
    for method in ("quadrature", "probit", "samples"):
        got, wanted = (head.predictive(features, q, method=method) for q in (trial, cooled))
        torch.testing.assert_close(got.logits, wanted.logits)
    parts, wanted = (predictive.uncertainty(head, q, features) for q in (trial, cooled))
    torch.testing.assert_close(parts.epistemic, wanted.epistemic)
    torch.testing.assert_close(parts.aleatoric, wanted.aleatoric)


def engine() -> ba.BayesAgg:
    torch.manual_seed(0)
    made = {
        "number": heads.Gaussian(6, tasks=2),
        "label": heads.Bernoulli(6, tasks=1),
        "class": heads.Categorical(6, 3),
        "level": heads.Ordinal(6, 3),
        "count": heads.Poisson(6),
    }
    return ba.BayesAgg({name: head.double() for name, head in made.items()})


def batch(rng, examples: int) -> tuple[Tensor, dict[str, Tensor]]:
    features = torch.randn(examples, 6, generator=rng, dtype=F64)
    return features, {
        "number": torch.randn(examples, 2, generator=rng, dtype=F64),
        "label": (torch.rand(examples, 1, generator=rng) < 0.5).double(),
        "class": torch.randint(3, (examples,), generator=rng),
        "level": torch.randint(3, (examples,), generator=rng),
        "count": torch.poisson(torch.ones(examples, 1, dtype=F64), generator=rng),
    }


def test_a_noise_scale_is_in_units_of_the_targets(rng) -> None:
    found = []
    for scale in (1.0, 1000.0):
        mtl = ba.BayesAgg({"number": heads.Gaussian(6, tasks=2)})
        features, targets = batch(torch.Generator().manual_seed(0), 80)
        number = scale * (1 + targets["number"])
        mtl.collect(features[:50], {"number": number[:50]})
        mtl.update_prior()
        found.append(mtl.calibrate([(features[50:], {"number": number[50:]})])["number"] / scale)
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0.0)


def test_an_engine_predicts_with_it_until_the_next_update_and_saves_it(rng) -> None:
    mtl = engine()
    mtl.collect(*batch(rng, 50))
    mtl.update_prior()
    new = batch(rng, 40)
    before = {
        name: law.log_prob(new[1][name]).sum() for name, law in mtl.predictive(new[0]).items()
    }
    found = mtl.calibrate([new])
    assert list(found) == ["number", "label", "class", "level"]
    for name, law in mtl.predictive(new[0]).items():
        after = law.log_prob(new[1][name]).sum()
        assert after > before[name] if name in found else after == before[name]

    other = engine()
    other.load_state_dict(mtl.state_dict())
    for name, law in other.predictive(new[0]).items():
        wanted = mtl.predictive(new[0])[name]
        assert torch.equal(law.log_prob(new[1][name]), wanted.log_prob(new[1][name]))

    assert mtl.calibrate(None) == {}
    for name, law in mtl.predictive(new[0]).items():
        assert law.log_prob(new[1][name]).sum() == before[name]
    mtl.calibrate([new])
    mtl.collect(*new)
    mtl.update_prior()
    assert mtl.posteriors()["label"].info.temperature is None


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperatures by a few trials instead of 28."""
    monkeypatch.setattr(_calibrate, "_POINTS", 3)
    monkeypatch.setattr(_calibrate, "_STEPS", 0)


@pytest.mark.usefixtures("coarse")
def test_steps_never_see_it(rng) -> None:
    first, held_out, step = batch(rng, 50), batch(rng, 40), batch(rng, 8)
    updates = []
    for calibrate in (False, True):
        mtl = engine()
        mtl.collect(*first)
        mtl.update_prior()
        mtl.start_bayes()
        if calibrate:
            mtl.calibrate([held_out])
        leaf = step[0].clone().requires_grad_()
        mtl.generator = torch.Generator().manual_seed(0)
        torch.manual_seed(1)
        mtl.backward(leaf, step[1])
        updates.append(leaf.grad)
    assert torch.equal(*updates)


@pytest.mark.usefixtures("coarse")
def test_a_task_without_a_target_keeps_what_is_in_force(rng) -> None:
    mtl = engine()
    mtl.collect(*batch(rng, 50))
    mtl.update_prior()
    features, targets = batch(rng, 40)
    mask = torch.tensor([True, False]).expand(40, 2)
    before = mtl.posteriors()["number"].info.noise_scale
    found = mtl.calibrate([(features, {"number": (targets["number"], mask)})])
    assert found["number"][0] != before[0]
    assert found["number"][1] == before[1]
    assert found["label"] == 1
    assert found["class"] == 1
    few = features[:2], {"number": (targets["number"][:2], ~mask[:2])}
    once = mtl.calibrate([few])["number"]
    assert once[0] == found["number"][0]
    assert once[1] != before[1]
    assert torch.equal(mtl.calibrate([few])["number"], once)  # the same labels count once


def test_a_task_whose_labels_all_have_weight_zero_is_one_without(rng) -> None:
    """It had the default noise, or the temperature of no data, in place of those in force."""
    mtl = engine()
    mtl.collect(*batch(rng, 50))
    mtl.update_prior()
    features, targets = batch(rng, 40)
    once = mtl.calibrate([(features, targets)])
    nothing = {name: (values, None, torch.zeros(40)) for name, values in targets.items()}
    again = mtl.calibrate([(features, nothing)])
    assert once["label"] != 1
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_refuses_nothing_and_bad_batches(rng) -> None:
    mtl = engine()
    with pytest.raises(errors.StateError, match="update_prior"):
        mtl.calibrate([batch(rng, 5)])
    mtl.collect(*batch(rng, 50))
    mtl.update_prior()
    with pytest.raises(errors.StateError, match="no batches to calibrate to"):
        mtl.calibrate([])
    with pytest.raises(errors.DtypeError, match="pairs"):
        mtl.calibrate([torch.zeros(3, 6)])
    features, targets = batch(rng, 5)
    with pytest.raises(errors.NonFiniteError):
        mtl.calibrate([(features * torch.nan, targets)])
    state = mtl.state_dict()
    state["state.held.label.calibration"] = torch.tensor([-1.0], dtype=F64)
    state["state.entries"] += 1
    with pytest.raises(errors.StateError, match="saved calibration"):
        mtl.load_state_dict(state)


def test_noise_that_few_residuals_far_from_the_guess_ask_for() -> None:
    """The slope of the log posterior vanishes there, however far that is."""
    count = torch.tensor([0.0, 1.0, 2.0, 30.0, 1e6], dtype=F64)
    for found in (1e-10, 0.1, 1.0, 30.0, 1e10):
        size = torch.full_like(count, found)
        scale = likeliest_noise(size, count, torch.tensor(1.0, dtype=F64))
        slope = count * ((size / scale).square() - 1) - scale.log()
        assert (slope.abs() <= 1e-8 * (1 + count)).all()
