"""Each kind of posterior against the dense matrix of its parameters, in all that it offers."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import close, spd
from scipy import stats
from torch import Tensor

from bayesagg_pyro import errors, posteriors

F64 = torch.float64
TASKS, C, D = 3, 2, 3
P = C * D


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=F64)


def blocked(mean: Tensor, precision: Tensor) -> posteriors.BlockedGaussian:
    k = (P + 1) // 2
    return posteriors.BlockedGaussian(mean, precision[:, :k, :k], precision[:, k:])


def make(kind: str, rng: torch.Generator) -> tuple[posteriors.Posterior, Tensor]:
    """A posterior of two outputs per task, and its covariance [TASKS, P, P]."""
    mean, precision = normal(rng, TASKS, P), spd(rng, TASKS, P)
    diagonal = torch.rand(TASKS, P, generator=rng, dtype=F64) + 0.5
    if kind == "Gaussian":
        found, covariance = posteriors.Gaussian(mean, precision), precision.inverse()
    elif kind == "shared":
        found, covariance = posteriors.Gaussian(mean, precision[:1]), precision[:1].inverse()
    elif kind == "Blocked":
        found, covariance = blocked(mean, precision), precision.inverse()
    elif kind == "Packed":
        dense = posteriors.Gaussian(mean, precision)
        found, covariance = posteriors.PackedGaussian.pack(dense, F64), precision.inverse()
    elif kind == "Diagonal":
        found = posteriors.DiagonalGaussian(mean, diagonal)
        covariance = torch.diag_embed(1 / diagonal)
    elif kind == "LowRank":
        factor = normal(rng, TASKS, P, 2)
        found = posteriors.LowRankGaussian(mean, factor, diagonal)
        covariance = factor @ factor.mT + torch.diag_embed(diagonal)
    elif kind == "Kronecker":
        outputs, inputs = spd(rng, TASKS, C), spd(rng, TASKS, D)
        count = torch.tensor([2.0, 5.0, 0.0], dtype=F64)  # the last: nothing seen, counts as 1
        isotropic = torch.tensor([0.3, 1.0, 2.0], dtype=F64)
        found = posteriors.KroneckerGaussian(mean, outputs, inputs, count, isotropic)
        product = torch.stack([torch.kron(*pair) for pair in zip(outputs, inputs, strict=True)])
        eye = torch.eye(P, dtype=F64)
        inverse = product / count.clamp(min=1)[:, None, None] + isotropic[:, None, None] * eye
        covariance = inverse.inverse()
    else:
        shape, rate = torch.tensor([4.0, 6.0, 9.0], dtype=F64), diagonal[:, 0]
        found = posteriors.NormalInverseGamma(mean, precision, shape, rate)
        covariance = precision.inverse() * (rate / (shape - 1))[:, None, None]
    return found.replace(outputs_per_task=C), covariance.expand(TASKS, P, P)


GAUSSIANS = ["Gaussian", "shared", "Blocked", "Packed", "Diagonal", "LowRank", "Kronecker"]
KINDS = [*GAUSSIANS, "NormalInverseGamma"]


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_dense_matrix(rng, kind) -> None:
    found, covariance = make(kind, rng)
    close(found.covariance_matrix.expand(TASKS, P, P), covariance, 1e-9)
    close(found.variance.expand(TASKS, P), covariance.diagonal(dim1=1, dim2=2), 1e-9)
    assert (found.tasks, found.event_shape) == (TASKS, (P,))
    assert torch.equal(found.weight_mean, found.mean.reshape(TASKS * C, D))


@pytest.mark.parametrize("kind", KINDS)
def test_densities_are_scipys(rng, kind) -> None:
    found, covariance = make(kind, rng)
    values = normal(rng, 4, TASKS, P)
    expected = torch.empty(4, TASKS, dtype=F64)
    for t in range(TASKS):
        mean, s = found.mean[t].numpy(), covariance[t].numpy()
        if kind == "NormalInverseGamma":
            a, b = float(found.shape_parameter[t]), float(found.rate[t])
            law = stats.multivariate_t(mean, s * (a - 1) / a, df=2 * a)
            assert float(found.noise_mean[t]) == pytest.approx(b / (a - 1))
            assert float(found.noise_variance[t]) == pytest.approx(stats.invgamma(a, scale=b).var())
        else:
            law = stats.multivariate_normal(mean, s)
        expected[:, t] = torch.from_numpy(law.logpdf(values[:, t].numpy()))
    close(found.log_prob(values), expected, 1e-8)
    for same in (values[:1, 0, :].expand(TASKS, P), values[:1, 0], values[0, 0]):
        close(found.log_prob(same), found.log_prob(values[0, 0].expand(TASKS, P)), 1e-12)
    for wrong in (values[..., :1], values[..., 0, :1].squeeze(), values[:, 0], values[0, 0, 0]):
        with pytest.raises(errors.ShapeError, match=rf"\[\.\.\., {TASKS}, {P}\]"):
            found.log_prob(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_its_moments_and_come_from_the_generator_alone(rng, kind) -> None:
    found, covariance = make(kind, rng)
    state = torch.get_rng_state()
    one, two, other = (
        found.sample((2, 3), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)  # and what that is does not matter
    assert torch.equal(one, found.sample((2, 3), generator=torch.Generator().manual_seed(1)))
    assert one.shape == (2, 3, TASKS, P)
    assert torch.equal(one, two)
    assert not torch.isclose(one, other).any()
    count = 40_000
    draws = found.sample((count,), generator=rng) - found.mean
    scale = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert (draws.mean(0) / scale).abs().max() < 6 / math.sqrt(count)
    seen = torch.einsum("stp,stq->tpq", draws, draws) / count
    wrong = (seen - covariance) / scale[:, :, None] / scale[:, None]
    assert wrong.abs().max() < 0.06
    across = torch.einsum("stp,suq->tupq", draws, draws) / count
    across = across / scale[:, None, :, None] / scale[None, :, None, :]
    assert across[~torch.eye(TASKS, dtype=torch.bool)].abs().max() < 0.04  # tasks are independent


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_products_and_solutions(rng, kind) -> None:
    found, covariance = make(kind, rng)
    vectors, design = normal(rng, TASKS, P), normal(rng, 5, P)
    precision = covariance.inverse()
    close(found.precision_matrix.expand(TASKS, P, P), precision, 1e-9)
    close(found.precision_times(vectors), (precision @ vectors[..., None])[..., 0], 1e-9)
    several = normal(rng, 4, TASKS, P)
    close(found.precision_times(several), (precision @ several[..., None])[..., 0], 1e-9)
    close(found.solve(vectors), (covariance @ vectors[..., None])[..., 0], 1e-9)
    if kind == "Kronecker":
        with pytest.raises(NotImplementedError):
            found.project(design)
    else:
        projection = found.project(design)
        close(projection.cross.expand(TASKS, 5, P), design @ covariance, 1e-9)
        close(
            projection.variance.expand(TASKS, 5),
            torch.einsum("bp,tpq,bq->tb", design, covariance, design),
            1e-9,
        )
    moved = found.with_mean(vectors)
    assert torch.equal(moved.mean, vectors)
    close(moved.covariance_matrix.expand(TASKS, P, P), covariance, 1e-9)
    close(moved.log_prob(vectors), found.log_prob(found.mean), 1e-9)
    order = torch.tensor([0, 1, 3, 4, 2, 5])  # two rows of two weights, then both biases
    laplace = found.to_laplace_order()
    close(laplace.mean, found.mean[:, order])
    close(laplace.covariance_matrix.expand(TASKS, P, P), covariance[:, order][:, :, order], 1e-9)
    assert torch.equal(found.to_laplace_order(bias=False).mean, found.mean)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_moves_and_storage_keep_the_distribution(rng, kind) -> None:
    found, covariance = make(kind, rng)
    some = found.part(slice(1, 3))
    assert (some.tasks, some.outputs_per_task) == (2, C)
    close(some.mean, found.mean[1:])
    close(some.covariance_matrix.expand(2, P, P), covariance[1:], 1e-9)
    again = posteriors.Posterior.from_state_dict(found.state_dict())
    assert type(again) is type(found)
    assert again.outputs_per_task == C
    values = normal(rng, TASKS, P)
    assert torch.equal(again.log_prob(values), found.log_prob(values))
    for name, tensor in found.tensors().items():
        assert tensor.data_ptr() != again.tensors()[name].data_ptr(), name
    small = found.to(dtype=torch.float32)
    assert small.mean.dtype == torch.float32
    assert small.outputs_per_task == C
    close(small.covariance_matrix.double().expand(TASKS, P, P), covariance, 1e-4)
    assert small.to(dtype=torch.float32) is small or kind in ("NormalInverseGamma", "Packed")


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_copying_into_another_writes_its_tensors(rng, kind) -> None:
    found, covariance = make(kind, rng)
    other, _ = make(kind, torch.Generator().manual_seed(5))
    close(other.variance.sum(), other.variance.sum())  # whatever is derived is derived now
    other.log_prob(other.mean)
    places = {name: tensor.data_ptr() for name, tensor in other.tensors().items()}
    assert other.copy_(found) is other
    assert {name: tensor.data_ptr() for name, tensor in other.tensors().items()} == places
    values = normal(rng, TASKS, P)
    close(other.log_prob(values), found.log_prob(values))
    close(other.variance, found.variance)
    close(other.covariance_matrix.expand(TASKS, P, P), covariance, 1e-9)
    with pytest.raises(errors.ShapeError, match="cannot be written into"):
        other.copy_(posteriors.DiagonalGaussian(values[:1], torch.ones(1, P, dtype=F64)))


class Round(posteriors.GaussianFamily):
    """A user's own, N(m, s² I), that says how it is dense and no more."""

    arguments = ("mean", "width")

    def __init__(self, mean: Tensor, width: Tensor) -> None:
        super().__init__(mean)
        self.width = width

    def to_gaussian(self) -> posteriors.Gaussian:
        precision = self.width.pow(-2)[:, None].expand_as(self.mean)
        return posteriors.DiagonalGaussian(self.mean, precision).to_gaussian()


def test_a_gaussian_of_ones_own_needs_its_dense_form_alone(rng) -> None:
    own, values = (
        Round(normal(rng, TASKS, P), torch.tensor([0.5, 1.0, 2.0], dtype=F64)),
        normal(rng, TASKS, P),
    )
    dense, design = own.to_gaussian(), normal(rng, 4, P)
    torch.testing.assert_close(own.variance, own.width.square()[:, None].expand(TASKS, P))
    for name in ("precision_times", "solve", "mahalanobis", "log_prob"):
        close(getattr(own, name)(values), getattr(dense, name)(values))
    close(own.project(design).variance, dense.project(design).variance)
    drawn = own.rsample((40000,), generator=rng)
    torch.testing.assert_close(drawn.std(0), own.variance.sqrt(), rtol=0.02, atol=0)
    again = posteriors.Posterior.from_state_dict(own.part(slice(1, 3)).state_dict())
    assert isinstance(again, Round)
    assert torch.equal(again.width, own.width[1:])


def test_a_posterior_class_takes_no_unknown_keyword() -> None:
    with pytest.raises(TypeError):

        class Odd(posteriors.Gaussian, kind="odd"):  # type: ignore[call-arg]
            pass


def test_tensors_of_two_dtypes_are_all_brought_to_one() -> None:
    mixed = posteriors.DiagonalGaussian(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.float64))
    assert {t.dtype for t in mixed.to(dtype=torch.float32).tensors().values()} == {torch.float32}


#: An entry of the state that, times −1, is of no distribution.
NEGATIVE = {
    "Gaussian": "precision_matrix",
    "shared": "precision_matrix",
    "Blocked": "upper",
    "Packed": "lower",
    "Diagonal": "precision",
    "LowRank": "diagonal",
    "Kronecker": "isotropic",
    "NormalInverseGamma": "shape",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_no_distribution_is_refused(rng, kind) -> None:
    state = make(kind, rng)[0].state_dict()
    (key,) = (name for name in state if name.endswith(f".{NEGATIVE[kind]}"))
    with pytest.raises(errors.BayesAggError, match=r"definite|must be positive|shape > 2"):
        posteriors.Posterior.from_state_dict({**state, key: -100 * state[key]})


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_a_dense_copy_keeps_what_is_known_and_has_its_own_condition(rng, kind) -> None:
    found = make(kind, rng)[0]
    steps = torch.tensor([1, 2, 3])
    known = posteriors.Info(torch.zeros(TASKS).double(), torch.ones(TASKS).double(), steps=steps)
    dense = found.replace(info=known).to_gaussian()
    own = posteriors.Gaussian(found.mean, dense.precision_matrix).info
    assert torch.equal(dense.info.steps, steps)
    if type(found) is not posteriors.Gaussian:
        close(dense.info.condition.expand(TASKS), own.condition.expand(TASKS))
        close(dense.info.jitter.expand(TASKS), own.jitter.expand(TASKS))


@pytest.mark.parametrize(
    ("factor", "jitter"), [((TASKS, P, P), (TASKS + 1,)), ((1, P, P), (1,)), ((P, P), (P,))]
)
def test_a_factor_of_another_shape_is_refused(factor, jitter) -> None:
    mean, precision = torch.zeros(TASKS, P), torch.eye(P).expand(TASKS, -1, -1)
    with pytest.raises(errors.ShapeError, match="needs a factor of that shape"):
        posteriors.Gaussian(
            mean, precision, precision_tril=torch.ones(factor), jitter=torch.zeros(jitter)
        )


@pytest.mark.parametrize("shape", [(TASKS, P + 1), (1, P), (P,)])
def test_a_scale_of_another_shape_is_refused(shape) -> None:
    packed = posteriors.PackedGaussian.pack(
        posteriors.Gaussian(torch.zeros(TASKS, P), torch.eye(P).expand(TASKS, -1, -1)), F64
    )
    with pytest.raises(errors.ShapeError, match=r"scale of shape \[3, "):
        posteriors.PackedGaussian(packed.mean, packed.lower, torch.ones(shape))
