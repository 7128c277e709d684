"""Our methods against slow implementations written from their papers' equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from two_tasks import WIDTH, build, fresh, problem, train

from bayesagg_pyro import heads
from experiments.methods import Method
from experiments.methods.actor_critic import SoftActorCritic
from experiments.methods.ensembles import average

agg = pytest.importorskip("torchjd.aggregation")


def task_gradients(method: Any, shared: bool) -> tuple[list[float], np.ndarray]:
    """Losses and one gradient per task, by one whole backward pass each."""
    inputs, targets = problem()
    losses, rows = [], []
    for name in targets:
        features = method.backbone(inputs)
        leaf = features if shared else features.detach().requires_grad_()
        loss = (method.by_name[name](leaf) - targets[name]).square().mean()
        wanted = list(method.backbone.parameters()) if shared else [leaf]
        grads = torch.autograd.grad(loss, wanted)
        losses.append(float(loss.detach()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]).double().numpy())
    return losses, np.stack(rows)


def step(method: Method) -> np.ndarray:
    """Gradient of the shared parameters after one `backward`."""
    for parameter in method.parameters():
        parameter.grad = None
    method.backward(*problem())
    grads = [p.grad for p in method.backbone.parameters()]
    return torch.cat([g.reshape(-1) for g in grads if g is not None]).double().numpy()


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    scale = np.abs(np.asarray(expected)).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


def weighted(method: Method, weights: Any) -> np.ndarray:
    return np.asarray(weights) @ task_gradients(method, shared=True)[1]


def test_ls_and_si() -> None:
    method = build("ls")
    close(step(method), weighted(method, [1, 1]))
    method = build("si")
    losses, _ = task_gradients(method, shared=True)
    close(step(method), weighted(method, [1 / loss for loss in losses]))


def test_rlw() -> None:
    method = build("rlw", seed=0)
    method = build("rlw")
    method.generator = torch.Generator().manual_seed(11)  # type: ignore[attr-defined]
    z = torch.randn(2, generator=torch.Generator().manual_seed(11)).double().numpy()
    close(step(method), weighted(method, 2 * np.exp(z) / np.exp(z).sum()))


def test_rlw_repeats_with_a_seed_and_leaves_the_global_generator() -> None:
    one, two = build("rlw", seed=3), build("rlw", seed=3)
    before = torch.get_rng_state()
    close(step(one), step(two), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_dwa() -> None:
    method = build("dwa", temperature=0.5)
    epochs = torch.stack(train(method, epochs=3, steps=4)).double().numpy().reshape(3, 4, 2).mean(1)
    ratio = epochs[2] / epochs[1] / 0.5
    expected = 2 * np.exp(ratio) / np.exp(ratio).sum()
    assert abs(expected[0] - expected[1]) > 1e-3
    close(step(method), weighted(method, expected))


def test_dwa_begins_as_ls() -> None:
    close(step(build("dwa")), step(build("ls")), 0)


def test_uw() -> None:
    method: Any = build("uw")
    with torch.no_grad():
        method.log_variance.copy_(torch.tensor([0.3, -0.7]))
    losses, _ = task_gradients(method, shared=True)
    close(step(method), weighted(method, [math.exp(-0.3) / 2, math.exp(0.7) / 2]))
    expected = [(1 - loss * math.exp(-s)) / 2 for loss, s in zip(losses, [0.3, -0.7], strict=True)]
    close(method.log_variance.grad.numpy(), expected)


def shortest(rows: np.ndarray) -> np.ndarray:
    """Weights of the shortest convex combination, by a general solver."""
    gram = rows @ rows.T / (rows**2).sum(1).max()
    found = minimize(
        lambda w: w @ gram @ w,
        np.full(len(rows), 1 / len(rows)),
        jac=lambda w: 2 * gram @ w,
        bounds=[(0, 1)] * len(rows),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.asarray(found.x)


@pytest.mark.parametrize("name", ["mgda", "mgda-ub"])
def test_mgda(name: str) -> None:
    method: Any = build(name, epsilon=1e-6, max_iters=2000)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    rows *= torch.tensor([1.0, 0.8, 1.3, 0.6], dtype=torch.float64)[:, None]
    weights = shortest(rows.numpy())
    assert (weights > 0.01).sum() >= 3
    combined = method.combine(rows)
    close(combined.direction.numpy(), weights @ rows.numpy(), 1e-3)
    close(combined.weights.numpy(), weights, 1e-2)
    # In the network, gradients of the features or of all shared parameters decide.
    train(method, epochs=2)
    weights = shortest(task_gradients(method, shared=name == "mgda")[1])
    close(step(method), weighted(method, weights), 1e-2)


def aligned(rows: np.ndarray, mode: str) -> np.ndarray:
    """Algorithm 1 of the paper, by the singular values of the matrix itself."""
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    values = np.where(values > 1e-7 * values[0], values, 0)
    kept = values[values > 0]
    length = {
        "min": kept.min(),
        "median": np.sort(kept)[(len(kept) - 1) // 2],
        "rmse": np.sqrt((kept**2).mean()),
    }[mode]
    inverse = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
    balance: np.ndarray = length * (left * inverse) @ left.T
    return balance.mean(1)


@pytest.mark.parametrize("mode", ["min", "median", "rmse"])
def test_aligned_weights(mode: Any) -> None:
    combine = build("aligned-mtl", scale_mode=mode).combine
    rows = torch.randn(5, 40, dtype=torch.float64) * torch.logspace(-2, 2, 5)[:, None]
    direction, weights = combine(rows)
    close(weights.numpy(), aligned(rows.numpy(), mode), 1e-8)
    close((weights @ rows).numpy(), direction.numpy(), 1e-8)
    order = torch.tensor([3, 1, 4, 0, 2])
    close(combine(rows[order]).weights.numpy(), weights[order].numpy())
    close(combine(rows * 1e-9).weights.numpy(), weights.numpy())


def test_aligned_edges() -> None:
    combine = build("aligned-mtl").combine
    row = torch.randn(1, 9)
    close(combine(row).weights.numpy(), [1.0])
    same = row.expand(3, -1)  # identical tasks: their mean
    close(combine(same).direction.numpy(), row[0].numpy())
    assert not combine(torch.zeros(3, 4)).direction.any()


@pytest.mark.parametrize(("name", "shared"), [("aligned-mtl", True), ("aligned-mtl-ub", False)])
def test_aligned_method(name: str, shared: bool) -> None:
    method: Any = build(name, scale_heads=True)
    weights = aligned(task_gradients(method, shared)[1], "min")
    close(step(method), weighted(method, weights), 1e-4)
    inputs, targets = problem()
    head = method.by_name["large"]
    loss = (head(method.backbone(inputs).detach()) - targets["large"]).square().mean()
    (own,) = torch.autograd.grad(loss, head.weight)
    close(head.weight.grad.numpy(), (2 * weights[1] * own).numpy(), 1e-4)


@pytest.mark.parametrize("level", ["parameters", "representation"])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("mgda", agg.MGDA),
        ("cagrad", lambda: agg.CAGrad(c=0.4)),
        ("imtl-g", agg.IMTLG),
        ("pcgrad", agg.PCGrad),  # two tasks: one order only
        ("nash-mtl", lambda: agg.NashMTL(n_tasks=2)),
        ("torchjd:UPGrad", agg.UPGrad),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_published_methods_are_torchjd(name: str, level: str, make: Callable[[], Any]) -> None:
    method: Any = build(name, level=level)
    _, rows = task_gradients(method, shared=level == "parameters")
    direction = make()(torch.as_tensor(rows))
    found = step(method)
    if level == "parameters":
        close(found, direction.numpy(), 1e-4)
    else:
        features = method.backbone(problem()[0])
        grads = torch.autograd.grad(
            features, list(method.backbone.parameters()), direction.view_as(features).float()
        )
        close(found, torch.cat([g.reshape(-1) for g in grads]).numpy(), 1e-4)
    inputs, targets = problem()  # heads descend their own losses
    for key, head in method.by_name.items():
        loss = (head(method.backbone(inputs).detach()) - targets[key]).square().mean()
        close(head.weight.grad.numpy(), torch.autograd.grad(loss, head.weight)[0].numpy())


def test_gradients_add_up() -> None:
    method = build("mgda")
    once = step(method)
    method.backward(*problem())
    twice = torch.cat([p.grad.reshape(-1) for p in method.backbone.parameters()])  # type: ignore[union-attr]
    close(twice.numpy(), 2 * once)


def test_missing_targets_are_left_out() -> None:
    inputs, targets = problem()
    mask = torch.arange(len(inputs))[:, None] < 40
    for name in ("ls", "si", "mgda", "ensemble-heads"):
        method = build(name)
        losses = method.backward(
            inputs,
            {"small": (targets["small"], mask), "large": targets["large"]},  # type: ignore[dict-item]
        )
        whole = build(name).backward(inputs[:40], {k: v[:40] for k, v in targets.items()})
        torch.testing.assert_close(losses["small"], whole["small"])


def agent(seed: int = 0, **given: Any) -> SoftActorCritic:
    generator = torch.Generator().manual_seed(seed)
    return SoftActorCritic(3, generator=generator, device=torch.device("cpu"), **given)


def test_agent_acts_with_the_density_it_says() -> None:
    sac = agent()
    state = torch.rand(50, 3)
    mean, log_deviation = sac.actor(state).chunk(2, -1)
    generator = torch.Generator()
    generator.set_state(sac.generator.get_state())
    noise = torch.randn(50, 3, generator=generator)
    weights, density = sac._draw(state)
    policy = torch.distributions.Normal(mean, log_deviation.clamp(-20, 2).exp())
    logits = mean + policy.scale * noise
    torch.testing.assert_close(weights, 3 * logits.softmax(-1))
    torch.testing.assert_close(density, policy.log_prob(logits).sum(-1), rtol=1e-4, atol=1e-4)


def test_agent_learns_which_action_pays() -> None:
    """A bandit whose reward is the first weight."""
    sac = agent(rate=3e-3, discount=0.0, temperature=0.02, batch_size=64, capacity=500)
    state = torch.ones(3)
    before = torch.stack([sac.act(state) for _ in range(100)])[:, 0].mean()
    for _ in range(500):
        action = 3 * torch.randn(3).softmax(0)
        sac.remember(state, action, action[0], state)
    sac.learn(250)
    after = torch.stack([sac.act(state) for _ in range(100)])[:, 0].mean()
    assert after > before + 0.5


def test_gap_balancing_remembers_what_its_weights_did() -> None:
    method: Any = build("igbv2", seed=1, every=1000)
    history = torch.stack(train(method, epochs=3, steps=3)).double()
    base = history[:3].mean(0)
    states = history[3:] / base
    rows = method.agent._memory[: method.agent._remembered].double()
    assert len(rows) == 5
    torch.testing.assert_close(rows[:, :2], states[:-1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rows[:, 5:], states[1:], rtol=1e-4, atol=1e-6)
    reward = (states[:-1] - states[1:]).amin(1)
    torch.testing.assert_close(rows[:, 4], reward, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(rows[:, 2:4].sum(1), torch.full((5,), 2.0).double())
    assert [method.phase(epoch) for epoch in range(3)] == ["random", "random", "agent"]


@pytest.mark.parametrize("name", ["si", "igbv2"])
def test_logarithms_do_not_see_units(name: str) -> None:
    class Scaled(heads.Gaussian):
        factor = 1

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().loss(outputs, targets) * self.factor

    def scaled(factor: int) -> tuple[nn.Module, dict[str, heads.Head]]:
        backbone, found = fresh()
        found["large"] = Scaled(WIDTH, bias=True)
        found["large"].factor = factor
        return backbone, found

    one, two = (build(name, partial(scaled, factor), seed=1) for factor in (1, 1024))
    two.load_state_dict(one.state_dict())
    train(one, epochs=3, steps=3)
    train(two, epochs=3, steps=3)
    for a, b in zip(one.backbone.parameters(), two.backbone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", ["small", "large"])
def test_stl_is_each_task_alone(task: str) -> None:
    together: Any = build("stl")
    backbone, found = fresh()
    index = list(found).index(task)
    backbone.load_state_dict(together.backbone[index].state_dict())
    head = found[task]
    head.load_state_dict(together.by_name[task].state_dict())
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-2)
    inputs, targets = problem()
    for _ in range(5):
        optimizer.zero_grad()
        head.loss(head(backbone(inputs)), targets[task]).mean().backward()
        optimizer.step()
    train(together, epochs=1, steps=5)
    assert torch.equal(together.predict(inputs)[task], head(backbone(inputs)))


def test_head_ensemble_is_its_members_apart() -> None:
    method: Any = build("ensemble-heads", members=5)
    found = step(method)
    inputs, targets = problem()
    total: Any = 0.0
    features = method.backbone(inputs)
    for member in range(5):
        for name, head in method.by_name.items():
            outputs = head(features, method.weights[name][member])
            total = total + (outputs - targets[name]).square().mean()
    expected = torch.autograd.grad(total / 5, list(method.backbone.parameters()), retain_graph=True)
    close(found, torch.cat([g.reshape(-1) for g in expected]).numpy())
    for weights in method.weights.values():
        close(weights.grad.numpy(), torch.autograd.grad(total, weights, retain_graph=True)[0])
        assert not torch.equal(weights[0], weights[1])


def rated() -> tuple[nn.Module, dict[str, heads.Head]]:
    """Ordered classes, whose cut-points are learned beside the weights."""
    network = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh())
    return network, {"rating": heads.Ordinal(WIDTH, 3, cutpoints=(0.0, 1.0), learn_cutpoints=True)}


def ratings() -> tuple[Tensor, dict[str, Tensor]]:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(3))
    return x, {"rating": (x[:, :1] > 1).long() + (x[:, :1] > 1.5).long()}


def test_members_share_cut_points_that_descend_the_mean_loss() -> None:
    method: Any = build("ensemble-heads", rated, members=5)
    (head,) = method.by_name.values()
    assert any(parameter is head.free_cutpoints for parameter in method.parameters())
    assert not any(parameter is head.weight for parameter in method.parameters())
    inputs, targets = ratings()
    free = head.free_cutpoints.detach().double().requires_grad_()
    outputs = head(method.backbone(inputs), method.weights["rating"]).detach().double()
    below = torch.cat([free[:, :1], free[:, :1] + free[:, 1:].exp()], 1) - outputs  # [5, B, 2]
    sure = nn.functional.pad(below.sigmoid(), (1, 0)), nn.functional.pad(below.sigmoid(), (0, 1))
    probabilities = torch.where(torch.arange(3) == 2, 1.0, sure[1]) - sure[0]
    loss = -probabilities.gather(-1, targets["rating"].expand(5, -1, 1)).log().mean()
    (expected,) = torch.autograd.grad(loss, free)
    for times in (1, 2):  # a gradient that is there is added to
        method.backward(inputs, targets)
        close(head.free_cutpoints.grad.double().numpy(), times * expected.numpy())


def test_networks_of_an_ensemble_average_cut_points_with_outputs() -> None:
    """P(y <= k) = F(mean of θ_k - u): not one network's cut-points against another's outputs."""
    method: Any = build("ensemble-networks", rated, members=2)
    inputs, targets = ratings()
    for shift, found in zip((0.0, 3.0), method.every, strict=True):
        found["rating"].free_cutpoints.data += torch.tensor([[shift, shift / 3]])
    theta = torch.stack([found["rating"].cutpoints for found in method.every]).mean(0).double()
    outputs = method.predict(inputs)["rating"].double()
    below = torch.sigmoid(theta - outputs)
    ends = torch.zeros(64, 1), torch.ones(64, 1)
    expected = torch.cat([ends[0], below, ends[1]], 1).diff(dim=1)
    found = method.predictive(inputs)["rating"].probs[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    before = {n: v.clone() for n, v in method.heads.state_dict().items()}
    method.calibrate([(inputs, targets)])
    assert all(torch.equal(v, before[n]) for n, v in method.heads.state_dict().items())


def test_ensembles_average_probabilities() -> None:
    outputs = torch.randn(6, 4, 3)
    classes, binary = heads.Categorical(5, 3), heads.Bernoulli(5, tasks=3)
    torch.testing.assert_close(average(classes, outputs).exp(), outputs.softmax(-1).mean(0))
    torch.testing.assert_close(average(binary, outputs).sigmoid(), outputs.sigmoid().mean(0))
    torch.testing.assert_close(average(heads.Gaussian(5, tasks=3), outputs), outputs.mean(0))
    far = torch.tensor([[[80.0]], [[90.0]]])
    assert average(heads.Bernoulli(5, tasks=1), far).isfinite().all()


def test_networks_of_an_ensemble_differ() -> None:
    method: Any = build("ensemble-networks", members=3)
    first = [next(network.parameters()) for network in method.backbone]
    assert not torch.equal(first[0], first[1])
    train(method, epochs=1, steps=2)
    inputs, _ = problem()
    alone = [heads_["small"](net(inputs)) for net, heads_ in method._members()]
    torch.testing.assert_close(method.predict(inputs)["small"], torch.stack(alone).mean(0))
