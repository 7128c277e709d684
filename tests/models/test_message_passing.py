"""The padded network alone: what must not change its result, and where it must work."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import GraphError, MessagePassing, NetworkError, PaddedGraphs, pad
from tests.models.molecules import random_molecules

SMALL = {"width": 8, "edge_width": 12, "out_features": 6}


def network(seed: int = 0, **changes: int) -> MessagePassing:
    torch.manual_seed(seed)
    return MessagePassing(**{**SMALL, **changes}).double()


def features_and_gradients(model: MessagePassing, graphs: object) -> tuple[Tensor, list[Tensor]]:
    out = model(graphs)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out.detach(), list(torch.autograd.grad((out * weights).sum(), list(model.parameters())))


def assert_same(a: tuple[Tensor, list[Tensor]], b: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(a[0], b[0], rtol=1e-10, atol=1e-12)
    for x, y in zip(a[1], b[1], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    extra=st.integers(0, 4),
    garbage=st.sampled_from([0.0, 1e30, float("inf"), float("nan")]),
    seed=st.integers(0, 1000),
)
def test_padding_and_diagonal_are_ignored(
    sizes: list[int], extra: int, garbage: float, seed: int
) -> None:
    model = network()
    molecules = random_molecules(sizes, seed)
    tight = pad(molecules)
    loose = pad(molecules, size=max(sizes) + extra)
    dirty = PaddedGraphs(
        nodes=loose.nodes.masked_fill(~loose.real()[..., None], garbage),
        edges=loose.edges.masked_fill(~loose.pairs()[..., None], garbage),
        atoms=loose.atoms,
    )
    assert_same(features_and_gradients(model, tight), features_and_gradients(model, dirty))


def test_garbage_in_the_padding_gets_no_gradient() -> None:
    group = pad(random_molecules([2, 4], seed=0))
    nodes = group.nodes.masked_fill(~group.real()[..., None], float("nan")).requires_grad_()
    edges = group.edges.masked_fill(~group.pairs()[..., None], float("nan")).requires_grad_()
    network()(PaddedGraphs(nodes, edges, group.atoms)).sum().backward()
    assert nodes.grad is not None
    assert edges.grad is not None
    assert not nodes.grad[~group.real()].any()
    assert not edges.grad[~group.pairs()].any()
    assert nodes.grad[group.real()].any()
    assert edges.grad[group.pairs()].any()


def test_molecules_do_not_see_each_other_and_keep_their_order() -> None:
    model = network()
    molecules = random_molecules([5, 1, 3, 3, 7], seed=1)
    alone = torch.cat([model(pad([molecule])) for molecule in molecules])
    assert alone.shape == (5, 6)
    assert len(alone.unique(dim=0)) == 5
    torch.testing.assert_close(model(pad(molecules)), alone, rtol=1e-10, atol=1e-12)
    groups = [pad(molecules[:2]), pad(molecules[2:3], size=9), pad(molecules[3:])]
    torch.testing.assert_close(model(groups), alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(groups[::-1]), alone[[3, 4, 2, 0, 1]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_atoms_have_no_order(seed: int) -> None:
    model = network()
    molecules = random_molecules([6, 4], seed)
    generator = torch.Generator().manual_seed(seed)
    shuffled = []
    for nodes, edges in molecules:
        order = torch.randperm(len(nodes), generator=generator)
        shuffled.append((nodes[order], edges[order][:, order]))
    assert_same(
        features_and_gradients(model, pad(molecules)), features_and_gradients(model, pad(shuffled))
    )


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    group = pad(random_molecules([4, 6, 2, 6, 5], seed=2))
    whole = features_and_gradients(model, group)
    row = 6 * 13 * 8 * 8  # bytes of one molecule: n · (edge_width + 1) · width doubles
    for molecules in (0, 1, 2):
        monkeypatch.setattr("models.edge_conv._CPU_CHUNK", row * molecules)
        assert_same(features_and_gradients(model, group), whole)


def test_first_and_second_derivatives() -> None:
    # Smooth apart from ReLU's kinks, which random values stay away from.
    torch.manual_seed(0)
    model = MessagePassing(width=2, edge_width=3, out_features=2, steps=2).double()
    group = pad(random_molecules([3, 1], seed=4))
    nodes = group.nodes.clone().requires_grad_()
    edges = group.edges.clone().requires_grad_()

    def function(nodes: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = model(PaddedGraphs(nodes, edges, group.atoms))
        return out

    assert torch.autograd.gradcheck(function, (nodes, edges), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (nodes, edges), fast_mode=True)


def test_batched_gradients_equal_single_ones() -> None:
    # How Jacobian-based multi-task methods call a backbone.
    model = network()
    out = model([pad(random_molecules([2, 3], seed=5)), pad(random_molecules([6], seed=6))])
    parameters = list(model.parameters())
    directions = torch.randn(4, *out.shape, dtype=out.dtype)
    together = torch.autograd.grad(
        out, parameters, directions, is_grads_batched=True, retain_graph=True
    )
    for k, direction in enumerate(directions):
        single = torch.autograd.grad(out, parameters, direction, retain_graph=True)
        for a, b in zip(together, single, strict=True):
            torch.testing.assert_close(a[k], b, rtol=1e-10, atol=1e-12)


def test_captured_as_one_graph() -> None:
    # fullgraph fails at any synchronisation with the host or shape that depends on values.
    model = network(steps=2, set2set_steps=1)
    groups = [pad(random_molecules([2, 3], seed=5)), pad(random_molecules([6, 1], seed=6))]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_same(features_and_gradients(compiled, groups), features_and_gradients(model, groups))


def test_autocast() -> None:
    model = network().float()
    group = pad(random_molecules([5, 4], seed=7, dtype=torch.float32))
    plain = model(group)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(group)
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), plain, rtol=0.0, atol=2e-2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_messages_of_fewer_digits() -> None:
    """A hundredth of a gradient is rounding; states, features and weights keep their dtype."""
    molecules = pad(random_molecules([5, 9, 3, 7], seed=1, dtype=torch.float32))
    torch.manual_seed(0)
    exact = MessagePassing()
    rounded = MessagePassing(messages=torch.bfloat16)
    rounded.load_state_dict(exact.state_dict())
    (out, gradients), (wanted, right) = (
        features_and_gradients(model, molecules) for model in (rounded, exact)
    )
    assert out.dtype == torch.float32
    assert 1e-5 < (out - wanted).norm() / wanted.norm() < 3e-3
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    found, true = (torch.cat([g.flatten() for g in all_]) for all_ in (gradients, right))
    assert 1e-5 < (found - true).norm() / true.norm() < 2e-2


def test_bit_equal_on_the_cpu() -> None:
    group = pad(random_molecules([9, 12, 7], seed=8, dtype=torch.float32))
    model = network().float()
    first, second = features_and_gradients(model, group), features_and_gradients(model, group)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_molecules_that_do_not_fit_the_network() -> None:
    model = network()
    with pytest.raises(GraphError, match=r"\(11, 5\), but the molecules have \(11, 4\)"):
        model(pad(random_molecules([2], seed=0, edges=4)))
    with pytest.raises(GraphError, match=r"molecules are torch.float32.*graphs.to"):
        model(pad(random_molecules([2], seed=0, dtype=torch.float32)))
    with pytest.raises(GraphError, match="no molecules"):
        model([])


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_settings_below_one(value: object) -> None:
    with pytest.raises(NetworkError, match=f"steps must be an integer of at least 1, got {value}"):
        MessagePassing(steps=value)  # type: ignore[arg-type]
