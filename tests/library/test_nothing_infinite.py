"""What overflows, or a head that has diverged, is an error that names it; no gradient holds it."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, priors
from bayesagg_pyro.aggregation import PrecisionWeighted


class Sizes(heads.OnePredictor):
    """Positive targets, whose density at 0 is none."""

    support_description = "sizes are positive"

    def likelihood(self, outputs: Tensor) -> object:
        return dist.LogNormal(outputs, 0.5, validate_args=False)

    def supports(self, values: Tensor) -> Tensor:
        return values > 0


def sizes_model(features: Tensor, targets: Tensor | None = None) -> None:
    """The same as a user's Pyro model, of two tasks."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pyro.plate("examples", len(features), dim=-2), pyro.plate("tasks", 2, dim=-1):
        pyro.sample("sizes", dist.LogNormal(features @ weight.mT, 0.5), obs=targets)


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("seen", ["some", "one task never"])
@pytest.mark.parametrize("validate", ["now", "deferred"])
def test_missing_targets_of_positive_support(
    rng: torch.Generator, bayes: bool, seen: str, validate: str
) -> None:
    """Log-densities are infinite at 0: what stands for a missing target must be in the support."""
    x = torch.randn(16, 4, generator=rng)
    y = torch.randn(16, 2, generator=rng).exp()
    mask = torch.rand(16, 2, generator=rng) < 0.6
    if seen == "one task never":
        mask[:, 1] = False
    backbone = nn.Linear(4, 3)
    mtl = ba.BayesAgg({"y": Sizes(3, tasks=2)}, validate=validate)  # type: ignore[arg-type]
    if bayes:
        mtl.collect(backbone(x), {"y": y})
        mtl.update_prior()
        mtl.start_bayes()
    losses = mtl.backward(backbone(x), {"y": (y.where(mask, torch.nan), mask)})["y"]
    assert backbone.weight.grad is not None
    assert backbone.weight.grad.isfinite().all()
    assert backbone.weight.grad.abs().max() > 0
    assert torch.equal(losses.isnan(), ~mask.any(0))
    mtl.update_prior()  # what was deferred would be raised here
    with pytest.raises(errors.SettingError, match=r"is 0\.0; sizes are positive"):
        ba.BayesAgg({"y": Sizes(3)}).backward(backbone(x), {"y": (y[:, :1] * 0, mask[:, :1])})


def test_missing_targets_of_a_pyro_model(rng: torch.Generator) -> None:
    backbone, x = nn.Linear(4, 3), torch.randn(16, 4, generator=rng)
    y = torch.randn(16, 2, generator=rng).exp()
    mask = torch.tensor([True, False]).expand(16, 2)
    mtl = ba.BayesAgg({"y": heads.FromPyro(sizes_model, 3, tasks=2)})
    losses = mtl.backward(backbone(x), {"y": (y, mask)})["y"]
    assert losses[1].isnan()
    assert losses[0].isfinite()
    assert backbone.weight.grad is not None
    assert backbone.weight.grad.isfinite().all()


def overflowing() -> tuple[heads.Head, Tensor, Tensor]:
    """Finite loss, infinite gradient."""
    head = heads.Poisson(1, bias=False)
    head.weight.data.fill_(11.0)
    return head, torch.full((1, 1), 8.0), torch.ones(1, 1)


def test_a_gradient_that_overflows(rng: torch.Generator) -> None:
    head, h, y = overflowing()
    h.requires_grad_()
    with pytest.raises(errors.NonFiniteError, match="loss's gradient of head 'y' overflows"):
        ba.BayesAgg({"y": head}).backward(h, {"y": y})
    assert h.grad is None
    assert head.weight.grad is None
    mtl = ba.BayesAgg({"y": head}, validate="deferred")
    mtl.backward(h, {"y": y})
    for grad in (h.grad, head.weight.grad):
        assert grad is not None
        assert (grad == 0).all()
    with pytest.raises(errors.NonFiniteError, match="its update was zero"):
        mtl.update_prior()


@pytest.mark.parametrize("bayes", [False, True])
def test_a_deferred_loss_that_overflows_reaches_no_gradient(
    rng: torch.Generator, bayes: bool
) -> None:
    """0 · ∞ in a backward pass is NaN, whatever the sum of losses is replaced by."""
    backbone, head = nn.Linear(4, 6), heads.Heteroscedastic(6)
    mtl = ba.BayesAgg({"y": head}, validate="deferred")
    x = torch.randn(16, 4, generator=rng)
    if bayes:
        mtl.collect(backbone(x), {"y": x[:, :1]})
        mtl.update_prior()
        mtl.start_bayes()
    loss = mtl.backward(backbone(x), {"y": torch.full((16, 1), 1e25)})["y"]
    assert loss.isnan().all()
    for weight in (backbone.weight, head.weight):
        assert weight.grad is not None
        assert (weight.grad == 0).all()


def test_a_loss_that_overflows_though_the_update_does_not(rng: torch.Generator) -> None:
    backbone, head = nn.Linear(4, 3), heads.Poisson(3)
    mtl = ba.BayesAgg({"y": head}, PrecisionWeighted(), inference=inference.Laplace())
    x, y = torch.randn(16, 4, generator=rng), torch.ones(16, 1)
    mtl.collect(backbone(x), {"y": y})
    mtl.update_prior()
    mtl.start_bayes()
    with torch.no_grad():
        head.weight[-1, -1] = 95.0
    with pytest.raises(errors.NonFiniteError, match="the loss of head 'y' overflows"):
        mtl.backward(backbone(x), {"y": y})
    assert backbone.weight.grad is None
    assert head.weight.grad is None


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("scheme", [inference.TaylorGGN, inference.Laplace])
def test_a_head_that_has_diverged_is_named(
    rng: torch.Generator, bayes: bool, scheme: Callable[[], inference.Scheme]
) -> None:
    backbone, bad = nn.Linear(4, 3), heads.Bernoulli(3)
    mtl = ba.BayesAgg(
        {"a": heads.Gaussian(3), "b": bad},
        inference={"a": inference.Conjugate(), "b": scheme()},
    )
    x, y = torch.randn(16, 4, generator=rng), torch.ones(16, 1)
    mtl.collect(backbone(x), {"a": y, "b": y})
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    with torch.no_grad():
        bad.weight[0, 0] = torch.nan
    with pytest.raises(errors.NonFiniteError, match="'weight' of head 'b' is not finite"):
        mtl.backward(backbone(x), {"a": y, "b": y})
    assert backbone.weight.grad is None
    # An epoch's last step may do it, after its batches were collected.
    bad.weight.data.zero_()
    mtl.backward(backbone(x), {"a": y, "b": y})
    before = mtl.priors()["b"].mean
    bad.weight.data.fill_(torch.nan)
    with pytest.raises(errors.NonFiniteError, match="'weight' of head 'b' is not finite"):
        mtl.update_prior()
    assert torch.equal(mtl.priors()["b"].mean, before)


def test_the_head_that_is_the_cause_is_named(rng: torch.Generator) -> None:
    backbone, fitted, culprit = nn.Linear(4, 3), heads.Gaussian(3), heads.Poisson(3)
    mtl = ba.BayesAgg({"g": fitted, "p": culprit})
    x, y = torch.randn(16, 4, generator=rng), torch.ones(16, 1)
    mtl.collect(backbone(x), {"g": y, "p": y})
    mtl.update_prior()
    mtl.start_bayes()
    with torch.no_grad():
        fitted.weight[0, 0] = torch.nan  # it no longer holds the posterior mean, and predicts
    with pytest.raises(errors.NonFiniteError, match="'weight' of head 'g' is not finite"):
        mtl.backward(backbone(x), {"g": y, "p": y})
    mtl.refit([(backbone(x), {"g": y, "p": y})])  # the mean is written into it anew
    with torch.no_grad():
        culprit.weight[-1, -1] = 95.0
    with pytest.raises(errors.NonFiniteError, match="of head 'p' overflows"):
        mtl.backward(backbone(x), {"g": y, "p": y})


@pytest.mark.parametrize("bayes", [False, True])
def test_an_update_beyond_half_precision(rng: torch.Generator, bayes: bool) -> None:
    backbone = nn.Linear(4, 3)
    head = heads.Gaussian(3, standardise=False)
    mtl = ba.BayesAgg({"y": head})
    x, y = torch.randn(16, 4, generator=rng), 1e7 * torch.randn(16, 1, generator=rng)
    mtl.collect(backbone(x), {"y": y})
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    else:
        with torch.no_grad():
            head.weight.fill_(1e4)
    with pytest.raises(errors.NonFiniteError, match=r"overflows torch\.float16"):
        mtl.backward(backbone(x).half(), {"y": y})
    assert backbone.weight.grad is None


class Shares(heads.OnePredictor):
    """Targets between 0 and 1, of which 1 is none."""

    filler = 0.5

    def likelihood(self, outputs: Tensor) -> object:
        share = outputs.sigmoid()
        return dist.Beta(5 * share, 5 * (1 - share), validate_args=False)


@pytest.mark.parametrize("network", [False, True])
def test_a_filler_of_ones_own(rng: torch.Generator, network: bool) -> None:
    head: heads.Head = Shares(3, missing="nan")
    if network:
        head = heads.Network(nn.Linear(3, 1), Shares(3, missing="nan"))
    backbone, x = nn.Linear(4, 3), torch.randn(16, 4, generator=rng)
    y = torch.rand(16, 1, generator=rng)
    y[0] = torch.nan
    mtl = ba.BayesAgg({"y": head})
    for _ in range(2):
        mtl.backward(backbone(x), {"y": y})
        mtl.update_prior()
        mtl.start_bayes()
    assert backbone.weight.grad is not None
    assert backbone.weight.grad.isfinite().all()


@pytest.mark.parametrize("validate", ["now", "deferred"])
def test_hooks_run_once(rng: torch.Generator, validate: str) -> None:
    """On the weights of heads and on the features, in either kind of step."""
    backbone, head = nn.Linear(4, 3), heads.Bernoulli(3)
    mtl = ba.BayesAgg({"y": head}, validate=validate)  # type: ignore[arg-type]
    x, y = torch.randn(16, 4, generator=rng), torch.ones(16, 1)
    seen: list[str] = []

    def halved(name: str) -> Callable[[Tensor], Tensor]:
        def hook(grad: Tensor) -> Tensor:
            seen.append(name)
            return 0.5 * grad

        return hook

    def step() -> list[Tensor]:
        backbone.zero_grad()
        head.zero_grad()
        features = backbone(x)
        if hooked:
            features.register_hook(halved("features"))
        mtl.backward(features, {"y": y})
        return [weight.grad.clone() for weight in (backbone.weight, head.weight)]  # type: ignore[union-attr]

    for _ in range(2):
        hooked = False
        plain = step()
        hooked = True
        handle = head.weight.register_hook(halved("weight"))
        seen.clear()
        for half, whole in zip(step(), plain, strict=True):
            torch.testing.assert_close(half, 0.5 * whole)
        assert sorted(seen) == ["features", "weight"]
        handle.remove()
        mtl.update_prior()
        mtl.start_bayes()


def test_hooks_on_heads_are_called(rng: torch.Generator) -> None:
    """Gradients of heads come as autograd brings them: data-parallel training hooks into that."""
    backbone, head = nn.Linear(4, 3), heads.Bernoulli(3)
    mtl = ba.BayesAgg({"y": head})
    seen: list[str] = []
    head.weight.register_post_accumulate_grad_hook(lambda _: seen.append("weight"))
    x, y = torch.randn(16, 4, generator=rng), torch.ones(16, 1)
    mtl.backward(backbone(x), {"y": y})
    mtl.update_prior()
    mtl.start_bayes()
    before = head.weight.grad.clone()  # type: ignore[union-attr]
    mtl.backward(backbone(x), {"y": y})
    assert seen == ["weight"] * 2
    torch.testing.assert_close(head.weight.grad, 2 * before)


@pytest.mark.parametrize("others", [0, 1])
def test_a_certain_gradient_under_full_covariance(rng: torch.Generator, others: int) -> None:
    """An example without features says its Gaussian tasks' gradients exactly; training goes on."""
    tasks = {"y": heads.Gaussian(3, tasks=2)}
    if others:
        tasks["b"] = heads.Gaussian(3, bias=True)
    mtl = ba.BayesAgg(tasks, PrecisionWeighted(covariance="full"))
    h = torch.randn(16, 3, generator=rng)
    h[0] = 0
    y = torch.randn(16, 2, generator=rng)
    y[0, 0] = 0
    targets = {"y": y} | ({"b": y[:, :1] + 1} if others else {})
    mtl.collect(h, targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(h.requires_grad_(), targets)
    assert h.grad is not None
    # All the weight is on a gradient of 0.
    torch.testing.assert_close(h.grad[0], torch.zeros(3), atol=1e-9, rtol=0)
    assert h.grad[1:].abs().max() > 0


def test_moments_alone_are_exact_under_autocast(rng: torch.Generator) -> None:
    head = heads.Bernoulli(20, tasks=3)
    h, y = torch.randn(30, 20, generator=rng), (torch.rand(30, 3, generator=rng) < 0.5).float()
    posterior = inference.TaylorGGN().infer(head, h, y, priors.isotropic(head, 1.0))
    plain = gradients.distribution(head, posterior, h, y)
    with torch.autocast("cpu", torch.bfloat16):
        cast = gradients.distribution(head, posterior, h, y)
    assert torch.equal(cast.mean, plain.mean)
    assert torch.equal(cast.variance, plain.variance)


def test_learning_noise_comes_before_the_engine(rng: torch.Generator) -> None:
    head = heads.Gaussian(3)
    mtl = ba.BayesAgg({"y": head})
    head.learn_noise()
    mtl.collect(torch.randn(20, 3, generator=rng), {"y": torch.randn(20, 1, generator=rng)})
    with pytest.raises(errors.StateError, match=r"learn_noise\(\) came after the engine"):
        mtl.update_prior()


def test_student_t_takes_targets_of_any_size(rng: torch.Generator) -> None:
    head = heads.StudentT(3, tasks=2, df=[1.5, 4.0], scale=[0.1, 2.0])
    u, y = torch.randn(40, 2, generator=rng), 3 * torch.randn(40, 2, generator=rng)
    u64, y64 = u.double().requires_grad_(), y.double()
    reference = -head.likelihood(u64).log_prob(y64)
    torch.testing.assert_close(head.negative_log_prob(u64, y64), reference, atol=1e-12, rtol=1e-12)
    (slope,) = torch.autograd.grad(head.negative_log_prob(u64, y64).sum(), u64)
    torch.testing.assert_close(slope, head.loss_derivative(u64, y64).detach())
    at = u.requires_grad_()
    for far in (1e25, -3e37):
        loss = head.negative_log_prob(at, torch.full_like(y, far))
        exact = -head.likelihood(u64).log_prob(torch.full_like(y64, far))
        torch.testing.assert_close(loss.double(), exact, atol=0, rtol=1e-5)
        assert torch.autograd.grad(loss.sum(), at)[0].isfinite().all()


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ordinal_heads_in_half_precision(
    rng: torch.Generator, link: str, dtype: torch.dtype
) -> None:
    made = heads.Ordinal(3, 4, link=link)  # type: ignore[arg-type]
    backbone, mtl = nn.Linear(4, 3).to(dtype), ba.BayesAgg({"o": made}).to(dtype)
    x, y = torch.randn(16, 4, generator=rng).to(dtype), torch.arange(16)[:, None] % 4
    for _ in range(2):
        loss = mtl.backward(backbone(x), {"o": y})["o"]
        assert loss.isfinite().all()
        mtl.update_prior()
        mtl.start_bayes()
    assert backbone.weight.grad is not None
    assert backbone.weight.grad.isfinite().all()


def test_a_head_of_which_one_example_overflows_is_named() -> None:
    """Targets near float32's largest number, in one of two heads that come in this order."""
    mtl = ba.BayesAgg({"g": heads.Gaussian(3), "p": heads.Gaussian(3, noise_scale=1e-3)})
    x = torch.eye(3).repeat(4, 1)
    y = {"g": torch.ones(12, 1), "p": torch.ones(12, 1)}
    mtl.collect(x, y)
    mtl.update_prior()
    mtl.start_bayes()
    y["p"][5] = 1e36
    with pytest.raises(errors.NonFiniteError, match="the update of head 'p' overflows"):
        mtl.backward(x.clone().requires_grad_(), y)


def test_the_head_whose_gradient_overflows_is_named() -> None:
    culprit, h, y = overflowing()
    with pytest.raises(errors.NonFiniteError, match="loss's gradient of head 'p' overflows"):
        ba.BayesAgg({"b": heads.Bernoulli(1), "p": culprit}).backward(
            h.requires_grad_(), {"b": y, "p": y}
        )


def test_the_head_whose_loss_overflows_is_named() -> None:
    good, bad = heads.Bernoulli(1, bias=False), heads.Poisson(1, bias=False)
    bad.weight.data.fill_(95.0)
    h, y = torch.ones(2, 1, requires_grad=True), torch.ones(2, 1)
    with pytest.raises(errors.NonFiniteError, match="the loss of head 'p' overflows"):
        ba.BayesAgg({"b": good, "p": bad}).backward(h, {"b": y, "p": y})


class Undefined(heads.Bernoulli):
    """A likelihood that is NaN at negative outputs, without a word about it."""

    def likelihood(self, outputs: Tensor) -> object:
        return dist.Bernoulli(logits=outputs.sqrt(), validate_args=False)


def test_a_likelihood_that_gives_nan_is_suspected(rng: torch.Generator) -> None:
    head = Undefined(3)
    h, y = torch.randn(8, 3, generator=rng), torch.ones(8, 1)
    with pytest.raises(errors.NonFiniteError, match=r"loss of head 'odd'.*likelihood .* gives NaN"):
        ba.BayesAgg({"odd": head}).backward(h.requires_grad_(), {"odd": y})
    for scheme in (inference.TaylorGGN(), inference.Laplace()):
        with pytest.raises(errors.NumericalError, match=r"'odd' holds NaN.*likelihood"):
            scheme.infer(head, h.detach(), y, priors.isotropic(head, 1.0))
