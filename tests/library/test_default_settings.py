"""The defaults are the recommendation: one rule for all tasks, in which units do not matter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, heads, inference, predictive, priors
from bayesagg_pyro.aggregation import Mean, PrecisionWeighted
from bayesagg_pyro.engine.loss_size import loss_size
from bayesagg_pyro.heads import Head

D, B = 5, 24


class Made:
    """A backbone, an engine with its defaults, and three tasks of three kinds."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda y: y, **made: Head) -> None:
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, D), nn.Tanh()).double()
        kinds: dict[str, Head] = {
            "r": heads.Gaussian(D, 2),
            "b": heads.Bernoulli(D),
            "c": heads.Categorical(D, 3),
        }
        self.mtl = ba.BayesAgg({**kinds, **made}).double()
        with torch.no_grad():
            for head in self.mtl.heads.values():  # whatever drew numbers before
                head.weight.copy_(torch.linspace(-1, 1, head.weight.numel()).view_as(head.weight))
        self.x = torch.randn(2 * B, 4).double()
        real = torch.stack([self.x[:, 0] + 0.3 * self.x[:, 1].square(), self.x[:, 2]], 1)
        self.targets = {
            "r": change(real),
            "b": (self.x[:, 1:2] > 0).double(),
            "c": self.x[:, :3].argmax(1),
        }

    def train(self, epochs: int = 3) -> Made:
        params = [*self.backbone.parameters(), *self.mtl.parameters()]
        optimizer = torch.optim.Adam(params, 1e-2)
        for epoch in range(epochs):
            for rows in torch.arange(2 * B).split(B):
                optimizer.zero_grad()
                self.step(rows)
                optimizer.step()
            self.mtl.update_prior()
            if epoch == 0:
                self.mtl.start_bayes()
        return self

    def step(self, rows: Tensor) -> dict[str, Tensor]:
        some = {name: y[rows] for name, y in self.targets.items()}
        return self.mtl.backward(self.backbone(self.x[rows]), some)

    def update(self) -> Tensor:
        """That of the backbone's features, [B, d], in one more step."""
        features = self.backbone(self.x[:B]).detach().requires_grad_()
        some = {name: y[:B] for name, y in self.targets.items()}
        self.mtl.backward(features, some, collect=False)
        assert features.grad is not None
        return features.grad

    def weights(self) -> Tensor:
        return self.backbone[0].weight.detach()


def test_one_rule_for_all_kinds_of_tasks() -> None:
    """Precisions are compared among regression tasks; others have the gradient of their loss."""
    made = Made().train()
    update = made.update()
    info = made.mtl.info
    assert info is not None
    assert info.weights is not None
    torch.testing.assert_close(info.weights[2:], torch.tensor([0.25, 0.25]).double())
    assert info.weights[0] != info.weights[1]

    features = made.backbone(made.x[:B]).detach()
    head, prior = made.mtl.heads["r"], made.mtl.priors()["r"]
    y = made.targets["r"][:B]
    posterior = inference.Conjugate().infer(head, features, y, prior)
    grad = gradients.distribution(head, posterior, features, y)
    alpha = grad.variance.mean((1, 2)) ** -0.8

    def length(alpha: Tensor) -> Tensor:  # of updates with drawn gradients
        mean = torch.einsum("t,tbd->bd", alpha, grad.mean).square().sum()
        return (mean + (alpha.square() * grad.variance.sum((1, 2))).sum()).sqrt()

    alpha = alpha * length(torch.ones(2).double()) / length(alpha)
    torch.testing.assert_close(info.weights[:2], alpha / 4)
    expected = torch.einsum("t,tbd->bd", alpha, grad.mean) / B
    leaf = features.clone().requires_grad_()
    for name in ("b", "c"):
        own = made.mtl.heads[name]
        targets = own.parse_targets(made.targets[name][:B], B)
        expected += torch.autograd.grad(own.losses(leaf, targets).mean(), leaf)[0]
    torch.testing.assert_close(update, expected)


def test_classification_alone_takes_the_step_of_a_sum_of_losses() -> None:
    torch.manual_seed(0)
    mtl = ba.BayesAgg({"b": heads.Bernoulli(D, 3), "c": heads.Categorical(D, 4)}).double()
    x, features = torch.randn(B, D).double(), torch.randn(B, D).double().requires_grad_()
    targets = {"b": (x[:, :3] > 0).double(), "c": x[:, :4].argmax(1)}
    mtl.backward(features, targets)
    warm = features.grad
    mtl.update_prior()
    mtl.start_bayes()
    features.grad = None
    mtl.backward(features, targets)
    torch.testing.assert_close(features.grad, warm)


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e6])
@pytest.mark.parametrize("raw", [1.0, 47.0])
def test_the_unit_of_a_target_does_not_matter(factor: float, raw: float) -> None:
    """A target in other units gives the same training, and predictions in those units."""

    def scaled(by: float) -> Callable[[Tensor], Tensor]:
        return lambda y: torch.stack([by * y[:, 0], y[:, 1]], 1)

    one, other = Made(scaled(raw)).train(), Made(scaled(raw * factor)).train()
    torch.testing.assert_close(one.weights(), other.weights())
    torch.testing.assert_close(one.update(), other.update())
    h = one.backbone(one.x).detach()
    unit = torch.tensor([factor, 1.0]).double()
    torch.testing.assert_close(one.mtl.predict(h)["r"] * unit, other.mtl.predict(h)["r"])
    law, scaled_law = one.mtl.predictive(h)["r"], other.mtl.predictive(h)["r"]
    y, scaled_y = one.targets["r"], other.targets["r"]
    torch.testing.assert_close(law.stddev * unit, scaled_law.stddev)
    torch.testing.assert_close(law.cdf(y), scaled_law.cdf(scaled_y))
    torch.testing.assert_close(law.log_prob(y) - unit.log(), scaled_law.log_prob(scaled_y))
    levels = torch.full_like(y, 0.1)
    torch.testing.assert_close(scaled_law.cdf(scaled_law.icdf(levels)), levels)


def test_raw_targets_are_standardised_and_predictions_are_raw() -> None:
    made = Made(lambda y: 30 + 20 * y).train(8)
    h, y = made.backbone(made.x).detach(), made.targets["r"]
    head = made.mtl.heads["r"]
    assert isinstance(head, heads.Gaussian)
    first = y[:B]
    torch.testing.assert_close(head.target_loc, first.mean(0))
    torch.testing.assert_close(head.target_scale, first.std(0, correction=0))
    error = (made.mtl.predict(h)["r"] - y).square().mean(0)
    assert (error < y.var(0)).all()
    law = made.mtl.predictive(h)["r"]
    torch.testing.assert_close(law.mean, made.mtl.predict(h)["r"])
    draws = law.sample((2000,))
    torch.testing.assert_close(draws.mean(0), law.mean, atol=3.0, rtol=0)
    normal = torch.distributions.Normal(law.mean, law.stddev)
    torch.testing.assert_close(law.log_prob(y), normal.log_prob(y))
    torch.testing.assert_close(law.entropy(), normal.entropy())
    parts = predictive.uncertainty(head, made.mtl.posteriors()["r"], h)
    torch.testing.assert_close(parts.total, law.variance)


def test_targets_that_look_standardised_stay_to_the_bit() -> None:
    made = Made().train(1)
    head = made.mtl.heads["r"]
    assert isinstance(head, heads.Gaussian)
    assert head.units is None
    assert head.parse_targets(made.targets["r"], 2 * B).values.equal(made.targets["r"])


def test_the_units_of_a_loss_do_not_matter() -> None:
    """A loss times 1,000 gives the same training."""

    class Squares(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return 1000 * (targets - outputs).square()

    class Nats(heads.Categorical):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return 1000 * self.negative_log_prob(outputs, targets)

    class Same(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (targets - outputs).square()

    plain = Made(r=Same(D, 2)).train()
    times = Made(r=Squares(D, 2), c=Nats(D, 3)).train()
    torch.testing.assert_close(times.weights(), plain.weights())
    torch.testing.assert_close(times.update(), plain.update())


def test_the_size_of_a_loss_of_counts_is_that_at_counts_up_to_two() -> None:
    class Late(heads.Poisson):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return self.negative_log_prob(outputs, targets) * (1 + targets)

    # At outputs of 0 the slope is 1 − y: 1, 0 and −1, here times 1, 2 and 3.
    torch.testing.assert_close(loss_size(Late(D, 2)), torch.full((2,), (1 + 3) / 2))


def test_a_loss_of_torch_that_takes_one_batch_alone() -> None:
    """As in a warm-up: after it, such a loss was given outputs with an axis of draws in front."""

    class Smooth(heads.Categorical):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return smoothed(outputs, targets[:, 0], reduction="none")[:, None]

    smoothed = partial(nn.functional.cross_entropy, label_smoothing=0.1)
    torch.manual_seed(0)
    head = Smooth(D, 3).double()
    mtl = ba.BayesAgg({"c": head})
    h = torch.randn(B, D, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(3, (B,))
    mtl.collect(h, {"c": labels})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(h, {"c": labels})
    loss = smoothed(head(h), labels) / 0.9  # what smoothing takes from the size of the loss
    torch.testing.assert_close(h.grad, *torch.autograd.grad(loss, h))


def test_a_step_makes_no_posterior_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made().train(1)
    asked: list[str] = []
    infer = inference.TaylorGGN.infer

    def counted(self: inference.TaylorGGN, head: Head, *args: object, **how: object) -> object:
        asked.append(str(head.name))
        return infer(self, head, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(inference.TaylorGGN, "infer", counted)
    plain = made.update()
    assert asked == []
    made.mtl.keep_gradients = True
    kept = made.update()
    assert asked == ["b", "c"]
    assert kept.equal(plain)
    info = made.mtl.info
    assert info is not None
    assert info.gradients is not None
    assert (info.gradients.variance > 0).all()


def test_an_aggregation_of_ones_own_keeps_the_expected_gradient() -> None:
    rule = PrecisionWeighted(0.5)
    mtl = ba.BayesAgg({"b": heads.Bernoulli(D)}, rule)
    assert mtl.aggregation is rule
    assert mtl.estimators == {"b": None}
    at_weights = gradients.PlugIn(at="weights")
    mtl = ba.BayesAgg({"b": heads.Bernoulli(D)}, Mean(), estimator=at_weights)
    assert mtl.estimators == {"b": at_weights}


def test_heads_that_nothing_is_said_of_have_the_defaults() -> None:
    made = {"a": heads.Gaussian(D), "b": heads.Bernoulli(D), "c": heads.Categorical(800, classes=3)}
    mine = inference.Laplace()
    mtl = ba.BayesAgg(made, inference={"b": mine}, prior={"a": priors.Running(50)})
    plain = ba.BayesAgg(dict(made))
    assert mtl.schemes["b"] is mine
    for name in ("a", "c"):
        assert type(mtl.schemes[name]) is type(plain.schemes[name])
    assert mtl.schemes["c"].structure == "kron"  # type: ignore[attr-defined]


def test_units_are_saved_and_a_failed_step_chooses_none() -> None:
    made = Made(lambda y: 30 + 20 * y)
    head = made.mtl.heads["r"]
    assert isinstance(head, heads.Gaussian)
    h = made.backbone(made.x[:B])
    y = {name: values[:B].clone() for name, values in made.targets.items()}
    y["r"][0, 0] = torch.nan
    with pytest.raises(ba.errors.NonFiniteError):
        made.mtl.backward(h, y)
    assert head.target_scale is not None
    assert head.target_scale.eq(0).all()
    made.train(2)
    other = Made()
    other.mtl.load_state_dict(made.mtl.state_dict())
    torch.testing.assert_close(
        other.mtl.predict(h.detach())["r"], made.mtl.predict(h.detach())["r"]
    )
