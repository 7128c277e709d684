"""Second-order inference of any head: from its likelihood, or from a curvature of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors

F64 = torch.float64
D, N = 3, 30


class Softmax(heads.Head):
    """`Categorical`, as a user would write it."""

    target_kind: ClassVar[Any] = "class"

    def likelihood(self, outputs: Tensor) -> Any:
        return torch.distributions.Categorical(logits=outputs, validate_args=False)

    def supports(self, values: Tensor) -> Tensor:
        return (values >= 0) & (values < self.outputs_per_task)


class Beta(heads.Head):
    """Shares in (0, 1): outputs are the logit of the mean and the log of the concentration."""

    filler = 0.5

    def likelihood(self, outputs: Tensor) -> Any:
        mean, size = outputs[..., 0].sigmoid(), outputs[..., 1].exp()
        return torch.distributions.Beta(mean * size, (1 - mean) * size, validate_args=False)

    def supports(self, values: Tensor) -> Tensor:
        return (values > 0) & (values < 1)


class Noisy(heads.Head):
    """`Heteroscedastic` without Fisher's information."""

    def likelihood(self, outputs: Tensor) -> Any:
        mean, log_variance = outputs.unbind(-1)
        return torch.distributions.Normal(mean, (0.5 * log_variance).exp(), validate_args=False)


class NoisyFisher(Noisy):
    """The same with it."""

    def output_curvature(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        slope, matrix = super().output_curvature(outputs, targets)
        assert isinstance(matrix, Tensor)
        precision = (-outputs[..., 1]).exp()
        return slope, torch.stack([precision, torch.full_like(precision, 0.5)], -1)


def rng(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def normal(*shape: int, number: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(number), dtype=F64)


def started(head: heads.Head) -> heads.Head:
    head = head.double()
    with torch.no_grad():
        head.weight.copy_(0.3 * normal(*head.weight.shape, number=1))
    return head


@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", [inference.TaylorGGN, inference.Laplace])
def test_a_softmax_written_anew_has_the_same_posterior(kind, tasks, structure) -> None:
    built_in = started(heads.Categorical(D, 4, tasks=tasks))
    mine = started(Softmax(D, tasks, outputs_per_task=4, bias=True))
    data = (
        torch.randint(4, (N, tasks), generator=rng()),
        torch.rand(N, tasks, generator=rng(2)) > 0.2,
        torch.rand(N, tasks, generator=rng(3), dtype=F64),
    )
    one, two = (
        kind(structure).infer(head, normal(N, D), data, priors.isotropic(head, 1.0))
        for head in (built_in, mine)
    )
    assert type(one) is type(two)
    torch.testing.assert_close(two.mean, one.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        two.to_gaussian().precision_matrix,
        one.to_gaussian().precision_matrix,
        rtol=1e-10,
        atol=1e-10,
    )
    assert two.info.dropped_curvature.max() < 1e-12
    assert one.info.dropped_curvature is None


def test_fishers_information_of_a_users_head_is_taken() -> None:
    built_in = started(heads.Heteroscedastic(D, 2))
    mine = started(NoisyFisher(D, 2, outputs_per_task=2, bias=True))
    h, y = normal(N, D), normal(N, 2, number=4)
    for structure in ("full", "diag", "kron"):
        one, two = (
            inference.TaylorGGN(structure).infer(head, h, y, priors.isotropic(head, 1.0))
            for head in (built_in, mine)
        )
        torch.testing.assert_close(two.mean, one.mean)
        torch.testing.assert_close(two.covariance_matrix, one.covariance_matrix)


def _oracle(head: heads.Head, h: Tensor, y: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, GGN without negative curvature, and its share; example by example."""
    point = head.point().detach()
    outputs = head.outputs_per_task
    gradient = torch.zeros_like(point)
    matrix = torch.zeros(*point.shape, point.shape[-1], dtype=F64)
    sizes = torch.zeros(2, head.tasks, dtype=F64)
    for i, t in torch.nonzero(seen).tolist():

        def nll(f: Tensor, i: int = i, t: int = t) -> Tensor:
            return -head.likelihood(f).log_prob(y[i, t])

        x = torch.cat([h[i], h.new_ones(1)])
        f = point[t].reshape(outputs, -1) @ x
        slope = torch.autograd.functional.jacobian(nll, f)
        values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(nll, f))
        sizes[0, t] += -values.clamp(max=0).sum()
        sizes[1, t] += values.abs().sum()
        positive = vectors @ torch.diag(values.clamp(min=0)) @ vectors.T
        gradient[t] += torch.kron(slope, x)
        matrix[t] += torch.kron(positive, torch.outer(x, x))
    return gradient, matrix, sizes[0] / sizes[1]


@pytest.mark.parametrize("kind", [Beta, Noisy])
def test_two_outputs_agree_with_derivatives_example_by_example(kind) -> None:
    head = started(kind(D, 2, outputs_per_task=2, bias=True))
    h = normal(N, D)
    y = torch.rand(N, 2, generator=rng(6), dtype=F64) ** 3 + 1e-3
    seen = torch.rand(N, 2, generator=rng(5)) > 0.3
    gradient, matrix, share = _oracle(head, h, y, seen)
    prior = priors.isotropic(head, 0.5)
    total = matrix + 2.0 * torch.eye(8, dtype=F64)
    step = torch.linalg.solve(total, gradient + 2.0 * head.point().detach())
    found = inference.TaylorGGN().infer(head, h, (y, seen), prior)
    torch.testing.assert_close(found.precision_matrix, total)
    torch.testing.assert_close(found.mean, head.point().detach() - step)
    torch.testing.assert_close(found.info.dropped_curvature, share)
    assert share.min() > 1e-4
    diagonal = inference.TaylorGGN("diag").infer(head, h, (y, seen), prior)
    assert isinstance(diagonal, posteriors.DiagonalGaussian)
    torch.testing.assert_close(diagonal.precision, total.diagonal(dim1=1, dim2=2))
    # A head that moves its outputs is expanded through their Jacobian, which is here the same.
    moved = type("Moved", (kind,), {"forward": lambda self, *a: 1.0 * kind.forward(self, *a)})
    other = started(moved(D, 2, outputs_per_task=2, bias=True))
    through = inference.TaylorGGN().infer(other, h, (y, seen), prior)
    torch.testing.assert_close(through.precision_matrix, total)
    torch.testing.assert_close(through.mean, found.mean)
    torch.testing.assert_close(through.info.dropped_curvature, share)


def test_a_network_takes_the_curvature_of_its_likelihood() -> None:
    module = torch.nn.Linear(D, 4)
    head = heads.Network(module, Beta(D, 2, outputs_per_task=2, bias=True)).double()
    plain = Beta(D, 2, outputs_per_task=2, bias=True).double()
    with torch.no_grad():
        plain.weight.copy_(torch.cat([module.weight, module.bias[:, None]], 1))
    h, y = normal(N, D), torch.rand(N, 2, generator=rng(6), dtype=F64) ** 3 + 1e-3
    one, two = (
        inference.TaylorGGN().infer(x, h, y, priors.isotropic(x, 1.0)) for x in (head, plain)
    )
    rows = torch.arange(16).reshape(4, 4)
    order = torch.cat([rows[:, :3].flatten(), rows[:, 3]])  # weights, then biases
    torch.testing.assert_close(one.mean[0], two.mean.flatten()[order])
    sizes = [x.info.dropped_curvature for x in (one, two)]
    assert sizes[0].shape == (1,)
    assert sizes[1].min() <= sizes[0] <= sizes[1].max()


def test_laplace_finds_the_mode_of_a_users_head() -> None:
    head = started(Beta(D, 2, outputs_per_task=2, bias=True))
    h, y = normal(N, D), torch.rand(N, 2, generator=rng(6), dtype=F64) * 0.9 + 0.05
    prior = priors.isotropic(head, 1.0)
    found = inference.Laplace().infer(head, h, y, prior)
    assert found.info.converged.all()
    mode = found.mean.clone().requires_grad_()
    joint = inference.log_joint(head, mode, h, head.parse_targets(y, N), prior)
    (slope,) = torch.autograd.grad(joint.sum(), mode)
    assert slope.abs().max() < 1e-6


@pytest.mark.parametrize("streaming", [False, True])
def test_the_engine_trains_a_users_head_of_two_outputs(streaming) -> None:
    """The default scheme, statistics of both kinds, a state, and the share that was dropped."""

    def engine() -> ba.BayesAgg:
        storage = inference.Storage(streaming=streaming)
        head = started(Beta(D, 2, outputs_per_task=2, bias=True))
        return ba.BayesAgg({"y": head}, prior=priors.FullData(storage=storage), generator=rng())

    mtl, h = engine(), normal(N, D)
    assert isinstance(mtl.schemes["y"], inference.TaylorGGN)
    targets = {"y": torch.rand(N, 2, generator=rng(6), dtype=F64) ** 3 + 1e-3}
    mtl.backward(h.clone().requires_grad_(), targets)
    other = engine()
    other.load_state_dict(mtl.state_dict())
    for one in (mtl, other):
        one.update_prior()
        one.start_bayes()
        x = h.clone().requires_grad_()
        one.backward(x, targets)
        assert x.grad is not None
        assert x.grad.abs().min() > 0
    first, second = (one.priors()["y"].info.dropped_curvature for one in (mtl, other))
    assert torch.equal(first, second)
    assert first.min() > 1e-4


def test_a_curvature_of_a_wrong_shape_is_refused() -> None:
    class Wrong(Beta):
        def output_curvature(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return outputs, outputs[..., 0]

    head = Wrong(D, 2, outputs_per_task=2, name="mine").double()
    with pytest.raises(errors.ShapeError, match=r"'mine'.*output_curvature"):
        inference.TaylorGGN().infer(
            head, normal(4, D), torch.full((4, 2), 0.5), priors.isotropic(head, 1.0)
        )
