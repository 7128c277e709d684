"""Several batches in one step, one for each task or domain: it is one batch of mixed rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from several import RULES, life, same
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads

F64 = torch.float64
D = 5
#: Which heads have labels in each batch, and how many examples it has.
BATCHES = [(("mood",), 7), (("span", "tag"), 5), (("tag",), 4), (("span",), 3)]


def made(**settings: Any) -> tuple[nn.Module, ba.BayesAgg]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, D)).double()
    of = {
        "tag": heads.Bernoulli(D),
        "mood": heads.Gaussian(D, bias=True),
        "span": heads.Gaussian(D, 2, missing="nan"),
    }
    return net, ba.BayesAgg(of, generator=torch.Generator().manual_seed(0), **settings).double()


def data(rng: torch.Generator) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    xs, ys = [], []
    for names, size in BATCHES:
        span = torch.randn(size, 2, generator=rng, dtype=F64)
        span[torch.rand(size, 2, generator=rng) < 0.2] = torch.nan
        y = {
            "tag": (torch.rand(size, generator=rng) < 0.5).double(),
            "mood": torch.randn(size, generator=rng, dtype=F64),
            "span": span,
        }
        xs.append(torch.randn(size, 3, generator=rng, dtype=F64))
        ys.append({name: y[name] for name in names})
    return xs, ys


def apart(net: nn.Module, xs: list[Tensor], ys: list[dict[str, Tensor]]) -> tuple[Any, ...]:
    return ([(net(x), y) for x, y in zip(xs, ys, strict=True)],)


def mixed(net: nn.Module, xs: list[Tensor], ys: list[dict[str, Tensor]]) -> tuple[Any, ...]:
    """The rows of all in one tensor, with masks."""
    targets: dict[str, Any] = {}
    for name, tasks in (("tag", 1), ("mood", 1), ("span", 2)):
        values, seen = [], []
        for x, y in zip(xs, ys, strict=True):
            there = name in y
            one = y[name].reshape(-1, tasks) if there else torch.zeros(len(x), tasks, dtype=F64)
            values.append(one)
            seen.append(torch.full((len(x),), there))
        targets[name] = (torch.cat(values), torch.cat(seen))
    return net(torch.cat(xs)), targets


@pytest.mark.parametrize("name", RULES)
def test_batches_are_one_batch_of_mixed_rows(name: str, rng: torch.Generator) -> None:
    xs, ys = data(rng)
    found, expected = (
        life(*made(aggregation=RULES[name]()), way, xs, ys) for way in (apart, mixed)
    )
    assert len(found) > 20
    same(found, expected, 1e-9 if name in ("full", "full, dimension", "UPGrad") else 1e-12)


@pytest.mark.parametrize("joined", [True, False])
def test_weights_have_the_heads_order(joined: bool, rng: torch.Generator) -> None:
    """Batches that come in another order, all linked by a head or not."""
    xs, ys = data(rng)
    if joined:
        ys[0]["span"] = torch.randn(7, 2, generator=rng, dtype=F64)
    xs, ys = xs[::-1], ys[::-1]
    settings: dict[str, Any] = {
        "aggregation": RULES["power of each head"](),
        "keep_gradients": True,
    }
    infos = []
    for way in (apart, mixed):
        net, mtl = made(**settings)
        life(net, mtl, way, xs, ys, 2)
        assert mtl.info is not None
        infos.append(mtl.info)
    (one, other) = infos
    assert one.weights is not None
    assert other.weights is not None
    torch.testing.assert_close(one.weights, other.weights)
    assert one.gradients is not None
    assert list(one.gradients.groups) == ["tag", "mood", "span"]


def test_tokens_images_and_rows_in_one_step(rng: torch.Generator) -> None:
    """Images of two sizes, and sentences with features of their own."""
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=F64)  # noqa: E731
    of = {"depth": heads.Gaussian(D), "kind": heads.Categorical(D, 3), "mood": heads.Gaussian(2)}
    mtl = ba.BayesAgg(of, feature_axis=1).double()
    images = [draw(2, D, 3, 4).requires_grad_(), draw(1, D, 5, 2).requires_grad_()]
    text = draw(6, 2).requires_grad_()
    depth = [draw(2, 3, 4), draw(1, 5, 2)]
    kind = torch.randint(3, (1, 5, 2), generator=rng)
    losses = mtl.backward(
        [
            (images[0], {"depth": depth[0]}),
            (
                {"depth": images[1], "kind": images[1], "mood": text},
                {"depth": depth[1], "kind": kind},
            ),
            (text, {"mood": draw(6)}),
        ]
    )
    rows = torch.cat([h.detach().movedim(1, -1).reshape(-1, D) for h in images])
    flat = torch.cat([one.flatten() for one in depth])
    expected = (flat - mtl.heads["depth"](rows)[:, 0]).square().mean()
    torch.testing.assert_close(losses["depth"][0], expected.detach())
    for h in (*images, text):
        assert h.grad is not None
        assert h.grad.shape == h.shape
        assert h.grad.any()


def test_collected_and_refit_in_batches(rng: torch.Generator) -> None:
    xs, ys = data(rng)
    found = []
    for way in (apart, mixed):
        net, mtl = made()
        mtl.collect(*way(net, xs, ys))
        mtl.update_prior()
        found.append([prior.mean for prior in mtl.priors().values()])
        mtl.refit(zip((net(x) for x in xs), ys, strict=True))
        found[-1] += [posterior.mean for posterior in mtl.posteriors().values()]
    same(*found, 1e-10)


def test_what_is_no_list_of_batches_is_refused(rng: torch.Generator) -> None:
    xs, ys = data(rng)
    net, mtl = made()
    (pairs,) = apart(net, xs, ys)
    with pytest.raises(errors.TaskError, match="no batch"):
        mtl.backward([])
    with pytest.raises(errors.DtypeError, match="pairs"):
        mtl.backward([*pairs, net(xs[0])])
    with pytest.raises(errors.DtypeError, match="must be a tensor, not list"):
        mtl.backward(pairs, ys[0])
    with pytest.raises(errors.DtypeError, match="NoneType"):
        mtl.backward(net(xs[0]))
    with pytest.raises(errors.TaskError, match="leave the batch out"):
        mtl.backward([*pairs, (net(xs[0]), {})])
    with pytest.raises(errors.TaskError, match="'other'"):
        mtl.backward([*pairs, (net(xs[0]), {"other": ys[0]["mood"]})])
    with pytest.raises(errors.StateError, match="need no gradient"):
        mtl.backward([*pairs, (net(xs[0]).detach(), ys[0])])
    with pytest.raises(errors.ShapeError, match=r"'tag'.*\[examples, 5\]"):
        mtl.backward([*pairs, (net(xs[2])[:, :4], ys[2])])
    bad = ys[3]["span"].nan_to_num() / 0
    with pytest.raises(errors.NonFiniteError, match="'span'"):
        mtl.backward([*pairs, (net(xs[3]), {"span": bad})])
    assert all(p.grad is None for p in net.parameters())
