"""Predictive distributions take the targets that training takes, and broadcast none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from likelihoods import F64, normal
from test_predictive_gradients import HEADS, head_of, posterior_of, targets_of
from torch import Tensor

from bayesagg_pyro import errors, heads, posteriors
from bayesagg_pyro.predictive import log_predictive_density

B, D = 5, 3
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


def single(name: str) -> heads.Head:
    """As `head_of`, of one task."""
    torch.manual_seed(3)
    made: dict[str, Callable[[], heads.Head]] = {
        "gaussian": lambda: heads.Gaussian(D, noise_scale=0.5),
        "bernoulli": lambda: heads.Bernoulli(D),
        "two classes": lambda: heads.Categorical(D, 2),
        "classes": lambda: heads.Categorical(D, 3),
        "poisson": lambda: heads.Poisson(D),
        "negative binomial": lambda: heads.NegativeBinomial(D, dispersion=0.4),
        "student": lambda: heads.StudentT(D),
        "ordinal": lambda: heads.Ordinal(D, 4),
        "probit": lambda: heads.Ordinal(D, 4, link="probit"),
        "heteroscedastic": lambda: heads.Heteroscedastic(D),
        "network": lambda: heads.Network(torch.nn.Linear(D, 1), heads.Poisson(D)),
        "pyro": HEADS["pyro"],
        "pyro classes": HEADS["pyro classes"],
    }
    return made[name]().double()


SINGLE = [name for name in HEADS if name not in ("embedded", "process")]


def laws(head: heads.Head, rng: torch.Generator) -> list[Any]:
    """The head's predictive in closed form or by quadrature, and over draws."""
    p, h = posterior_of(head, rng), normal(rng, B, D)
    found = [
        head.predictive(h, p, samples=4),
        head.predictive(h, p, method="samples", samples=4),
    ]
    if isinstance(head, heads.Bernoulli):
        found.append(head.predictive(h, p, method="probit"))
    if type(head) is heads.Gaussian:
        two = torch.full((head.tasks,), 3.0, dtype=F64)
        uncertain = posteriors.NormalInverseGamma(p.mean, p.precision_matrix, two, two)
        found.append(head.predictive(h, uncertain))
    return found


def labels(name: str, head: heads.Head, rng: torch.Generator) -> Tensor:
    """Targets that every dtype holds exactly."""
    y = targets_of(name, rng, head)[:1].expand(B, -1)
    real = head.target_kind == "real"
    return ((y * 4).round() / 4 if real else y.clamp(max=7)).contiguous()


@pytest.mark.parametrize("name", SINGLE)
def test_a_dtype_is_scored_exactly_if_it_trains(name, rng) -> None:
    head = head_of(name)
    y = labels(name, head, rng)
    for law in laws(head, rng):
        whole = law.log_prob(y)
        for dtype in DTYPES:
            boolean = dtype == torch.bool
            given = (y.clamp(max=1) if boolean else y).to(dtype)
            try:
                head.parse_targets(given, B)
            except errors.DtypeError:
                with pytest.raises(errors.DtypeError, match=head.site):
                    law.log_prob(given)
                continue
            found = law.log_prob(given)
            expected = law.log_prob(y.clamp(max=1)) if boolean else whole
            assert found.dtype == F64, dtype
            assert found.shape == (B, head.tasks), dtype
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SINGLE)
def test_flat_targets_of_a_single_task(name, rng) -> None:
    head = single(name)
    y = targets_of(name, rng, head)[:1].expand(B, 1)
    for law in laws(head, rng):
        found = law.log_prob(y[:, 0])
        assert found.shape == (B, 1)
        assert torch.equal(found, law.log_prob(y))
    p, h = posterior_of(head, rng), normal(rng, B, D)
    flat, table = (log_predictive_density(head, p, h, t, samples=4) for t in (y[:, 0], y))
    assert torch.equal(flat, table)
    listed = [y[:, 0], torch.ones(B, dtype=torch.bool)]
    assert torch.equal(log_predictive_density(head, p, h, listed, samples=4), table)


#: Shapes that fit neither [5, 2] nor [5, 1], by the number of tasks.
BAD = {
    2: [(1,), (2,), (B,), (1, 1), (1, 2), (2, 1), (B, 1), (2, B), (B, B), (4, B, 1), (4, 1, 2)],
    1: [(2,), (1, B), (B, B), (3, B), (3, 1, B)],
}


@pytest.mark.parametrize("tasks", BAD)
@pytest.mark.parametrize("name", SINGLE)
def test_nothing_is_broadcast(name, tasks, rng) -> None:
    head = head_of(name) if tasks == 2 else single(name)
    kind = torch.long if head.target_kind == "class" else F64
    for law in laws(head, rng):
        for shape in BAD[head.tasks]:
            bad = torch.ones(shape, dtype=kind)
            with pytest.raises(errors.ShapeError, match=rf"\[5, {head.tasks}\]"):
                law.log_prob(bad)
            for method in ("cdf", "icdf"):
                if _has(law, method):
                    with pytest.raises(errors.ShapeError, match=head.site):
                        getattr(law, method)(0.5 * bad)


@pytest.mark.parametrize("name", SINGLE)
def test_samples_and_grids_are_scored_one_by_one(name, rng) -> None:
    head = head_of(name)
    y = labels(name, head, rng)
    kind = y.dtype
    for law in laws(head, rng):
        for drawn in (law.sample((2, 2)), law.sample((B,))):
            each = drawn.reshape(-1, B, head.tasks)
            each = each.to(kind) if head.target_kind == "class" else each
            together = law.log_prob(each.reshape(drawn.shape))
            assert together.shape == drawn.shape
            for part, score in zip(each, together.reshape(-1, B, head.tasks), strict=True):
                torch.testing.assert_close(law.log_prob(part), score, rtol=1e-8, atol=1e-9)
        one = torch.ones((), dtype=kind)
        torch.testing.assert_close(law.log_prob(one), law.log_prob(one.expand(B, head.tasks)))
        grid = torch.arange(2).to(kind)[:, None, None]
        torch.testing.assert_close(law.log_prob(grid)[1], law.log_prob(one))
        if _has(law, "cdf"):
            levels = law.cdf(grid)
            assert levels.shape == (2, B, head.tasks)
            torch.testing.assert_close(levels[1], law.cdf(one.expand(B, head.tasks)))


def _has(law: Any, method: str) -> bool:
    try:
        getattr(law, method)(torch.full((B, law.batch_shape[1]), 0.5, dtype=F64))
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("value", [0.5, [0.5] * B, None])
def test_what_is_no_tensor_is_refused(value, rng) -> None:
    for law in laws(single("gaussian"), rng):
        with pytest.raises(errors.DtypeError, match="must be a tensor"):
            law.log_prob(value)


def test_the_laws_are_still_torch_s(rng) -> None:
    """Of the classes that users look for, and as good as them when expanded."""
    for name, kind in (
        ("gaussian", torch.distributions.Normal),
        ("bernoulli", torch.distributions.Bernoulli),
        ("classes", torch.distributions.Categorical),
    ):
        head = single(name)
        law = laws(head, rng)[0]
        assert isinstance(law, kind)
        wide = law.expand((4, B, 1))
        y = targets_of(name, rng, head)[:1].expand(B, 1)
        assert torch.equal(wide.log_prob(y)[2], law.log_prob(y))
        with pytest.raises(errors.ShapeError):
            wide.log_prob(y.expand(B, 2))
