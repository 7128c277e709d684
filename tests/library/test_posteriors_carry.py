"""What posteriors carry beside their numbers survives being moved, cut, converted and packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from oracles import close, spd

from bayesagg_pyro import linalg, posteriors
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.posteriors import Info, Posterior

TASKS, OUTPUTS, SIZE = 3, 2, 6
F64 = torch.float64


def _normal(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=rng, dtype=F64)


def _blocked(rng: torch.Generator) -> Posterior:
    return posteriors.BlockedGaussian(
        _normal(rng, TASKS, SIZE), *linalg.split_rows(spd(rng, TASKS, SIZE))
    )


def _kronecker(rng: torch.Generator) -> Posterior:
    return posteriors.KroneckerGaussian(
        _normal(rng, TASKS, SIZE),
        spd(rng, TASKS, OUTPUTS),
        spd(rng, 1, SIZE // OUTPUTS),
        torch.full((TASKS,), 9.0, dtype=F64),
        torch.ones(1, dtype=F64),
    )


def _inverse_gamma(rng: torch.Generator) -> Posterior:
    shape, rate = torch.tensor([3.0, 4.0, 5.0], dtype=F64), torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    return posteriors.NormalInverseGamma(
        _normal(rng, TASKS, SIZE), spd(rng, TASKS, SIZE), shape, rate
    )


MAKE: dict[str, Callable[[torch.Generator], Posterior]] = {
    "Gaussian": lambda g: posteriors.Gaussian(_normal(g, TASKS, SIZE), spd(g, TASKS, SIZE)),
    "shared": lambda g: posteriors.Gaussian(_normal(g, TASKS, SIZE), spd(g, 1, SIZE)),
    "BlockedGaussian": _blocked,
    "PackedGaussian": lambda g: posteriors.PackedGaussian.pack(
        posteriors.Gaussian(_normal(g, TASKS, SIZE), spd(g, TASKS, SIZE)), F64
    ),
    "DiagonalGaussian": lambda g: posteriors.DiagonalGaussian(
        _normal(g, TASKS, SIZE), _normal(g, TASKS, SIZE).exp()
    ),
    "LowRankGaussian": lambda g: posteriors.LowRankGaussian(
        _normal(g, TASKS, SIZE), _normal(g, TASKS, SIZE, 2), _normal(g, TASKS, SIZE).exp()
    ),
    "KroneckerGaussian": _kronecker,
    "NormalInverseGamma": _inverse_gamma,
    "Empirical": lambda g: posteriors.Empirical(_normal(g, 40, TASKS, SIZE), chains=4),
    "Point": lambda g: posteriors.Point(_normal(g, TASKS, SIZE)),
}

METHODS: dict[str, Callable[[Posterior], Posterior]] = {
    "to another precision": lambda p: p.to(dtype=torch.float32),
    "to the same place": lambda p: p.to("cpu", F64),
    "part": lambda p: p.part(slice(1, 3)),
    "expand": lambda p: p.expand(torch.Size([TASKS])),
    "replace": lambda p: p.replace(outputs_per_task=OUTPUTS),
    "with_mean": lambda p: p.with_mean(p.mean + 1),
    "to_gaussian": lambda p: p.to_gaussian(),
    "pack": lambda p: posteriors.PackedGaussian.pack(p, torch.float32),
    "copy_": lambda p: p.with_mean(0 * p.mean).copy_(p),
}
OF_GAUSSIANS = ("with_mean", "pack", "copy_")
CASES = [
    (name, method)
    for name in MAKE
    for method in METHODS
    if name not in ("NormalInverseGamma", "Point", "Empirical")
    or (method not in OF_GAUSSIANS and (method != "to_gaussian" or name == "Empirical"))
]


def carrying(name: str, rng: torch.Generator) -> Posterior:
    """A posterior of two outputs per task with an entry of its own in every field of `info`."""
    posterior = MAKE[name](rng).replace(outputs_per_task=OUTPUTS)
    known = posterior.info
    rows = torch.zeros(TASKS, dtype=F64)
    info = Info(
        jitter=rows if known is None else known.jitter,
        condition=rows + 7 if known is None else known.condition,
        newton_decrement=rows + torch.arange(TASKS),
        gain_ratio=rows + 0.1,
        steps=torch.arange(TASKS),
        converged=torch.tensor([True, False, True]),
        elbo=torch.arange(TASKS, dtype=F64),  # as many steps as tasks: still no row of a task
        divergences=torch.arange(TASKS),
        acceptance=rows + 0.5,
        r_hat=rows[:, None] + torch.arange(SIZE),
        ess=rows[:, None] + 100,
        log_evidence=torch.arange(TASKS, dtype=F64),
        prior_variance=rows + 2,
        prior_scale=rows + 3,
        noise_scale=rows + 4,
        left_out=torch.tensor([False, True, True]),
    )
    return posterior.replace(info=info)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_everything_is_kept(name, method, rng) -> None:
    p = carrying(name, rng)
    before = p.info
    found = METHODS[method](p)
    rows = slice(1, 3) if method == "part" else slice(None)
    assert found.outputs_per_task == OUTPUTS
    assert found.tasks == len(p.mean[rows])
    if isinstance(found, posteriors.Empirical):
        assert found.chains == 4
    whole = ("elbo", "divergences", "acceptance")
    for field in fields(Info):
        if method == "to_gaussian" and field.name in ("jitter", "condition"):
            continue  # those of the new factor
        value, expected = getattr(found.info, field.name), getattr(before, field.name)
        if expected is None:
            assert value is None
            continue
        if field.name not in whole and len(expected) == TASKS:
            expected = expected[rows]
        close(value.double(), expected.double(), 1e-6)
        if method == "to another precision" and value.is_floating_point():
            assert value.dtype == torch.float32
    if method not in ("with_mean", "pack"):
        close(found.mean.double(), p.mean[rows], 1e-6)
        close(found.variance.double(), p.variance[rows], 1e-2 if name == "Empirical" else 1e-5)


@pytest.mark.parametrize("name", MAKE)
def test_info_goes_where_the_tensors_go(name, rng) -> None:
    moved = carrying(name, rng).to("meta") if name in ("Empirical", "Point") else None
    if moved is None:  # factors cannot be made of tensors without values
        info = carrying(name, rng).info
        assert info is not None
        assert info.to("meta").converged.device.type == "meta"
    else:
        assert moved.info.r_hat.device.type == "meta"


def test_nothing_is_computed_to_be_carried(rng) -> None:
    p = _kronecker(rng)
    for other in (p.with_mean(0 * p.mean), p.part(slice(0, 1)), p.to(dtype=torch.float32)):
        assert "eigen" not in vars(other)
    assert "eigen" not in vars(p)


def test_expanding_beyond_the_tasks_is_refused_by_name(rng) -> None:
    with pytest.raises(NotImplementedError, match="Empirical"):
        MAKE["Empirical"](rng).expand(torch.Size([5, TASKS]))


@pytest.mark.parametrize("name", MAKE)
def test_who_says_so_has_draws_that_can_be_differentiated(name, rng) -> None:
    found = MAKE[name](rng)
    try:
        found.rsample()
    except NotImplementedError:
        assert not found.has_rsample
    else:
        assert found.has_rsample


def test_replacing_leaves_the_original_alone(rng) -> None:
    p = MAKE["Gaussian"](rng)
    q = p.replace(outputs_per_task=OUTPUTS, info=Info(torch.zeros(TASKS), torch.ones(TASKS)))
    assert (p.outputs_per_task, q.outputs_per_task) == (1, OUTPUTS)
    assert p.info is not q.info
    assert q.precision_tril is p.precision_tril


class Gaussian(posteriors.Gaussian):
    """A user's own, of the same name."""


class Chained(posteriors.Empirical):
    """A user's own, that saves a number beside its tensors."""


def test_classes_of_the_same_name_are_saved_apart(rng) -> None:
    own = Gaussian(_normal(rng, TASKS, SIZE), spd(rng, TASKS, SIZE))
    chained = Chained(_normal(rng, 40, TASKS, SIZE), chains=4, outputs_per_task=OUTPUTS)
    for p in (own, MAKE["Gaussian"](rng), chained):
        found = Posterior.from_state_dict(p.state_dict())
        assert type(found) is type(p)
        assert found.outputs_per_task == p.outputs_per_task
        assert torch.equal(found.mean, p.mean)


def test_states_from_before_kinds_had_a_module_are_read(rng) -> None:
    p = MAKE["Gaussian"](rng)
    state = {k.removeprefix("bayesagg_pyro."): v for k, v in p.state_dict().items()}
    assert "Gaussian.mean" in state
    assert type(Posterior.from_state_dict(state)) is posteriors.Gaussian


def test_a_class_that_is_not_defined_is_refused_by_name(rng) -> None:
    state = {f"theirs.{k}": v for k, v in MAKE["Gaussian"](rng).state_dict().items()}
    with pytest.raises(StateError, match=r"theirs\.bayesagg_pyro\.Gaussian.*import the module"):
        Posterior.from_state_dict(state)


def test_a_vector_that_claims_to_be_saved_by_columns_is_refused(rng) -> None:
    state = MAKE["Gaussian"](rng).state_dict()
    name = next(key for key, value in state.items() if value.ndim == 3)
    state[f"{name}_by_columns"] = state.pop(name).flatten()
    with pytest.raises(StateError):
        Posterior.from_state_dict(state)
