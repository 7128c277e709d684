"""Linear heads on a fixed non-linear map of the features: exact moments through its Jacobian."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from bayesagg_pyro import errors, gradients, heads, inference, linalg, posteriors, priors
from bayesagg_pyro.targets import Targets


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Softplus())


def embedded(head: heads.Head) -> heads.Head:
    return head.embed(heads.Body(body().double(), 4))


def features(rng: torch.Generator, n: int = 9) -> Tensor:
    return torch.randn(n, 4, generator=rng, dtype=torch.float64)


def dense_posterior(rng: torch.Generator, head: heads.Head) -> posteriors.Gaussian:
    size = head.weight_size
    root = torch.randn(head.tasks, size, size, generator=rng, dtype=torch.float64)
    precision = root @ root.mT / size + 2 * torch.eye(size, dtype=torch.float64)
    mean = torch.randn(head.tasks, size, generator=rng, dtype=torch.float64)
    return posteriors.Gaussian(mean, precision).replace(outputs_per_task=head.outputs_per_task)


def gradients_by_autograd(head: heads.Head, weight: Tensor, h: Tensor, y: Tensor) -> Tensor:
    """[S, tasks, B, d], one draw, task and example after the other."""
    draws = []
    for w in weight:
        leaf = h.clone().requires_grad_()
        loss = head.loss(head(leaf, w), y)
        rows = [
            torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)[0]
            for t in range(head.tasks)
        ]
        draws.append(torch.stack(rows))
    return torch.stack(draws)


def targets_for(head: heads.Head, rng: torch.Generator, n: int) -> Tensor:
    if head.target_kind == "class":
        assert isinstance(head, heads.Categorical)
        return torch.randint(head.classes, (n, head.tasks), generator=rng)
    y = torch.randn(n, head.tasks, generator=rng, dtype=torch.float64)
    return (y > 0).double() if head.target_kind == "binary" else y


HEADS = {
    "gaussian": lambda: heads.Gaussian(4, tasks=2, bias=True),
    "no bias": lambda: heads.Gaussian(4, tasks=3),
    "bernoulli": lambda: heads.Bernoulli(4, tasks=2),
    "softmax": lambda: heads.Categorical(4, 3),
}


@pytest.mark.parametrize("kind", HEADS)
def test_samples_are_the_gradients_of_the_loss(kind: str, rng: torch.Generator) -> None:
    head = embedded(HEADS[kind]())
    h, posterior = features(rng), dense_posterior(rng, head)
    y = targets_for(head, rng, len(h))
    grad = gradients.distribution(head, posterior, h, y)
    drawn = grad.sample((3,), generator=torch.Generator().manual_seed(1))
    weight = posterior.sample((3,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn, gradients_by_autograd(head, weight, h, y))


@pytest.mark.parametrize("kind", ["gaussian", "no bias", "bernoulli"])
def test_moments_match_a_large_sample(kind: str, rng: torch.Generator) -> None:
    head = embedded(HEADS[kind]())
    h, posterior = features(rng, 3), dense_posterior(rng, head)
    y = targets_for(head, rng, len(h))
    exact = gradients.distribution(head, posterior, h, y)
    draws = 40_000
    sample = exact.sample((draws,), generator=rng)
    std = sample.std(0)
    assert ((exact.mean - sample.mean(0)).abs() < 5 * std / draws**0.5).all()
    torch.testing.assert_close(exact.variance, sample.var(0), rtol=0.12, atol=0)
    centred = sample - sample.mean(0)
    covariance = torch.einsum("stbd,stbe->tbde", centred, centred) / (draws - 1)
    scale = std[..., :, None] * std[..., None, :]
    assert ((exact.covariance_matrix - covariance).abs() < 0.1 * scale).all()
    torch.testing.assert_close(
        exact.variance, exact.covariance_matrix.diagonal(dim1=-2, dim2=-1), rtol=1e-6, atol=1e-9
    )


def test_an_invertible_linear_map_changes_no_moment(rng: torch.Generator) -> None:
    """The head wᵀ A h with prior on w is a linear head with prior on Aᵀ w."""
    layer = nn.Linear(4, 4, bias=False).double()
    plain, mapped = heads.Gaussian(4, tasks=2), heads.Gaussian(4, tasks=2)
    mapped.embed(heads.Body(layer, 4))
    h = features(rng)
    y = targets_for(plain, rng, len(h))
    prior = dense_posterior(rng, plain)
    inverse = torch.linalg.inv(layer.weight.detach())  # v = Aᵀ w, so w = A⁻ᵀ v
    moved = posteriors.Gaussian(
        prior.mean @ inverse,
        layer.weight.detach() @ prior.precision_matrix @ layer.weight.detach().T,
    )
    scheme = inference.Conjugate()
    one = gradients.distribution(plain, scheme.infer(plain, h, y, prior), h, y)
    two = gradients.distribution(mapped, scheme.infer(mapped, h, y, moved), h, y)
    torch.testing.assert_close(one.mean, two.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.variance, two.variance, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.covariance_matrix, two.covariance_matrix, rtol=1e-8, atol=1e-8)


def test_masks_and_weights_count(rng: torch.Generator) -> None:
    head = embedded(heads.Bernoulli(4, tasks=2))
    h, prior = features(rng), priors.isotropic(head, 1.0)
    y = targets_for(head, rng, len(h))
    mask = torch.rand(y.shape, generator=rng) > 0.4
    weight = torch.rand(y.shape, generator=rng, dtype=torch.float64)
    posterior = inference.TaylorGGN().infer(head, h, (y, mask, weight), prior)
    again = inference.TaylorGGN().infer(head, h, (1 - y).where(~mask, y), prior)
    assert not torch.allclose(posterior.mean, again.mean)
    flipped = inference.TaylorGGN().infer(head, h, ((1 - y).where(~mask, y), mask, weight), prior)
    torch.testing.assert_close(posterior.mean, flipped.mean)
    grad = gradients.distribution(head, posterior, h, (y, mask, weight))
    assert (grad.mean[~mask.T] == 0).all()
    plain = gradients.distribution(head, posterior, h, (y, mask))
    torch.testing.assert_close(grad.mean, plain.mean * weight.mT[..., None])


def test_the_log_joint_is_the_sum_of_its_parts(rng: torch.Generator) -> None:
    head = embedded(heads.Gaussian(4, tasks=2, noise_scale=0.5))
    h, prior = features(rng), priors.isotropic(head, 2.0)
    y = targets_for(head, rng, len(h))
    weight = torch.randn(3, 2, head.weight_size, generator=rng, dtype=torch.float64)
    found = inference.log_joint(head, weight, h, head.parse_targets(y, len(h)), prior)
    outputs = torch.stack([head.design(h) @ w.T for w in weight])
    normal = torch.distributions.Normal(outputs, 0.5).log_prob(y).sum(1)
    torch.testing.assert_close(found, normal + prior.log_prob(weight))
    mask = torch.rand(y.shape, generator=rng) > 0.5
    parsed = head.parse_targets((y, mask), len(h))
    masked = inference.log_likelihood(head, weight, h, parsed)
    each = torch.distributions.Normal(outputs, 0.5).log_prob(y)
    torch.testing.assert_close(masked, (each * mask).sum(1))


def test_the_jacobian_in_parts_is_the_whole(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = heads.Body(body(), 4)
    h = torch.randn(7, 4, generator=rng)
    whole = embedding.jacobian(h)
    assert whole.shape == (7, 5, 4)
    assert whole.dtype == torch.float32
    monkeypatch.setattr("bayesagg_pyro.heads._embedding.BLOCK", 50)
    torch.testing.assert_close(embedding.jacobian(h), whole)
    by_example = torch.stack(
        [torch.autograd.functional.jacobian(embedding, x[None])[0, :, 0] for x in h]
    )
    torch.testing.assert_close(whole, by_example)
    assert heads.Body(nn.Linear(4, 2, bias=False).requires_grad_(False), 4).jacobian(h).shape == (
        7,
        2,
        4,
    )


def test_copies_and_states_hold_the_map(rng: torch.Generator) -> None:
    head = embedded(heads.Bernoulli(4, tasks=2))
    other = embedded(heads.Bernoulli(4, tasks=2))
    h = features(rng).float()
    assert not torch.equal(head(h), other(h))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(h), other(h))
    assert torch.equal(copy.deepcopy(head)(h), head(h))
    assert head.design_matrix(h).dtype == linalg.head_dtype(h.device)
    assert not head.design_matrix(h).requires_grad


def test_what_cannot_be_embedded_is_refused() -> None:
    with pytest.raises(errors.SettingError, match="normalises over the batch"):
        heads.Body(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 4)
    with pytest.raises(errors.SettingError, match="draws random numbers"):
        heads.Body(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), 4)
    with pytest.raises(errors.ShapeError, match="heads need"):
        heads.Body(nn.Flatten(0), 4)
    with pytest.raises(errors.SettingError, match="of 5 features, the embedding of 4"):
        heads.Gaussian(5).embed(heads.Body(body(), 4))

    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with pytest.raises(errors.SettingError, match="one by one"):
        heads.Body(Mixing(), 4)
    with pytest.raises(errors.SettingError, match="Module is needed, not str"):
        heads.Gaussian(4).embed("tanh")
    with pytest.raises(errors.ShapeError, match=r"does not take \[3, 4\].*multiplied"):
        heads.Gaussian(4).embed(torch.nn.Linear(3, 2))


def test_a_module_is_embedded_as_it_is(rng: torch.Generator) -> None:
    module = body()
    head = heads.Bernoulli(4, tasks=2).embed(module)
    h = features(rng).float()
    expected = module(h) @ head.weight[:, :-1].mT + head.weight[:, -1]
    torch.testing.assert_close(head(h), expected)


def test_a_formula_for_linear_heads_does_not_serve_an_embedded_one(rng: torch.Generator) -> None:
    class Mine(heads.Gaussian):
        pass

    from bayesagg_pyro.gradients import _registry

    before = dict(_registry._formulas)

    @gradients.register(Mine, posteriors.Gaussian)
    def wrong(head: heads.Head, posterior: object, h: Tensor, targets: Targets) -> None:
        raise AssertionError("not for this head")

    try:
        head = embedded(Mine(4, tasks=1))
        h = features(rng)
        grad = gradients.distribution(head, dense_posterior(rng, head), h, h[:, :1])
        assert grad.mean.shape == (1, len(h), 4)
    finally:
        _registry._formulas.clear()
        _registry._formulas.update(before)


def test_conditional_sampling_of_logits_says_that_it_is_for_linear_heads(
    rng: torch.Generator,
) -> None:
    head = embedded(heads.Categorical(4, 3))
    h = features(rng)
    y = targets_for(head, rng, len(h))
    posterior = dense_posterior(rng, head)
    with pytest.raises(errors.DtypeError, match="without embedding"):
        gradients.distribution(head, posterior, h, y, estimator=gradients.Conditional())
