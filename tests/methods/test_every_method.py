"""What holds for every method: it learns, it keeps its state, and nothing leaves NaN behind."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from two_tasks import build, fresh, gradients, problem, train

from bayesagg_pyro import heads
from bayesagg_pyro.errors import NonFiniteError, TaskError
from experiments import methods
from experiments.errors import DivergenceError, SettingsError
from experiments.methods import METHODS, Level
from experiments.methods.__main__ import COMMAND, page
from experiments.methods.torchjd import names

ROOT = Path(__file__).resolve().parents[2]
#: Arguments that TorchJD has no default for, or that need more tasks than two.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "torchjd:Constant": {"weights": [1.0, 1.0]},
    "torchjd:COSMOS": {"lambda_": 0.01},
}
#: More tasks than two, or not for training: see docs/methods.md.
NEEDS_MORE_TASKS = {"torchjd:Krum", "torchjd:TrimmedMean"}
EVERY = [*METHODS, *(name for name in names() if name not in NEEDS_MORE_TASKS)]
LEARNING = [*METHODS, "torchjd:UPGrad", "torchjd:FAMO"]
#: Their losses' sizes decide what they learn first, and the small one waits.
SLOWER = ["ls", "rlw", "dwa", "uw", "igbv2", "bayesagg", "ensemble-heads", "ensemble-networks"]


def combinations() -> list[tuple[str, Level]]:
    return [(name, level) for name in EVERY for level in Level]


@pytest.mark.parametrize(("name", "level"), combinations())
def test_a_level_changes_the_backbone_or_is_refused(name: str, level: Level) -> None:
    arguments = {**ARGUMENTS.get(name, {}), "level": level.key}
    if level not in methods.find(name).levels:
        with pytest.raises(SettingsError, match=r"does not fit method .*: .{30,}; give "):
            build(name, **arguments)
        return
    method = build(name, **arguments)
    method.train()
    before = [parameter.detach().clone() for parameter in method.backbone.parameters()]
    train(method, epochs=3, steps=1)
    after = list(method.backbone.parameters())
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert all(moved)


@pytest.mark.parametrize("name", LEARNING)
def test_two_unequal_tasks_are_learned(name: str) -> None:
    method = build(name)
    method.train()
    epochs, rate = (30, 2e-2) if name in SLOWER else (10, 5e-2)
    history = train(method, epochs=epochs, steps=10, rate=rate)
    left = history[-1] / history[0]
    assert left.max() < 0.1, left


@pytest.mark.parametrize("name", EVERY)
def test_goes_on_from_its_state(name: str) -> None:
    whole = build(name, seed=1, **ARGUMENTS.get(name, {}))
    whole.train()
    train(whole, epochs=3, steps=2)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    other = build(name, seed=2, **ARGUMENTS.get(name, {}))
    other.train()
    if name == "bayesagg":
        other.start_epoch(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    expected = train(whole, epochs=1, steps=2, first=3)
    found = train(other, epochs=1, steps=2, first=3)
    assert torch.equal(torch.stack(found), torch.stack(expected))


def spoilt(name: str, factor: float) -> tuple[methods.Method, Tensor, dict[str, Tensor]]:
    """The second task's loss and gradient times a factor; 0 leaves it without a gradient."""

    class Scaled(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().loss(outputs, targets) * factor

    def make() -> tuple[nn.Module, dict[str, heads.Head]]:
        backbone, found = fresh()
        return backbone, {**found, "large": Scaled(found["large"].in_features, bias=True)}

    method = build(name, make, **ARGUMENTS.get(name, {}))
    method.train()
    return method, *problem()


@pytest.mark.parametrize("factor", [0.0, 1e6])
@pytest.mark.parametrize("name", [name for name in EVERY if name != "bayesagg"])
def test_no_nan_from_unequal_gradients(name: str, factor: float) -> None:
    method, inputs, targets = spoilt(name, factor)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-3)
    for epoch in range(4):
        method.start_epoch(epoch)
        for _ in range(2):
            optimizer.zero_grad()
            method.backward(inputs, targets)
            optimizer.step()
        method.end_epoch(epoch)
    assert all(parameter.isfinite().all() for parameter in method.parameters())


@pytest.mark.parametrize("name", EVERY)
def test_nan_names_the_task_and_changes_nothing(name: str) -> None:
    method = build(name, **ARGUMENTS.get(name, {}))
    method.train()
    train(method, epochs=3, steps=1)
    inputs, targets = problem()
    targets["large"] = targets["large"].clone()
    targets["large"][3] = float("nan")
    method.start_epoch(3)
    for parameter in method.parameters():
        parameter.grad = None
    with pytest.raises((DivergenceError, NonFiniteError), match="large"):
        method.backward(inputs, targets)
    assert all(grad is None for grad in gradients(method))


def test_a_method_that_gives_a_tensor_is_told_what_to_give() -> None:
    class Alone(methods.GradientBased):
        name, title = "alone", "Alone"

        def combine(self, matrix: Tensor, present: Tensor | None = None) -> Any:
            return matrix[0]

    alone = Alone(*fresh(), methods.GradientOptions())
    with pytest.raises(SettingsError, match=r"Alone\.combine gives a Tensor: return .*Combined\("):
        alone.backward(*problem())
    assert all(p.grad is None for p in alone.parameters())


def test_tables_are_up_to_date() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page(text) == text, f"refresh docs/methods.md: {COMMAND}"
    for name in METHODS:
        assert f"| `{name}` |" in text


def test_unknown_names() -> None:
    with pytest.raises(SettingsError, match=r"give one of stl, ls, .*torchjd:NAME"):
        methods.find("magic")
    with pytest.raises(
        SettingsError, match=r"torchjd:Magic.*is unknown to TorchJD.*torchjd:UPGrad"
    ):
        methods.find("torchjd:Magic")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("cagrad", {"c": -1}, "c = -1 cannot work"),
        ("cagrad", {"c": "much"}, "c = 'much' cannot work: give a number"),
        ("bayesagg", {"leave_batch_out": "no"}, "give true or false"),
        ("bayesagg", {"power": []}, r"power = \[\] cannot work"),
        ("bayesagg", {"power": ["much", 0.5]}, r"power = \['much', 0.5\] cannot work"),
        ("bayesagg", {"noise": "integrated", "prior": "evidence"}, "noise = 'integrated'"),
        (
            "bayesagg",
            {"aggregator": "nope"},
            "'nope' cannot work: give precision, Bar.*IMTLG",
        ),
        ("bayesagg", {"aggregator": "Krum"}, "'Krum' cannot work: give precision, Bargain, "),
        ("bayesagg", {"power": "much"}, "power = 'much' cannot work: give a number"),
        ("bayesagg", {"power": [0.5, 2]}, r"power = \[0.5, 2\] cannot work"),
        ("cagrad", {"temperature": 2}, r"temperature = 2 has no meaning.*its options are level, c"),
        ("ls", {"c": 1}, "it has no options"),
        ("mgda", {"max_iters": 0}, "max_iters = 0"),
        ("nash-mtl", {"max_norm": -1}, "max_norm = -1"),
        ("nash-mtl", {"update_weights_every": 0}, "update_weights_every = 0"),
        ("dwa", {"temperature": 0}, "temperature = 0"),
        ("rlw", {"seed": -1}, "seed = -1"),
        ("aligned-mtl-ub", {"scale_mode": "max"}, "give min, median or rmse"),
        ("aligned-mtl-ub", {"level": "features"}, "level = 'features' is unknown"),
        ("igbv2", {"learn_after": 1, "base_epoch": 2}, "learn_after = 1"),
        ("igbv2", {"act_after": 1}, "act_after = 1"),
        ("ensemble-heads", {"members": 0}, "members = 0"),
        ("torchjd:CAGrad", {"magic": 1}, "its options are level, seed, c, norm_eps"),
        ("torchjd:Krum", {}, None),
    ],
)
def test_options_are_checked(name: str, given: dict[str, Any], message: str | None) -> None:
    if message is None:
        with pytest.raises(SettingsError, match="needs a value for n_byzantine: give --set"):
            build(name, **given)
        return
    with pytest.raises(SettingsError, match=message):
        methods.options(name, given)


@pytest.mark.parametrize("power", [[0.2, 1.0], {"small": 0.2, "large": 1.0}])
def test_powers_of_tasks(power: Any) -> None:
    by_task = train(build("bayesagg", power=power), 4)
    assert all(loss.isfinite().all() for loss in by_task)
    other = train(build("bayesagg", power=[1.0, 0.2]), 4)
    assert not torch.equal(by_task[-1], other[-1])
    with pytest.raises(
        TaskError, match="3 powers are given for 2 tasks: give one, or one for each"
    ):
        build("bayesagg", power=[0.5, 0.5, 0.5])


def test_noise_from_the_evidence() -> None:
    method = build("bayesagg", noise="learned")
    losses = train(method, 4)
    head = method.mtl.heads["small"]  # type: ignore[attr-defined]
    # The task's last mean squared error is its noise's square, but for what was learned since.
    assert 0.5 < float(head.noise_scale[0]) / float(losses[-10][0].sqrt()) < 2
    with pytest.raises(SettingsError, match="noise = 'learned' cannot work: it takes a prior"):
        methods.options("bayesagg", {"noise": "learned", "prior": "constant"})


def test_noise_integrated_over() -> None:
    method = build("bayesagg", noise="integrated")
    losses = train(method, 4)
    prior = method.mtl.priors()["small"]  # type: ignore[attr-defined]
    noise = prior.rate / (prior.shape_parameter - 1)
    assert 0.25 < float(noise[0]) / float(losses[-10][0]) < 4


def test_agent_needs_epochs() -> None:
    with pytest.raises(SettingsError, match=r"^igbv2: act_after = 5 leaves no epoch to the"):
        methods.options("igbv2", {}).check(5)
    methods.options("igbv2", {}).check(6)


def test_bad_arguments_of_torchjd_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"options = .*alpha.* cannot work|mu"):
        build("torchjd:STCH", mu=-1)
    with pytest.raises(SettingsError, match="give a list of numbers"):
        build("torchjd:Constant", weights=["a", "b"])


def test_without_torchjd_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(SettingsError, match=r'pip install "bayesagg_pyro\[torchjd\]"'):
        build("mgda")
    build("ls")
    build("uw")


def test_several_networks_need_a_maker() -> None:
    with pytest.raises(SettingsError, match=r"give make\(..., another=...\)"):
        methods.make("ensemble-networks", *fresh(), methods.options("ensemble-networks", {}))
