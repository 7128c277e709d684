"""Both forms of the network against each other."""

from __future__ import annotations

import sys

import pytest
import torch

from models import (
    MessagePassing,
    MessagePassingPyG,
    MissingPackageError,
    NetworkError,
    pad,
    to_geometric,
)
from tests.models.molecules import random_molecules

SMALL = {"width": 8, "edge_width": 12, "out_features": 6, "steps": 2, "set2set_steps": 4}


@pytest.fixture(autouse=True)
def _geometric() -> None:
    pytest.importorskip("torch_geometric", exc_type=ImportError)


def pair(dtype: torch.dtype, **settings: int) -> tuple[MessagePassing, MessagePassingPyG]:
    torch.manual_seed(0)
    padded = MessagePassing(**settings).to(dtype)
    torch.manual_seed(0)
    return padded, MessagePassingPyG(**settings).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str
)
@pytest.mark.parametrize("settings", [{}, SMALL], ids=["benchmark", "small"])
def test_outputs_and_gradients(
    dtype: torch.dtype, tolerance: float, settings: dict[str, int]
) -> None:
    padded, reference = pair(dtype, **settings)
    groups = [
        pad(random_molecules([1, 4, 2], seed=1, dtype=dtype), size=5),
        pad(random_molecules([9, 11], seed=2, dtype=dtype)),
    ]
    ours, theirs = padded(groups), reference(groups)
    assert ours.dtype == dtype
    assert float(theirs.detach().std()) > 0.01
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(ours)
    ours.backward(direction)
    theirs.backward(direction)
    theirs_by_name = dict(reference.named_parameters())
    for name, parameter in padded.named_parameters():
        wanted = theirs_by_name[name].grad
        assert wanted is not None
        assert wanted.any(), name
        scale = float(wanted.abs().max())
        torch.testing.assert_close(
            parameter.grad,
            wanted,
            rtol=0.0,
            atol=tolerance * scale,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_molecules_of_one_atom() -> None:
    padded, reference = pair(torch.float64, **SMALL)
    group = pad(random_molecules([1, 1], seed=3))
    ours = padded(group)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours, reference(group), rtol=1e-10, atol=1e-12)
    ours.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in padded.parameters())


@pytest.mark.parametrize("settings", [{}, SMALL], ids=["benchmark", "small"])
def test_one_state_dict(settings: dict[str, int]) -> None:
    padded, reference = pair(torch.float64, **settings)
    for name, value in padded.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name]), name  # one seed, one start
    group = pad(random_molecules([3, 5], seed=4))
    for source, target in ((padded, reference), (reference, padded)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.mul_(1.5).add_(0.01)
        assert not torch.allclose(source(group), target(group))
        target.load_state_dict(source.state_dict(), strict=True)
        torch.testing.assert_close(source(group), target(group), rtol=1e-10, atol=1e-12)
    names = [name for name, _ in padded.named_parameters()]
    assert names == [name for name, _ in reference.named_parameters()]  # an optimiser's order


def test_a_seed_moves_the_random_state_as_far() -> None:
    torch.manual_seed(0)
    MessagePassing(**SMALL)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    MessagePassingPyG(**SMALL)
    assert torch.equal(torch.get_rng_state(), state)


def test_conversion() -> None:
    molecules = random_molecules([3, 1, 4], seed=5)
    batch = to_geometric([pad(molecules[:2]), pad(molecules[2:], size=6)])
    assert batch.num_graphs == 3
    assert batch.batch.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    for data, (nodes, edges) in zip(batch.to_data_list(), molecules, strict=True):
        n = len(nodes)
        assert torch.equal(data.x, nodes)
        assert data.edge_index.shape == (2, n * (n - 1))
        source, target = data.edge_index
        assert not (source == target).any()
        assert torch.equal(data.edge_attr, edges[target, source])
    _, reference = pair(torch.float64, **SMALL)
    torch.testing.assert_close(reference(batch), reference(pad(molecules)))


def test_settings_are_checked_in_both() -> None:
    with pytest.raises(NetworkError, match="width"):
        MessagePassingPyG(width=0)


def test_without_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(MissingPackageError, match=r"torch-geometric.*models\.MessagePassing"):
        MessagePassingPyG()
    with pytest.raises(MissingPackageError):
        to_geometric(pad(random_molecules([2], seed=0)))
