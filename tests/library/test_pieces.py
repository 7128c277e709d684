"""A batch in pieces is the batch, although the backbone keeps the graph of one piece at a time."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.checkpoint import checkpoint

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors

#: Uneven pieces of 24 examples.
CUTS = [slice(0, 9), slice(9, 10), slice(10, 24)]

SETTINGS: dict[str, Any] = {
    "closed forms": dict,
    "deferred": lambda: {"prior": priors.Running(40.0), "validate": "deferred"},
    "previous": lambda: {"prior": priors.PreviousBatch()},
    "sampled": lambda: {
        "inference": inference.Ensemble(4, refresh=2),
        "estimator": gradients.MonteCarlo(8),
        "aggregation": aggregation.PerSample(aggregation.Mean(), samples=2),
    },
}


class Net:
    """A backbone in float64 under three heads, of whose labels some are missing."""

    def __init__(self, *layers: nn.Module, bayes: bool = True, **settings: Any) -> None:
        torch.manual_seed(0)
        kinds = {"r": heads.Gaussian(5, 2), "b": heads.Bernoulli(5), "c": heads.Categorical(5, 3)}
        self.backbone = nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 5)).double()
        own = torch.Generator().manual_seed(4)  # apart from the backbone's draws
        self.mtl = ba.BayesAgg(kinds, generator=own, **settings).double()
        self.x = torch.randn(24, 4, dtype=torch.float64)
        mask = torch.rand(24, 2) > 0.3
        weight = torch.rand(24, 2, dtype=torch.float64)
        self.y: dict[str, Any] = {
            "r": (self.x[:, :2].sin(), mask, weight),
            "b": (self.x[:, :1] > 0).double(),
            "c": self.x[:, :3].argmax(1),
        }
        if bayes:
            self.mtl.collect(self.backbone(self.x).detach(), self.y)
            self.mtl.update_prior()
            self.mtl.start_bayes()
        torch.manual_seed(1)

    def targets(self, rows: slice) -> dict[str, Any]:
        values, mask, weight = (part[rows] for part in self.y["r"])
        plain = bool(mask.all()) and rows.stop == 10
        found = {"r": values if plain else (values, mask, weight), "c": self.y["c"][rows]}
        return found if rows.stop == 10 else found | {"b": self.y["b"][rows]}

    def whole(self) -> dict[str, Any]:
        """All targets, without those that are left out of the second piece."""
        labelled = torch.ones(24, 1, dtype=torch.bool)
        labelled[9] = False
        return self.y | {"b": (self.y["b"], labelled)}

    def pieces(self) -> list[tuple[Tensor, dict[str, Any]]]:
        return [(self.x[rows], self.targets(rows)) for rows in CUTS]

    def found(self) -> list[Tensor]:
        weights = [*self.backbone.parameters(), *self.mtl.parameters()]
        return [w.grad for w in weights if w.grad is not None]


def close(one: Net, two: Net, losses: Any, others: Any, tolerance: float = 1e-10) -> None:
    assert len(one.found()) == len(two.found()) > 4
    for a, b in zip(one.found(), two.found(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for name in losses:
        torch.testing.assert_close(losses[name], others[name], rtol=1e-10, atol=1e-12)
    state, other = one.mtl.state_dict(), two.mtl.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("kind", SETTINGS)
def test_pieces_are_the_batch(kind, bayes) -> None:
    one, two = (Net(bayes=bayes, **SETTINGS[kind]()) for _ in range(2))
    for _ in range(2):
        losses = one.mtl.backward_in_pieces(one.backbone, iter(one.pieces()))
        others = two.mtl.backward(two.backbone(two.x), two.whole())
    close(one, two, losses, others)
    one.mtl.update_prior()
    two.mtl.update_prior()
    close(one, two, losses, others)


def test_features_with_more_axes(rng) -> None:
    """Pixels of images of different sizes: the pieces' rows make up the batch."""
    found = []
    for whole in (True, False):
        torch.manual_seed(0)
        backbone = nn.Conv2d(2, 4, 1).double()
        mtl = ba.BayesAgg({"r": heads.Gaussian(4), "c": heads.Categorical(4, 3)}, feature_axis=1)
        images = [torch.randn(n, 2, h, 3, dtype=torch.float64) for n, h in ((2, 3), (1, 5))]
        targets = [{"r": x[:, :1].sin(), "c": (x[:, 0] > 0).long()} for x in images]
        if whole:
            rows = torch.cat([backbone(x).movedim(1, -1).flatten(0, -2) for x in images])
            joint = {
                "r": torch.cat([y["r"].reshape(-1, 1) for y in targets]),
                "c": torch.cat([y["c"].flatten() for y in targets]),
            }
            mtl.backward(rows, joint)
        else:
            mtl.backward_in_pieces(backbone, zip(images, targets, strict=True))
        found.append(
            [*(p.grad for p in backbone.parameters()), *(p.grad for p in mtl.parameters())]
        )
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


class TwoLevels(nn.Module):
    """Features of tokens for one head, of sentences for another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pool = nn.Linear(4, 6).double(), nn.Linear(6, 5).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.embed(x).tanh()
        return {"tag": tokens, "mood": self.pool(tokens.mean(1)), "span": tokens}


def test_heads_that_read_different_features() -> None:
    """In sentences of different lengths, where some pieces have labels of one head alone."""
    x = [torch.randn(n, length, 4, dtype=torch.float64) for n, length in ((3, 4), (2, 7), (4, 2))]
    y: list[dict[str, Tensor]] = [
        {"tag": (one[..., 0] > 0).double(), "span": one[..., 1], "mood": one.mean((1, 2))[:, None]}
        for one in x
    ]
    del y[1]["tag"], y[1]["span"], y[2]["mood"]
    found = []
    for whole in (True, False):
        torch.manual_seed(0)
        net = TwoLevels()
        of = {"tag": heads.Bernoulli(6), "mood": heads.Gaussian(5), "span": heads.Gaussian(6)}
        mtl = ba.BayesAgg(of).double()
        for bayes in (False, True):
            net.zero_grad()
            if whole:
                losses = mtl.backward([(net(a), b) for a, b in zip(x, y, strict=True)])
            else:
                losses = mtl.backward_in_pieces(net, zip(x, y, strict=True))
            if not bayes:
                mtl.update_prior()
                mtl.start_bayes()
        found.append([*(p.grad for p in net.parameters()), *losses.values()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_a_piece_without_any_label_adds_nothing() -> None:
    one, two = Net(), Net()
    masked = {"r": (one.y["r"][0], torch.zeros(24, 2, dtype=torch.bool))}
    one.mtl.backward_in_pieces(one.backbone, [*one.pieces(), (one.x, masked)])
    two.mtl.backward_in_pieces(two.backbone, two.pieces())
    for a, b in zip(one.found(), two.found(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bayes", [False, True])
def test_dropout_and_batch_norm_are_those_of_one_pass_over_each_piece(bayes) -> None:
    """Draws are made again; running statistics move once; generators end where they would."""
    one, two = (Net(nn.BatchNorm1d(8), nn.Dropout(0.4), bayes=bayes) for _ in range(2))
    for net in (one, two):
        net.backbone[1].momentum = 0.3
    cuts = [slice(0, 9), slice(9, 24)]
    for _ in range(2):
        pieces = [(one.x[rows], one.targets(rows)) for rows in cuts]
        losses = one.mtl.backward_in_pieces(one.backbone, pieces)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    for _ in range(2):
        others = two.mtl.backward(torch.cat([two.backbone(two.x[rows]) for rows in cuts]), two.y)
    close(one, two, losses, others)
    assert one.backbone[1].num_batches_tracked == two.backbone[1].num_batches_tracked
    assert torch.equal(one.backbone[1].running_var, two.backbone[1].running_var)
    assert torch.equal(state, torch.get_rng_state())


def test_buffers_are_what_they_were_in_the_first_pass() -> None:
    """A power iteration goes on from pass to pass, and its second passes must not."""
    one, two = (Net() for _ in range(2))
    for net in (one, two):
        torch.manual_seed(3)
        nn.utils.parametrizations.spectral_norm(net.backbone[0])
    losses = one.mtl.backward_in_pieces(one.backbone, one.pieces())
    others = two.mtl.backward(torch.cat([two.backbone(two.x[r]) for r in CUTS]), two.whole())
    close(one, two, losses, others)
    for a, b in zip(one.backbone.buffers(), two.backbone.buffers(), strict=True):
        assert torch.equal(a, b)


class Centred(nn.Module):
    """Puts another running mean in the place of the last one, as `nn.BatchNorm1d` does not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def test_buffers_that_are_assigned_anew_are_updated_once() -> None:
    one, two = (Net(Centred()) for _ in range(2))
    before = one.backbone[1].mean
    nan = [*one.pieces(), (one.x, {"b": one.y["b"] * torch.nan})]
    with pytest.raises(errors.NonFiniteError):
        one.mtl.backward_in_pieces(one.backbone, nan)
    assert one.backbone[1].mean is before
    losses = one.mtl.backward_in_pieces(one.backbone, one.pieces())
    others = two.mtl.backward(torch.cat([two.backbone(two.x[r]) for r in CUTS]), two.whole())
    close(one, two, losses, others)
    assert torch.equal(one.backbone[1].mean, two.backbone[1].mean)


def test_one_graph_at_a_time() -> None:
    """What autograd keeps never exceeds what the largest piece alone makes it keep."""
    net = Net()
    live = SimpleNamespace(now=0, most=0)

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            live.now += tensor.numel()
            live.most = max(live.most, live.now)
            weakref.finalize(self, self.drop, tensor.numel())

        @staticmethod
        def drop(count: int) -> None:
            live.now -= count

    wide = nn.Sequential(nn.Linear(4, 512), nn.Tanh(), nn.Linear(512, 5)).double()

    def peak(call: Any) -> int:
        live.now = live.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            call()
        return live.most

    pieces = [(net.x[rows], net.targets(rows)) for rows in (slice(0, 12), slice(12, 24))]
    whole = peak(lambda: net.mtl.backward(wide(net.x), net.y))
    half = peak(lambda: net.mtl.backward(wide(net.x[:12]), net.targets(slice(0, 12))))
    assert half < 0.7 * whole
    assert peak(lambda: net.mtl.backward_in_pieces(wide, pieces)) <= half


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_a_scaler(dtype) -> None:
    """Both passes are in the caller's precision, and weights cast in the first do get gradients."""
    found = []
    for pieces in (True, False):
        net, scaler = Net(), GradScaler("cpu", init_scale=2.0**10)
        net.backbone.float()
        net.mtl.float()
        x = net.x.float()
        with torch.autocast("cpu", dtype):
            net.backbone(x[:2])  # casts weights, for what follows in the context
            if pieces:
                parts = [(x[rows], net.targets(rows)) for rows in CUTS]
                net.mtl.backward_in_pieces(net.backbone, parts, scaler=scaler)
            else:
                h = torch.cat([net.backbone(x[rows]) for rows in CUTS])
                net.mtl.backward(h, net.whole(), scaler=scaler)
        assert h.dtype == dtype if not pieces else True
        scaler.unscale_(torch.optim.SGD(net.backbone.parameters()))
        found.append(net.found())
    for one, two in zip(*found, strict=True):
        assert one.any()
        torch.testing.assert_close(one, two, rtol=0.02, atol=2e-4)


class Sum(nn.Module):
    """Takes two tensors, by position or by name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, left: Any, right: Any = None) -> Tensor:
        if isinstance(left, SimpleNamespace):
            left, right = left.left, left.right
        return self.layer(left + right)


def test_kinds_of_inputs_and_of_backbones() -> None:
    expected = Net()
    expected.mtl.backward_in_pieces(expected.backbone, expected.pieces())
    kinds: list[Any] = [
        lambda x: (x - 1, torch.ones_like(x)),
        lambda x: [x - 1, torch.ones_like(x)],
        lambda x: {"right": x - 1, "left": torch.ones_like(x)},
        lambda x: SimpleNamespace(left=x - 1, right=torch.ones_like(x)),
    ]
    for kind in kinds:
        net = Net()
        pieces = [(kind(x), y) for x, y in net.pieces()]
        net.mtl.backward_in_pieces(Sum(net.backbone), pieces)
        for a, b in zip(net.found(), expected.found(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for change in (
        lambda net: net.backbone.forward,
        lambda net: lambda x: checkpoint(net.backbone, x, use_reentrant=False),
        lambda net: torch.compile(net.backbone, backend="eager"),
    ):
        net = Net(nn.Dropout(0.2))
        net.mtl.backward_in_pieces(change(net), net.pieces())
        same = Net(nn.Dropout(0.2))
        same.mtl.backward_in_pieces(same.backbone, same.pieces())
        for a, b in zip(net.found(), same.found(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_processes_meet_in_the_first_pass_and_in_the_last() -> None:
    """A wrapper broadcasts buffers in the very first one, and averages gradients in the last."""
    seen: list[bool] = []

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module, self.meets = module, True

        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.meets)
            return self.module(x)

        @contextmanager
        def no_sync(self):
            self.meets = False
            yield
            self.meets = True

    net = Net()
    net.mtl.backward_in_pieces(Wrapper(net.backbone), net.pieces())
    assert seen == [True, False, False, False, False, True]
    seen.clear()
    net.mtl.backward_in_pieces(Wrapper(net.backbone), net.pieces()[:1])
    assert seen == [True, True]


class Noisy(nn.Module):
    """Draws from a generator that nobody knows of."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.generator = module, torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.module(x)
        return h + torch.randn(h.shape, generator=self.generator, dtype=h.dtype)


def test_other_features_in_the_second_pass_are_noticed() -> None:
    net = Net()
    state = {k: v.clone() for k, v in net.mtl.state_dict().items()}
    with pytest.raises(errors.StateError, match="other features in the second pass"):
        net.mtl.backward_in_pieces(Noisy(net.backbone), net.pieces())
    assert net.found() == []
    assert all(torch.equal(v, state[k]) for k, v in net.mtl.state_dict().items())
    net = Net(validate="deferred")
    net.mtl.backward_in_pieces(Noisy(net.backbone), net.pieces())
    assert not any(w.grad.any() for w in net.backbone.parameters())
    with pytest.raises(errors.NonFiniteError, match="second pass"):
        net.mtl.raise_deferred()


def test_refusals_change_nothing() -> None:
    net = Net(nn.BatchNorm1d(8), nn.Dropout(0.4))
    cuts = [slice(0, 9), slice(9, 24)]
    good = [(net.x[rows], net.targets(rows)) for rows in cuts]
    nan = [good[0], (good[1][0], {"b": good[1][1]["b"] * torch.nan})]
    frozen = nn.Sequential(nn.Linear(4, 5)).double().requires_grad_(False)
    mtl, cases = net.mtl, net.backbone
    before = {k: v.clone() for k, v in [*mtl.state_dict().items(), *cases.state_dict().items()]}
    drawn = torch.get_rng_state()
    wrong: list[tuple[Any, Any, type, str]] = [
        (net.backbone, [], errors.SettingError, "there are no pieces"),
        (net.backbone, [net.x], errors.DtypeError, "pairs"),
        (net.backbone, nan, errors.NonFiniteError, "'b'"),
        (net.backbone, [(net.x, {"q": net.x})], errors.TaskError, "q"),
        (lambda x: (x, x), good, errors.DtypeError, "must give features, not tuple"),
        (net.backbone, [good[0], (net.x[:, :3], good[0][1])], RuntimeError, "shapes"),
        (frozen, good, errors.StateError, "trainable"),
    ]
    for backbone, pieces, kind, message in wrong:
        with pytest.raises(kind, match=message):
            mtl.backward_in_pieces(backbone, pieces)
    with torch.no_grad(), pytest.raises(errors.StateError, match="no_grad"):
        mtl.backward_in_pieces(net.backbone, good)
    assert net.found() == []
    assert torch.equal(drawn, torch.get_rng_state())
    now = {**mtl.state_dict(), **cases.state_dict()}
    assert all(torch.equal(v, now[k]) for k, v in before.items())


def test_an_uncounted_batch_in_pieces() -> None:
    one, two = Net(), Net()
    state = {k: v.clone() for k, v in one.mtl.state_dict().items()}
    one.mtl.backward_in_pieces(one.backbone, one.pieces(), collect=False)
    assert all(torch.equal(v, state[k]) for k, v in one.mtl.state_dict().items())
    two.mtl.backward_in_pieces(two.backbone, two.pieces())
    assert all(torch.equal(a, b) for a, b in zip(one.found(), two.found(), strict=True))
