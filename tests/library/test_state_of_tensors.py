"""The state is tensors under plain names, checked as a whole before any of it is taken over."""

from __future__ import annotations

import copy
import functools
import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def data(number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    g = seed(number)
    x = torch.randn(14, 5, generator=g)
    y = torch.randn(14, 2, generator=g)
    return x, {"y": y, "c": torch.randint(3, (14,), generator=g), "b": (y[:, :1] > 0).float()}


KINDS: dict[str, dict[str, Any]] = {
    "full data": {},
    "kept in place": {"prior": priors.FullData(in_place=True)},
    "packed": {"prior": priors.FullData(dtype=torch.float32)},
    "running": {"prior": priors.Running(half_life=20)},
    "previous": {"prior": priors.PreviousBatch()},
    "constant": {"prior": priors.Constant()},
    "evidence": {"prior": priors.FullData("learned")},
    "streamed": {"prior": priors.FullData(storage=inference.Storage(streaming=True))},
    "kronecker": {
        "inference": {
            "y": inference.IntegratedNoise(),
            "c": inference.TaylorGGN("kron"),
            "b": inference.TaylorGGN("diag"),
        }
    },
    "sampled": {
        "inference": inference.Ensemble(4, refresh=2),
        "estimator": gradients.MonteCarlo(8),
        "aggregation": aggregation.PerSample(aggregation.Mean(), samples=3),
    },
    "low rank": {"inference": inference.Variational(guide="low_rank", steps=5, refresh="epoch")},
    "points": {"inference": inference.Delta()},
}


def engine(kind: str, number: int = 0) -> ba.BayesAgg:
    torch.manual_seed(number)
    made = {"y": heads.Gaussian(5, tasks=2), "c": heads.Categorical(5, 3), "b": heads.Bernoulli(5)}
    return ba.BayesAgg(made, **copy.deepcopy(KINDS[kind]), generator=seed(number))


def step(mtl: ba.BayesAgg, number: int = 0) -> Tensor:
    x, y = data(number)
    x.requires_grad_()
    mtl.backward(x, y)
    assert x.grad is not None
    return x.grad


def trained(kind: str, number: int = 0) -> ba.BayesAgg:
    """A copy of what is trained once."""
    return copy.deepcopy(_trained(kind, number))


@functools.cache
def _trained(kind: str, number: int) -> ba.BayesAgg:
    mtl = engine(kind, number)
    step(mtl, number)
    mtl.update_prior()
    mtl.start_bayes()
    step(mtl, number + 1)
    return mtl


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_tensors_and_goes_on_to_the_bit(kind: str) -> None:
    mtl = trained(kind)
    state = mtl.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    assert all(value.is_contiguous() for value in state.values())
    places = [v.untyped_storage().data_ptr() for v in state.values() if v.numel()]
    assert len(places) == len(set(places))  # what safetensors asks for
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    other = engine(kind, 5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert same(mtl.state_dict(), other.state_dict())
    for number in (2, 3):
        assert torch.equal(step(mtl, number), step(other, number))
        if number == 2:
            mtl.update_prior(), other.update_prior()
    assert same(mtl.state_dict(), other.state_dict())


def spoilt(state: dict[str, Tensor], name: str) -> dict[str, dict[str, Any]]:
    """The state with one entry wrong in every way that its kind allows."""
    value, found = state[name], {}
    if value.is_floating_point():
        found["nan"] = torch.full_like(value, torch.nan)
        found["infinite"] = torch.full_like(value, torch.inf)
        found["integer"] = value.long()
    if value.ndim:
        found["longer"] = torch.cat([value] * 5)
        found["flat"] = value.flatten()[:, None, None, None]
    found["words"] = "nonsense"
    found["nothing"] = None
    made = {what: {**state, name: wrong} for what, wrong in found.items()}
    return {**made, "missing": {key: v for key, v in state.items() if key != name}}


#: How a posterior came about, and what follows from other entries and is made anew.
FREE = (".info.", "precision_tril", ".jitter", "_inverse", ".samples")


@pytest.fixture(scope="module")
def common() -> set[str]:
    """Entries of the plainest engine."""
    return set(trained("full data").state_dict())


def chosen(kind: str, state: dict[str, Tensor], common: set[str]) -> list[str]:
    """All entries of the plainest engine; what another kind adds, of one head each."""
    if kind == "full data":
        return list(state)
    added = (name for name in state if name not in common)
    return list({re.sub(r"\.[ycb]\.", ".*.", name): name for name in added}.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_state_is_refused_and_changes_nothing(kind: str, common: set[str]) -> None:
    mtl, state = trained(kind), trained(kind, 7).state_dict()
    before, kept = mtl.state_dict(), copy.deepcopy(state)
    for name in chosen(kind, state, common):
        for what, wrong in spoilt(state, name).items():
            if any(part in name for part in FREE) and what not in ("words", "nothing", "missing"):
                continue
            if what == "integer" and ".b." in name and name.endswith(".values"):
                continue  # labels are whole numbers
            try:
                mtl.load_state_dict(wrong)
            except errors.BayesAggError:
                pass
            else:
                pytest.fail(f"{name}: {what} was taken")
        assert same(mtl.state_dict(), before), name
    assert same(state, kept)
    mtl.load_state_dict(state)
    assert same(mtl.state_dict(), state)


@pytest.mark.parametrize("name", ["warmup", "epochs", "format"])
@pytest.mark.parametrize("value", [-1, 2.5, float("nan"), 99, "no"])
def test_numbers_out_of_range_are_refused(name: str, value: Any) -> None:
    if name == "epochs" and value == 99:
        return
    mtl = trained("full data")
    state = mtl.state_dict()
    state[f"state.{name}"] = torch.tensor(value) if not isinstance(value, str) else value
    with pytest.raises(errors.StateError):
        mtl.load_state_dict(state)


def test_indefinite_precisions_are_refused() -> None:
    mtl = trained("full data")
    for name in ("y", "b"):
        state = mtl.state_dict()
        key = f"state.priors.{name}.FullData.prior.bayesagg_pyro.Gaussian.precision_matrix"
        state[key] = state[key] - 2 * state[key].diagonal(dim1=-2, dim2=-1).amax() * torch.eye(
            state[key].shape[-1], dtype=state[key].dtype
        )
        with pytest.raises(errors.NumericalError, match="definite"):
            mtl.load_state_dict(state)


def test_averages_of_two_states_are_a_state() -> None:
    """Value by value; a factor is then no longer that of its matrix and is made anew."""
    one, two = trained("full data", 1), trained("full data", 2)
    for mtl in (one, two):
        mtl.update_prior()
    states = one.state_dict(), two.state_dict()
    mean = {k: (a + states[1][k]) / 2 for k, a in states[0].items() if "generator" not in k}
    torch.manual_seed(0)
    made = {"y": heads.Gaussian(5, tasks=2), "c": heads.Categorical(5, 3), "b": heads.Bernoulli(5)}
    both = ba.BayesAgg(made)
    mean["state.entries"] = torch.tensor(sum(k.startswith("state.") for k in mean) - 1)
    both.load_state_dict(mean)
    for name, prior in both.priors().items():
        wanted = (one.priors()[name].mean + two.priors()[name].mean) / 2
        torch.testing.assert_close(prior.mean, wanted)
        matrix = (one.priors()[name].precision_matrix + two.priors()[name].precision_matrix) / 2
        torch.testing.assert_close(prior.precision_matrix, matrix)
        identity = prior.covariance_matrix @ matrix
        torch.testing.assert_close(identity, torch.eye(len(matrix[0])).double().expand_as(matrix))


def test_an_earlier_format_is_refused_by_name_and_its_weights_can_be_had() -> None:
    mtl, old = trained("full data"), trained("full data", 3)
    weights = {k: v for k, v in old.state_dict().items() if k.startswith("heads.")}
    state = {**weights, "_extra_state": {"warmup": False, "trackers": {}}}
    before = mtl.state_dict()
    with pytest.raises(errors.StateError, match="format 1"):
        mtl.load_state_dict(state)
    assert same(before, mtl.state_dict())
    mtl.load_state_dict(state, strict=False)
    assert torch.equal(mtl.heads["c"].weight, old.heads["c"].weight)
    x, y = data()
    with pytest.raises(errors.StateError, match="refit"):
        mtl.predictive(x)
    mtl.refit([(x, y)])
    mtl.predictive(x)


def test_heads_that_match_are_taken_over() -> None:
    old = trained("full data")
    torch.manual_seed(1)
    more = {"b": heads.Bernoulli(5), "y": heads.Gaussian(5, tasks=2), "new": heads.Poisson(5)}
    mtl = ba.BayesAgg(more)
    found = mtl.load_state_dict(old.state_dict(), strict=False)
    assert "heads.new.weight" in found.missing_keys
    assert "heads.c.weight" in found.unexpected_keys
    x, _ = data()
    y = torch.ones(14, 1)
    for name in ("b", "y"):
        assert torch.equal(mtl.predict(x)[name], old.predict(x)[name])
        posterior = mtl._slots[name].tracker.posterior
        assert posterior is not None
        assert torch.equal(posterior.mean, old.posteriors()[name].mean)
    with pytest.raises(errors.StateError, match=r"\['new'\].*refit"):
        mtl.backward(x.requires_grad_(), {"b": torch.ones(14, 1), "y": x[:, :2].detach(), "new": y})
    with pytest.raises(errors.TaskError, match="new"):
        mtl.load_state_dict(old.state_dict())


def test_inside_another_module() -> None:
    class Net(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.first = torch.nn.Linear(2, 5)
            self.mtl = trained("full data", number)

    one, two = Net(1), Net(2)
    two.load_state_dict(one.state_dict())
    assert same(one.state_dict(), two.state_dict())
    spoilt = one.state_dict()
    spoilt["mtl.state.priors.y.FullData.prior.bayesagg_pyro.Gaussian.mean"] *= torch.nan
    other = Net(4)
    before = other.mtl.state_dict()
    with pytest.raises(errors.NonFiniteError):
        other.load_state_dict(spoilt)
    assert same(before, other.mtl.state_dict())
    with pytest.raises(RuntimeError, match=r"mtl\.state\.held\.y"):
        other.load_state_dict({k: v for k, v in one.state_dict().items() if "state" not in k})
    fewer = {k: v for k, v in one.state_dict().items() if ".y.FullData.prior." not in k}
    with pytest.raises(RuntimeError, match=r"Missing.*mtl\.state\.\* \(\d+ of \d+ entries\)"):
        other.load_state_dict(fewer)
    other.mtl.aggregation = aggregation.PerSample(aggregation.Mean(), generator=seed())
    with pytest.raises(RuntimeError, match=r"Missing.*mtl\.state\.aggregation \(Prec"):
        one.load_state_dict(other.state_dict())
    assert one.mtl.load_state_dict(other.mtl.state_dict(), strict=False).missing_keys


@pytest.mark.parametrize("assign", [False, True])
def test_built_on_the_meta_device(assign: bool) -> None:
    plain = trained("full data")
    with torch.device("meta"):
        mtl = engine("full data")
    assert all(weight.is_meta for weight in mtl.parameters())
    if not assign:
        mtl.to_empty(device="cpu")
    mtl.load_state_dict(plain.state_dict(), assign=assign)
    assert same(plain.state_dict(), mtl.state_dict())
    assert torch.equal(step(mtl, 4), step(plain, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: heads.Gaussian(3, noise_scale=[0.5]),
        lambda: heads.Bernoulli(3, pos_weight=2.0),
        lambda: heads.Categorical(3, 3, class_weight=[1.0, 2.0, 3.0]),
        lambda: heads.StudentT(3, df=3.0, scale=0.1),
        lambda: heads.NegativeBinomial(3, dispersion=2.0),
        lambda: heads.Ordinal(3, classes=3, cutpoints=[0.0, 1.0]),
        lambda: heads.Ordinal(3, classes=3),
        lambda: heads.Heteroscedastic(3),
    ],
)
def test_every_head_can_be_built_on_the_meta_device(make: Any) -> None:
    plain = ba.BayesAgg({"a": make()})
    with torch.device("meta"):
        mtl = ba.BayesAgg({"a": make()})
    mtl.to_empty(device="cpu")
    mtl.load_state_dict(plain.state_dict())
    assert same(plain.state_dict(), mtl.state_dict())


def test_posteriors_of_users_have_qualified_names() -> None:
    class Gaussian(posteriors.Point):
        pass

    state = Gaussian(torch.ones(1, 2)).state_dict()
    assert all(key.startswith(f"{__name__}.") for key in state)
    rebuilt = posteriors.Posterior.from_state_dict(state)
    assert type(rebuilt) is Gaussian
    library = posteriors.Gaussian(torch.ones(1, 2), torch.eye(2)[None]).state_dict()
    assert type(posteriors.Posterior.from_state_dict(library)) is posteriors.Gaussian


def test_heads_with_other_parameters_are_refused_by_name() -> None:
    mtl = engine("full data")
    state = mtl.state_dict()
    state["heads.y.offset"] = state.pop("heads.y.weight")
    with pytest.raises(errors.StateError, match=r"'y' lacks \['weight'\].*unknown \['offset'\]"):
        mtl.load_state_dict(state)
    more = {**mtl.state_dict(), "heads.y.offset": torch.ones(1)}
    with pytest.raises(errors.StateError, match=r"'y' lacks \[\].*unknown \['offset'\]"):
        mtl.load_state_dict(more)


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_whose_priors_the_scheme_cannot_take_is_refused(strict: bool) -> None:
    """It was taken over, and the next step raised."""
    x, y = data()
    old, new = (
        ba.BayesAgg({"y": heads.Gaussian(5, tasks=2)}, inference=scheme, warmup=False)
        for scheme in (inference.IntegratedNoise(), inference.Conjugate())
    )
    for engine in (old, new):
        engine.refit([(x, {"y": y["y"]})])
    before = new.state_dict()
    with pytest.raises(errors.DtypeError, match=r"head 'y': Conjugate.*not NormalInverseGamma"):
        new.load_state_dict(old.state_dict(), strict=strict)
    assert same(before, new.state_dict())
