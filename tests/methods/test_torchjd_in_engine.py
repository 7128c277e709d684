"""`aggregation.TorchJD` and `aggregation.PerSample`: published aggregators inside the engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, priors
from bayesagg_pyro.errors import DtypeError, NonFiniteError, SettingError, StateError
from bayesagg_pyro.gradients import GradientDistribution
from experiments.errors import SettingsError
from experiments.methods import BayesAggMethod, BayesAggOptions

agg = pytest.importorskip("torchjd.aggregation")


def distribution(mask: Tensor | None = None) -> GradientDistribution:
    torch.manual_seed(0)
    head = heads.Gaussian(4, tasks=3).double()
    features, targets = torch.randn(6, 4).double(), torch.randn(6, 3).double()
    posterior = priors.isotropic(head, 0.3)
    given = targets if mask is None else (targets, mask)
    return gradients.cat({"levels": gradients.distribution(head, posterior, features, given)})


def test_means_are_aggregated() -> None:
    grad = distribution()
    found = aggregation.TorchJD(agg.UPGrad()).aggregate(grad)
    expected = agg.UPGrad()(grad.mean.flatten(1)).view_as(grad.mean[0])
    torch.testing.assert_close(found.direction, expected)
    assert found.effective_tasks is not None


@pytest.mark.parametrize(("theirs", "ours"), [(agg.Mean, "Mean"), (agg.Sum, "Sum")])
def test_mean_and_sum_are_ours(theirs: type, ours: str) -> None:
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[4:, 1] = False
    grad = distribution(mask)
    one, two = aggregation.TorchJD(theirs()), getattr(aggregation, ours)()
    assert one.reduction == two.reduction
    torch.testing.assert_close(one(grad), two(grad))


@pytest.mark.parametrize("name", ["IMTLG", "Bargain"])
def test_as_an_option_of_the_benchmarks(name: str) -> None:
    """On the default rule's gradients: the posterior mean's, and at learned weights for classes."""

    def parts() -> tuple[torch.nn.Module, dict[str, heads.Head]]:
        torch.manual_seed(1)
        found = {"level": heads.Gaussian(4, 2), "kind": heads.Categorical(4, 3)}
        return torch.nn.Linear(3, 4), found

    net, mine = parts()
    options = BayesAggOptions(rule="default", aggregator=name, prior_variance=1.0)
    method = BayesAggMethod(net, mine, options)
    other, theirs = parts()
    at_weights = gradients.PlugIn(at="weights")
    engine = ba.BayesAgg(
        theirs,
        aggregation.Bargain() if name == "Bargain" else aggregation.TorchJD(agg.IMTLG()),
        estimator={"level": gradients.Exact(), "kind": at_weights},
        prior=priors.FullData(1.0),
        warmup=True,
        reduction="mean",
    )
    x = torch.randn(8, 3)
    targets = {"level": torch.randn(8, 2), "kind": torch.randint(3, (8, 1))}
    for mtl, backbone in ((method.mtl, net), (engine, other)):
        mtl.backward(backbone(x), targets)  # the first prior
        mtl.update_prior()
        mtl.start_bayes()
        backbone.zero_grad()
        torch.manual_seed(2)  # variances of classes are sampled
        mtl.backward(backbone(x), targets)
    assert isinstance(net, torch.nn.Linear)
    assert isinstance(other, torch.nn.Linear)
    torch.testing.assert_close(net.weight.grad, other.weight.grad, rtol=0, atol=0)
    with pytest.raises(SettingsError, match=r"aggregator = 'IMTL' cannot work: .* IMTLG"):
        BayesAggMethod(*parts(), BayesAggOptions(aggregator="IMTL"))


def test_per_sample_of_a_linear_aggregator_is_the_mean_gradient() -> None:
    grad = distribution()
    found = aggregation.PerSample(agg.Mean(), samples=4000)(grad)
    error = (grad.variance.sum(0) / 9 / 4000).sqrt()
    assert ((found - grad.mean.mean(0)).abs() < 5 * error).all()


def test_per_sample_is_the_average_over_draws() -> None:
    grad = distribution()
    seeded = torch.Generator().manual_seed(4)
    found = aggregation.PerSample(agg.MGDA(), samples=5, generator=seeded).aggregate(grad)
    draws = grad.sample((5,), generator=torch.Generator().manual_seed(4))
    expected = torch.stack([agg.MGDA()(d.flatten(1)) for d in draws]).mean(0)
    torch.testing.assert_close(found.direction.flatten(), expected)
    assert not torch.allclose(found.direction, aggregation.TorchJD(agg.MGDA())(grad), rtol=1e-3)
    assert found.weights is not None
    torch.testing.assert_close(found.weights.sum(0), torch.ones(1, 1).double())


@pytest.mark.parametrize("rule", [aggregation.Mean(), aggregation.TorchJD(agg.UPGrad())], ids=repr)
def test_draws_count_where_there_is_a_target_alone(rule: aggregation.Aggregation) -> None:
    """Whatever a sampler gives elsewhere; each task's loss averages over its own examples."""
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[4:, 1] = mask[:5, 2] = False
    grad = distribution(mask)
    draw = torch.where(mask.mT[..., None], torch.randn(3, 6, 4).double(), torch.nan)
    one = GradientDistribution(
        grad.mean,
        grad.variance,
        mask.mT,
        grad.groups,
        sampler=lambda count, _: draw.expand(count, -1, -1, -1),
    )
    found = aggregation.PerSample(rule, samples=2)(one)
    scaled = torch.stack([draw[t].nan_to_num() * 6 / mask[:, t].sum() for t in range(3)])
    if isinstance(rule, aggregation.Mean):
        expected = scaled.mean(0)
    else:
        expected = agg.UPGrad()(scaled.flatten(1)).view(6, 4)
    torch.testing.assert_close(found, expected)


def test_per_sample_takes_our_own() -> None:
    grad = distribution()
    found = aggregation.PerSample(aggregation.Mean(), samples=3)(grad)
    draws = grad.sample((3,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, draws.mean((0, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: aggregation.TorchJD(agg.PCGrad()),
        lambda: aggregation.PerSample(agg.UPGrad(), samples=4),
    ],
)
def test_trains(make: object) -> None:
    torch.manual_seed(0)
    backbone = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh())
    mtl = ba.BayesAgg({"levels": heads.Gaussian(8, tasks=2)}, make(), warmup_epochs=2)  # type: ignore[operator]
    x = torch.randn(64, 3)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)
    optimizer = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=1e-2)
    history = []
    for _ in range(40):
        for _ in range(3):
            optimizer.zero_grad()
            history.append(mtl.backward(backbone(x), {"levels": y})["levels"])
            optimizer.step()
        mtl.update_prior()
    assert (history[-1] < 0.5 * history[0]).all()


def test_errors() -> None:
    with pytest.raises(DtypeError, match="torchjd"):
        aggregation.TorchJD(agg.UPGrad)
    with pytest.raises(SettingError, match="samples must be an integer of at least 1"):
        aggregation.PerSample(agg.UPGrad(), samples=0)
    grad = distribution()
    with pytest.raises(StateError, match="cannot be sampled"):
        aggregation.PerSample(agg.UPGrad())(GradientDistribution(grad.mean, grad.variance))
    bad = GradientDistribution(grad.mean.clone(), grad.variance, groups=grad.groups)
    bad.mean[1, 0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"task levels\[1\]"):
        aggregation.TorchJD(agg.UPGrad())(bad)


def make_engine(kind: str) -> ba.BayesAgg:
    torch.manual_seed(0)
    made = {
        "memory": lambda: aggregation.TorchJD(agg.NashMTL(n_tasks=3, update_weights_every=3)),
        "random": lambda: aggregation.TorchJD(agg.GradDrop()),
        "draws": lambda: aggregation.PerSample(agg.PCGrad(), samples=2),
        "ours": aggregation.PrecisionWeighted,
    }[kind]()
    return ba.BayesAgg({"levels": heads.Gaussian(4, tasks=3)}, made, warmup_epochs=1)


def steps(mtl: ba.BayesAgg, count: int, seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        leaf = torch.randn(6, 4, generator=g).requires_grad_()
        mtl.backward(leaf, {"levels": torch.randn(6, 3, generator=g)})
        assert leaf.grad is not None
        found.append(leaf.grad)
    return found


@pytest.mark.filterwarnings("ignore:.*NashMTL:UserWarning")
@pytest.mark.parametrize("kind", ["memory", "random", "draws", "ours"])
def test_an_aggregator_goes_on_where_it_was(kind: str) -> None:
    if kind == "memory":
        pytest.importorskip("cvxpy")
    first, second = make_engine(kind), make_engine(kind)
    steps(first, 2, seed=1)
    first.update_prior()
    steps(first, 2, seed=2)
    second.load_state_dict(first.state_dict())
    for one, two in zip(steps(first, 3, seed=3), steps(second, 3, seed=3), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("saved", "made"), [("random", "ours"), ("ours", "random")])
def test_the_state_of_another_aggregation_is_refused(saved: str, made: str) -> None:
    first, second = make_engine(saved), make_engine(made)
    steps(first, 2, seed=1)
    first.update_prior()
    with pytest.raises(StateError, match="make the engine with the aggregation as saved"):
        second.load_state_dict(first.state_dict())
    assert second.warmup  # nothing was taken over
    with pytest.raises(StateError, match="no prior"):
        second.start_bayes()
