"""Weights of tasks whose labels are missing, from every example or from some."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from oracles import close, gradient_moments
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads
from bayesagg_pyro.aggregation import PrecisionWeighted, effective_tasks
from bayesagg_pyro.gradients import GradientDistribution

DOUBLE = torch.float64


def patterns(rng: torch.Generator) -> dict[str, Tensor]:
    """[4 tasks, 10 examples]."""
    one_each = torch.zeros(4, 10, dtype=torch.bool)
    one_each[torch.arange(10) % 4, torch.arange(10)] = True
    some = torch.rand(4, 10, generator=rng) < 0.5
    some[:, 3] = False
    absent = torch.rand(4, 10, generator=rng) < 0.7
    absent[2] = False
    lonely = torch.zeros(4, 10, dtype=torch.bool)
    lonely[1, 7] = True
    return {
        "all": torch.ones(4, 10, dtype=torch.bool),
        "one each": one_each,
        "some": some,
        "absent": absent,
        "one label": lonely,
    }


PATTERNS = ["all", "one each", "some", "absent", "one label"]


def moments(rng: torch.Generator, observed: Tensor) -> GradientDistribution:
    mean = torch.randn(4, 10, 3, generator=rng, dtype=DOUBLE)
    variance = torch.randn(4, 10, 3, generator=rng, dtype=DOUBLE).exp()
    mean, variance = (torch.where(observed[..., None], x, 0.0) for x in (mean, variance))
    return GradientDistribution(mean, variance, observed)


def test_defaults_and_the_papers() -> None:
    rule, paper = PrecisionWeighted(), PrecisionWeighted.paper()
    assert (rule.power, rule.resolution, rule.covariance) == (0.5, "task", "diagonal")
    assert (paper.power, paper.resolution, paper.covariance) == (1.0, "example", "diagonal")
    assert PrecisionWeighted.paper({"a": 0.3}).power == {"a": 0.3}
    full = PrecisionWeighted(covariance="full")
    assert repr(full) == repr(PrecisionWeighted.paper(covariance="full"))
    assert "resolution='task'" in repr(rule)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("power", [0.0, 0.5, [0.2, 0.9, 0.5, 1.0]], ids=str)
@pytest.mark.parametrize("resolution", ["task", "dimension"])
def test_weights_are_those_of_the_batch(rng, name, power, resolution) -> None:
    """α_t = (T_obs / T) softmax_t(−s log v_t), by a loop over the tasks that have labels."""
    observed = patterns(rng)[name]
    grad = moments(rng, observed)
    powers = power if isinstance(power, list) else [power] * 4
    there = [t for t in range(4) if observed[t].any()]
    v = {t: grad.variance[t][observed[t]].mean(0) for t in there}
    if resolution == "task":
        v = {t: x.mean().expand(3) for t, x in v.items()}
    total = sum(v[t] ** -powers[t] for t in there)
    expected = torch.zeros(4, 10, 3, dtype=DOUBLE)
    direction = torch.zeros(10, 3, dtype=DOUBLE)
    for t in there:
        alpha = len(there) / 4 * v[t] ** -powers[t] / total
        expected[t][observed[t]] = alpha
        direction[observed[t]] += alpha * (grad.mean[t] * 10 / observed[t].sum())[observed[t]]
    rule = PrecisionWeighted(power, resolution=resolution)
    close(rule.weights(grad), expected)
    close(rule(grad), direction)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("resolution", ["task", "dimension", "example"])
@pytest.mark.parametrize("settings", [{}, {"floor": 0.5}, {"max_ratio": 2.0}], ids=str)
def test_equal_variances_are_linear_scalarisation(rng, name, resolution, settings) -> None:
    observed = patterns(rng)[name]
    grad = moments(rng, observed)
    equal = GradientDistribution(grad.mean, torch.full_like(grad.mean, 2.0), observed)
    uniform = aggregation.Mean().aggregate(grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = PrecisionWeighted(0.8, resolution=resolution, **settings).aggregate(equal)
    close(result.direction, uniform.direction)
    present = observed.any(1).sum().double()
    close(result.effective_tasks, present)
    close(uniform.effective_tasks, present)


def test_full_labels_are_bit_for_bit_those_without_a_mask(rng) -> None:
    grad = gradient_moments(rng, tasks=4, batch=10)
    everything = torch.ones(4, 10, dtype=torch.bool)
    masked = GradientDistribution(grad.mean, grad.variance, everything)
    for resolution in ("task", "dimension", "example"):
        rule = PrecisionWeighted(0.7, resolution=resolution)
        assert torch.equal(rule(masked), rule(grad))


def test_bounds_look_at_tasks_of_the_batch(rng) -> None:
    observed = patterns(rng)["absent"]
    grad = moments(rng, observed)
    seen = observed.any(1)
    alone = GradientDistribution(grad.mean[seen], grad.variance[seen], observed[seen])
    for settings in ({"floor": 1.0}, {"max_ratio": 1.5}):
        rule = PrecisionWeighted(1.0, resolution="task", **settings)
        close(rule(grad) * 4, rule(alone) * 3)


def test_effective_tasks_by_hand() -> None:
    weights = torch.tensor([[0.6, 0.2, 0.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.3]], dtype=DOUBLE)
    observed = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.bool)
    full = torch.tensor([[0.6, 0.2, 0.4], [0.2, 0.2, 0.2], [0.3, 0.3, 0.3]], dtype=DOUBLE)
    expected = full.sum(0).square() / full.square().sum(0)
    close(effective_tasks(weights[..., None], observed)[:, 0], expected)
    unseen = observed.clone()
    unseen[:, 2] = False
    found = effective_tasks(weights[..., None], unseen)[:, 0]
    assert found[2].isnan()
    assert found[:2].isfinite().all()


@pytest.mark.parametrize("memory", [1, 5000, None])
def test_the_engine_says_how_many_of_how_many(memory) -> None:
    """Uniform weights read the number of tasks with labels; chunks change nothing."""
    rng = torch.Generator().manual_seed(3)
    mask = torch.rand(23, 4, generator=rng) < 0.4
    mask[:, 2] = False
    h = torch.randn(23, 5, generator=rng, dtype=DOUBLE)
    y = torch.randn(23, 4, generator=rng, dtype=DOUBLE)

    def info(rule, memory):
        mtl = ba.BayesAgg({"y": heads.Gaussian(5, tasks=4)}, rule, working_memory=memory)
        mtl.double().collect(h, {"y": y})
        mtl.update_prior()
        mtl.start_bayes()
        mtl.backward(h.clone().requires_grad_(), {"y": (y, mask)})
        return mtl.info

    for rule in (aggregation.Mean(), PrecisionWeighted(0.0), PrecisionWeighted.paper(0.0)):
        found = info(rule, memory)
        assert float(found.effective_tasks) == pytest.approx(3)
        assert int(found.observed_tasks) == 3
        expected = torch.tensor([0.25, 0.25, 0.0, 0.25], dtype=DOUBLE)
        close(found.weights, expected)
    for rule in (PrecisionWeighted(1.0), PrecisionWeighted.paper()):
        found, whole = info(rule, memory), info(rule, None)
        assert 1 <= float(found.effective_tasks) < 2.9999
        close(found.effective_tasks, whole.effective_tasks)
        close(found.weights, whole.weights)


def one_label_each(batch: int = 24) -> GradientDistribution:
    observed = torch.zeros(2, batch, dtype=torch.bool)
    observed[0, : batch // 2] = observed[1, batch // 2 :] = True
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(2, batch, 3, generator=rng) * observed[..., None]
    return GradientDistribution(mean, mean.square() + observed[..., None], observed)


def test_weights_per_example_of_single_labels_warn_once() -> None:
    rule = PrecisionWeighted.paper()
    with pytest.warns(UserWarning, match='0 of 24 examples .*resolution="task"'):
        rule(one_label_each())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule(one_label_each())
        copy.deepcopy(rule)(one_label_each())
        PrecisionWeighted()(one_label_each())
        PrecisionWeighted.paper(0.0)(one_label_each())  # is meant to be uniform
        PrecisionWeighted.paper()(one_label_each(4))  # too few to tell
        several = one_label_each()
        several.observed[:, :2] = True
        PrecisionWeighted.paper()(several)


@pytest.mark.parametrize(
    ("labelled", "both", "unlabelled", "warns"),
    [(8, 0, 0, True), (7, 0, 0, False), (7, 0, 9, False), (8, 0, 9, True),
     (24, 1, 0, True), (24, 2, 0, False), (20, 1, 0, True), (20, 2, 20, False)],
)  # fmt: skip
def test_single_labels_are_those_of_nearly_all_labelled_examples(
    labelled: int, both: int, unlabelled: int, warns: bool
) -> None:
    observed = torch.zeros(2, labelled + unlabelled, dtype=torch.bool)
    observed[0, :labelled] = observed[1, :both] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean = observed[..., None] * torch.ones(3)
        PrecisionWeighted.paper()(GradientDistribution(mean, mean, observed))
    assert [str(one.message)[: len(f"{both} of {labelled} ")] for one in caught] == (
        [f"{both} of {labelled} "] * warns
    )


def test_domains_weigh_by_their_uncertainty() -> None:
    """Nobody has two labels: the update still depends on the power, by the tasks' variances."""
    grad = one_label_each()
    scaled = GradientDistribution(
        grad.mean, torch.stack([grad.variance[0], 16 * grad.variance[1]]), grad.observed
    )
    before, after = (PrecisionWeighted(0.5).weights(g) for g in (grad, scaled))
    shares = [w[0].amax() / w[1].amax() for w in (before, after)]
    torch.testing.assert_close(shares[1], 4 * shares[0])
