"""A step cut into chunks of tasks and examples is the same step."""

from __future__ import annotations

import pytest
import torch
from oracles import close

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.targets import Targets


def setting(rng, memory, *, structure="full", masked=False, agg=None):
    """Two heads of 7 + 3 tasks after one epoch, about to take a Bayesian step."""
    features = torch.randn(11, 5, generator=rng, dtype=torch.float64)
    binary = (torch.rand(11, 7, generator=rng) < 0.4).double()
    real = torch.randn(11, 3, generator=rng, dtype=torch.float64)
    mask = torch.rand(11, 7, generator=rng) < 0.7
    mask[:, 2] = False  # a task nobody has seen
    head = heads.Bernoulli(5, tasks=7, pos_weight=torch.rand(7, generator=rng) + 0.5).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(7, 6, generator=rng))
    mtl = ba.BayesAgg(
        {"binary": head, "real": heads.Gaussian(5, tasks=3).double()},
        agg or aggregation.PrecisionWeighted.paper(power=0.7),
        inference={"binary": inference.TaylorGGN(structure), "real": inference.Conjugate()},
        prior=priors.FullData(variance=0.5) if structure == "full" else priors.Constant(0.5),
        working_memory=memory,
    )
    targets = {"binary": (binary, mask) if masked else binary, "real": real}
    return mtl, features, targets


def step(mtl, features, targets):
    mtl.collect(features, targets)
    mtl.update_prior()
    mtl.start_bayes()
    features = features.clone().requires_grad_()
    losses = mtl.backward(features, targets)
    return features.grad, losses, mtl.info


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("memory", [1, 3000, 20_000])
def test_chunks_change_nothing(structure, masked, memory) -> None:
    def run(memory):
        rng = torch.Generator().manual_seed(3)
        return step(*setting(rng, memory, structure=structure, masked=masked))

    grad, losses, info = run(memory)
    expected, expected_losses, whole = run(None)
    close(grad, expected)
    for name in losses:
        assert losses[name].isnan().equal(expected_losses[name].isnan())  # a task without labels
        close(losses[name].nan_to_num(), expected_losses[name].nan_to_num())
    close(info.weights, whole.weights)
    close(info.effective_tasks, whole.effective_tasks)
    close(info.condition["binary"], whole.condition["binary"])
    assert torch.equal(info.jitter["binary"], whole.jitter["binary"])


@pytest.mark.parametrize("resolution", ["dimension", "task"])
def test_methods_that_mix_examples_see_the_whole_batch(resolution) -> None:
    def run(memory):
        rng = torch.Generator().manual_seed(4)
        agg = aggregation.PrecisionWeighted(power=0.7, resolution=resolution)
        return step(*setting(rng, memory, masked=True, agg=agg))[0]

    close(run(1), run(None))


@pytest.mark.parametrize("kind", ["mean", "sum", "paper"])
def test_methods_that_do_not_mix_examples_see_pieces(rng, kind) -> None:
    base = {"mean": aggregation.Mean, "sum": aggregation.Sum}.get(
        kind, aggregation.PrecisionWeighted
    )

    class Counting(base):
        def aggregate(self, grad):
            sizes.append(grad.mean.shape[1])
            return super().aggregate(grad)

    sizes: list[int] = []
    step(*setting(rng, 1, agg=Counting.paper() if kind == "paper" else Counting()))
    assert sizes == [1] * 11


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 6])
def test_pieces_of_tasks_are_as_large_as_memory_allows(rng, at_once) -> None:
    """A task takes five dense matrices in float64; the last piece holds what is left."""

    class Counting(inference.TaylorGGN):
        def infer(self, head, *arguments, **settings):
            sizes.append(head.tasks)
            return super().infer(head, *arguments, **settings)

    sizes: list[int] = []
    each = 5 * 8 * 6 * 6
    mtl, features, targets = setting(rng, None)
    mtl = ba.BayesAgg(
        dict(mtl.heads.items()),
        aggregation.PrecisionWeighted(),
        inference={"binary": Counting(), "real": inference.Conjugate()},
        prior=priors.Constant(0.5),
        warmup=False,
        working_memory=at_once * each + each - 1,
    )
    mtl.backward(features.clone().requires_grad_(), targets)
    assert sizes == [at_once] * (7 // at_once) + [7 % at_once] * (7 % at_once > 0)


@pytest.mark.parametrize("masked", [False, True])
def test_a_loss_of_ones_own_has_its_size_in_chunks_of_tasks(masked) -> None:
    """Defaults bring it to that of −log p, whatever aggregates its gradients later."""

    class Tenfold(heads.Bernoulli):
        def loss(self, outputs, targets):
            return 10 * super().loss(outputs, targets)

    def run(memory, kind):
        rng = torch.Generator().manual_seed(6)
        _, features, targets = setting(rng, memory, masked=masked)
        torch.manual_seed(0)
        made = {"binary": kind(5, tasks=7).double(), "real": heads.Gaussian(5, tasks=3).double()}
        mtl = ba.BayesAgg(made, working_memory=memory)
        mtl.aggregation = aggregation.PrecisionWeighted()
        mtl.estimators["binary"] = None
        return step(mtl, features, targets)[0]

    whole = run(None, Tenfold)
    close(run(1, Tenfold), whole)
    close(run(None, heads.Bernoulli), whole)


def test_kept_gradients_are_whole(rng) -> None:
    mtl, features, targets = setting(rng, 1)
    mtl.keep_gradients = True
    step(mtl, features, targets)
    assert mtl.info.gradients.mean.shape == (10, 11, 5)
    assert mtl.info.stages.posteriors["binary"].covariance_matrix.shape == (7, 6, 6)


def test_a_chunked_step_resumes(rng) -> None:
    mtl, features, targets = setting(rng, 1)
    step(mtl, features, targets)
    other, _, _ = setting(torch.Generator().manual_seed(9), 1)
    other.load_state_dict(mtl.state_dict())
    again = [features.clone().requires_grad_() for _ in range(2)]
    for engine, h in zip((mtl, other), again, strict=True):
        engine.backward(h, targets)
    assert torch.equal(again[0].grad, again[1].grad)


def test_part_of_a_head_is_a_head(rng) -> None:
    head = heads.Bernoulli(4, tasks=5, pos_weight=[1.0, 2.0, 3.0, 4.0, 5.0])
    some = part(head, slice(1, 3))
    assert some.tasks == 2
    assert torch.equal(some.weight, head.weight[1:3])
    assert some.pos_weight.tolist() == [2.0, 3.0]
    features = torch.randn(6, 4, generator=rng)
    close(some(features), head(features)[:, 1:3], 1e-6)
    assert head.tasks == 5
    assert head.weight.requires_grad
    shared = part(heads.Gaussian(4, tasks=5, noise_scale=0.3), slice(0, 2))
    assert shared.noise_scale.ndim == 0


def test_heads_with_more_are_not_cut() -> None:
    class Scaled(heads.Bernoulli):
        def __init__(self) -> None:
            super().__init__(4, tasks=3)
            self.register_buffer("temperature", torch.ones(3))

    head = Scaled()
    assert not divisible(head)
    with pytest.raises(errors.SettingError, match="per_task"):
        part(head, slice(0, 1))


def test_packed_gaussians_are_gaussians(rng) -> None:
    root = torch.randn(3, 6, 6, generator=rng, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(6, dtype=torch.float64)
    mean = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    dense = posteriors.Gaussian(mean, matrix)
    packed = posteriors.PackedGaussian.pack(dense, torch.float64)
    close(packed.precision_matrix, matrix)
    close(packed.variance, dense.variance)
    close(packed.covariance_matrix, dense.covariance_matrix)
    vectors = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    close(packed.solve(vectors), dense.solve(vectors))
    close(packed.precision_times(vectors), dense.precision_times(vectors))
    close(packed.log_prob(vectors), dense.log_prob(vectors))
    close(packed.part(slice(1, 3)).precision_matrix, matrix[1:3])
    assert torch.equal(packed.with_mean(vectors).mean, vectors)
    design = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    close(packed.project(design).cross, dense.project(design).cross)
    again = posteriors.Posterior.from_state_dict(packed.state_dict())
    assert torch.equal(again.precision_matrix, packed.precision_matrix)
    small = posteriors.PackedGaussian.pack(dense, torch.float32)
    assert small.lower.dtype == torch.float32
    assert small.to(dtype=torch.float64).lower.dtype == torch.float32
    torch.testing.assert_close(small.precision_matrix, matrix, rtol=1e-7, atol=1e-6)
    with pytest.raises(errors.ShapeError, match="packed"):
        posteriors.PackedGaussian(mean, torch.ones(3, 20))


def test_parts_of_targets() -> None:
    targets = Targets(torch.arange(6.0).reshape(3, 2), torch.ones(3, 2, dtype=torch.bool))
    assert targets.examples(slice(1, 3)).values.tolist() == [[2, 3], [4, 5]]
    assert targets.part(slice(1, 2)).values.tolist() == [[1], [3], [5]]
    assert targets.part(slice(1, 2)).weight is None


def test_examples_of_a_distribution_weigh_as_in_the_batch(rng) -> None:
    head = heads.Gaussian(4, tasks=2).double()
    features = torch.randn(6, 4, generator=rng, dtype=torch.float64)
    values = torch.randn(6, 2, generator=rng, dtype=torch.float64)
    mask = torch.tensor([[True, False]] * 3 + [[True, True]] * 3)
    prior = priors.isotropic(head, 1.0)
    posterior = inference.Conjugate().infer(head, features, (values, mask), prior)
    grad = gradients.distribution(head, posterior, features, (values, mask))
    agg = aggregation.PrecisionWeighted.paper(power=0.5)
    joint = torch.cat([agg(grad.examples(slice(0, 4))), agg(grad.examples(slice(4, 6)))])
    close(joint, agg(grad))


def test_working_memory_must_be_positive() -> None:
    with pytest.raises(errors.SettingError, match="working_memory"):
        ba.BayesAgg({"y": heads.Gaussian(3)}, working_memory=0)


@pytest.mark.parametrize("memory", [1, 2**23])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_packed_priors_are_the_priors(rng, monkeypatch, memory, dtype) -> None:
    from bayesagg_pyro.priors import _packed

    monkeypatch.setattr(_packed, "LARGE", memory)
    mtl, features, targets = setting(rng, 1, masked=True)
    small = ba.BayesAgg(
        dict(mtl.heads.items()),
        mtl.aggregation,
        inference=mtl.schemes,
        prior=priors.FullData(variance=0.5, dtype=dtype),
        working_memory=1,
    )
    exact, _, _ = step(mtl, features, targets)
    packed, _, _ = step(small, features, targets)
    close(packed, exact, 1e-10 if dtype == torch.float64 else 1e-6)
    prior = small.priors()["binary"]
    assert isinstance(prior, posteriors.PackedGaussian)
    assert prior.lower.dtype == dtype
    state = small.state_dict()
    small.load_state_dict(state)
    assert torch.equal(small.priors()["binary"].lower, prior.lower)


def test_diagonal_priors_need_no_packing(rng) -> None:
    head = heads.Bernoulli(3, tasks=2).double()
    mtl = ba.BayesAgg(
        {"y": head},
        inference=inference.TaylorGGN("diag"),
        prior=priors.FullData(dtype=torch.float32),
    )
    features = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    step(mtl, features, {"y": (features[:, :2] > 0).double()})
    assert isinstance(mtl.priors()["y"], posteriors.DiagonalGaussian)
    with pytest.raises(errors.SettingError, match="floating"):
        priors.FullData(dtype=torch.int32)


@pytest.mark.parametrize("missing", ["none", "for all tasks", "each its own"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_large_batches_are_made_in_pieces(rng, monkeypatch, missing, weighted) -> None:
    """Those of the whole; tasks with one mask have one precision, as those without any."""
    head = heads.Gaussian(4, tasks=3).double()
    h, y = (torch.randn(90, n, generator=rng, dtype=torch.float64) for n in (4, 3))
    mask = torch.rand(90, 3, generator=rng) < 0.7
    mask = {"none": None, "for all tasks": mask[:, 0], "each its own": mask}[missing]
    weight = torch.rand(90, generator=rng, dtype=torch.float64) if weighted else None
    given, separate = Targets(y, mask, weight), Targets(y, mask, weight)
    if missing == "for all tasks":
        separate = Targets(y, mask[:, None].repeat(1, 3), weight)

    def found(given):
        posterior = inference.Conjugate().infer(head, h, given, priors.isotropic(head, 1.0))
        statistics = inference.GaussianStatistics(head)
        statistics.add(h, head.parse_targets(given, 90))
        return posterior, statistics

    posterior, statistics = found(given)
    assert len(posterior.precision_matrix) == (3 if missing == "each its own" else 1)
    other, _ = found(separate)
    close(posterior.mean, other.mean)
    close(posterior.variance, other.variance)
    monkeypatch.setattr("bayesagg_pyro.inference._normal_equations.BLOCK", 60)
    in_pieces, summed = found(given)
    close(in_pieces.mean, posterior.mean)
    for name in ("gram", "moment", "square", "total", "count", "rows"):
        close(getattr(summed, name), getattr(statistics, name))
