"""A call that is stopped anywhere leaves engine, gradients and random states as they were.

Calls of functions of the package, and lines of the engine, are made to raise in turn: a sample of
all, of the first and the last time that each is run. What calibration does is the same after every
prior; kinds of heads, a warm-up, and draws make a difference to it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors
from bayesagg_pyro.predictive import _calibrate

PACKAGE = str(Path(ba.__file__).parent)
ENGINE = Path(PACKAGE) / "engine"
#: What puts things back must not be stopped as well.
SAFE = {f"{ENGINE}/transaction.py", f"{PACKAGE}/_modes.py"}
BY_LINE = {str(path) for path in ENGINE.glob("*.py")} - SAFE
#: Places to stop a call at; fewer where one takes long.
STOPS, LONG, FEW = 30, 5000, 8


class Stop(BaseException):
    """As Ctrl-C would be: no `except Exception` may swallow it."""


class World:
    """Two or three heads of different kinds, ready for a Bayesian step."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(3)
        self.backbone = nn.Linear(4, 5).double()
        settings: dict[str, Any] = {
            "sums": {"prior": priors.FullData(in_place=True)},
            "running": {"prior": priors.Running(half_life=20)},
            "previous": {"prior": priors.PreviousBatch(in_place=True)},
            "learned": {"prior": {"y": priors.FullData(), "b": priors.FullData("learned")}},
            "warmup": {},
            "sampled": {
                "inference": inference.Ensemble(4, refresh=2),
                "estimator": gradients.MonteCarlo(8),
                "generator": torch.Generator().manual_seed(1),
                "aggregation": aggregation.PerSample(aggregation.Mean(), samples=4),
            },
        }[kind]
        noise = "learned" if kind == "learned" else 0.5
        self.mtl = ba.BayesAgg(
            {"y": heads.Gaussian(5, tasks=2, noise_scale=noise), "b": heads.Bernoulli(5)},
            **settings,
        ).double()
        self.x = torch.randn(12, 4).double()
        self.y = {"y": torch.randn(12, 2).double(), "b": torch.randint(2, (12, 1))}
        self.state = None
        for _ in range(2):
            self.call("backward")
            self.mtl.update_prior()
        if kind != "warmup":
            self.mtl.start_bayes()
        self.call("backward")
        self.state = {name: value.clone() for name, value in self.mtl.state_dict().items()}
        self.call("backward")
        if kind == "warmup":
            self.mtl.zero_grad()  # what is stopped has made gradients, not added to them
        with torch.no_grad():  # so that to load is to change weights, too
            for weight in self.mtl.parameters():
                weight.mul_(1.01)

    def call(self, which: str) -> None:
        batch = self.backbone(self.x), self.y
        if which == "backward":
            self.mtl.backward(*batch)
        elif which == "uncounted":
            self.mtl.backward(*batch, collect=False)
        elif which == "pieces":
            halves = (slice(0, 6), slice(6, 12))
            parts = [(self.x[rows], {k: v[rows] for k, v in self.y.items()}) for rows in halves]
            self.mtl.backward_in_pieces(self.backbone, parts)
        elif which == "collect":
            self.mtl.collect(*batch)
        elif which == "update_prior":
            self.mtl.update_prior()
        elif which == "refit":
            self.mtl.refit([batch, batch])
        elif which == "calibrate":
            with patch.multiple(_calibrate, _POINTS=2, _STEPS=1):  # not 28 times over all batches
                self.mtl.calibrate([batch, batch])
        else:
            self.mtl.load_state_dict(self.state)

    def everything(self) -> dict[str, Tensor]:
        found = {**self.mtl.state_dict(), "random": torch.get_rng_state()}
        for name, weight in [*self.mtl.named_parameters(), *self.backbone.named_parameters()]:
            found[f"{name}.value"] = weight.detach().clone()
            found[f"{name}.grad"] = torch.zeros(0) if weight.grad is None else weight.grad.clone()
        return found


class Fault:
    """Raises `Stop` at the so many-th place; counts places if None."""

    def __init__(self, place: int | None, done: Callable[[], bool]) -> None:
        self.place, self.done, self.seen = place, done, 0
        self.first: dict[tuple[str, int], int] = {}
        self.last: dict[tuple[str, int], int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or file in SAFE or event not in ("call", "line"):
            return None
        if event == "call" or file in BY_LINE:
            self.seen += 1
            where = file, frame.f_lineno
            self.first.setdefault(where, self.seen)
            self.last[where] = self.seen
            if self.seen == self.place and not self.done():
                raise Stop
        return self if file in BY_LINE else None

    def sample(self) -> list[int]:
        """Places to stop at, spread over the call."""
        places = sorted({*self.first.values(), *self.last.values()})
        wanted = STOPS if self.seen < LONG else FEW
        wanted = min(wanted, len(places))
        return [places[at * (len(places) - 1) // (wanted - 1)] for at in range(wanted)]


def run(world: World, which: str, place: int | None) -> Fault:
    """One call; the backbone's gradient comes last, and nothing is stopped after it."""
    before = {id(w): w.grad for w in world.backbone.parameters()}
    for weight in world.backbone.parameters():
        weight.grad = None
    fault = Fault(place, lambda: any(w.grad is not None for w in world.backbone.parameters()))
    watching = sys.gettrace()  # a debugger, or what measures coverage
    sys.settrace(fault)
    try:
        world.call(which)
    finally:
        sys.settrace(watching)
        torch.set_grad_enabled(True)  # the end of a `with` is a line, too
        for weight in world.backbone.parameters():
            if weight.grad is None:
                weight.grad = before[id(weight)]
    return fault


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


# A fault in a generator that is being closed cannot go anywhere.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "which"),
    [
        *itertools.product(
            ["sums", "running", "previous", "learned", "sampled", "warmup"],
            ["backward", "collect", "update_prior", "refit", "load"],
        ),
        *itertools.product(["learned", "sampled", "warmup"], ["calibrate"]),
        ("running", "uncounted"),
        ("sampled", "pieces"),
    ],
)
def test_a_call_that_is_stopped_leaves_everything_as_it_was(kind: str, which: str) -> None:
    places = run(World(kind), which, None).sample()
    world = World(kind)
    before = world.everything()
    whole = World(kind)
    whole.call(which)
    done = whole.everything()
    stopped = 0
    for place in places:
        try:
            run(world, which, place)
        except Stop:
            stopped += 1
        else:  # it came after the backbone's gradient
            world = World(kind)
            before = world.everything()
            continue
        after = world.everything()
        # The end of the call's own `with` is a line, too, at which all is done.
        finished = place == max(places) and same(done, after)
        assert finished or after.keys() == before.keys(), place
        for name, tensor in before.items():
            assert finished or torch.equal(tensor, after[name]), (place, name)
        if finished:
            world = World(kind)
    assert stopped > 3
    world.call(which)  # and it still works
    after = world.everything()
    assert after.keys() != before.keys() or any(
        not torch.equal(tensor, after[name]) for name, tensor in before.items()
    )


def test_what_a_head_refuses_no_other_has_taken() -> None:
    world = World("sums")
    before = world.everything()
    bad = {**world.y, "b": torch.full((12, 1), 2)}
    for call in (world.mtl.backward, world.mtl.collect):
        with pytest.raises(errors.SettingError, match="'b'"):
            call(world.backbone(world.x), bad)
    huge = {**world.y, "y": world.y["y"] * 1e200}
    for call in (world.mtl.backward, world.mtl.collect):
        with pytest.raises(errors.NonFiniteError, match="'y'"):
            call(world.backbone(world.x), huge)
    after = world.everything()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_settings_that_do_not_fit_are_refused_at_once() -> None:
    for kron in ({"inference": inference.TaylorGGN("kron")}, {"prior": priors.PreviousBatch()}):
        with pytest.raises(errors.BayesAggError):
            ba.BayesAgg(
                {"a": heads.Bernoulli(4, 2)},
                **{"inference": inference.TaylorGGN("kron"), **kron},
            )
    head = heads.Gaussian(4)
    with pytest.raises(errors.SettingError, match="warmup"):
        ba.BayesAgg({"a": head}, warmup="no")
    assert head.name is None


def test_a_batch_that_cannot_be_digested_stops_nothing_later() -> None:
    """Either it is refused with all that it changed, or everything goes on with it."""
    torch.manual_seed(0)
    head = heads.Heteroscedastic(4, 1)
    mtl = ba.BayesAgg({"a": head}, prior=priors.Running(half_life=5))

    def step() -> None:
        mtl.backward(torch.randn(8, 4, requires_grad=True), {"a": torch.randn(8, 1)})

    step()
    mtl.update_prior()
    mtl.start_bayes()
    step()
    for size in (1e5, 1e12, 1e30):
        before = mtl.state_dict()
        try:
            mtl.collect(torch.randn(8, 4) * size, {"a": torch.ones(8, 1)})
        except errors.BayesAggError:
            after = mtl.state_dict()
            assert after.keys() == before.keys()
            assert all(torch.equal(before[key], after[key]) for key in before)
        mtl.state_dict()
        step()
        mtl.update_prior()


@pytest.mark.parametrize("fails", [False, True])
def test_generators_of_gpus_are_put_back(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, schemes without a generator draw from that of torch there."""
    gpu = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))

    class Draws(inference.Conjugate):
        def infer(self, *args: Any, **known: Any) -> Any:
            torch.rand(1, generator=gpu)
            if fails:
                raise errors.NumericalError("what else")
            return super().infer(*args, **known)

    mtl = ba.BayesAgg({"y": heads.Gaussian(3)}, inference=Draws())
    h, y = torch.randn(8, 3, requires_grad=True), {"y": torch.randn(8, 1)}
    mtl.refit([(h, y)])
    before = gpu.get_state()
    with pytest.raises(errors.NumericalError) if fails else nullcontext():
        mtl.backward(h, y, collect=fails)
    assert torch.equal(gpu.get_state(), before)
