"""What each policy's prior is, against posteriors written out by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from setups import Data, Run, bernoulli, categorical, close, gaussian, same
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads, inference, priors

PARTS = [slice(0, 7), slice(7, 8), slice(8, 20), slice(20, 30)]


def weighted_posterior(data: Data, base: Any, weights: list[float]) -> tuple[Tensor, Tensor]:
    """Mean and covariance with each part's log-likelihood times its weight, task by task."""
    means, covariances = [], []
    for t in range(3):
        precision = base.precision_matrix.expand(3, -1, -1)[t].clone()
        shift = precision @ base.mean[t]
        for part, weight in zip(PARTS, weights, strict=True):
            h, targets = data.parsed(part)
            design = torch.cat([h, torch.ones(len(h), 1).double()], 1)
            factor = targets.factor(torch.float64)[:, t] * weight / data.head.noise_scale[t] ** 2
            precision = precision + (design * factor[:, None]).T @ design
            shift = shift + (design * factor[:, None]).T @ targets.values[:, t]
        covariances.append(torch.linalg.inv(precision))
        means.append(covariances[-1] @ shift)
    return torch.stack(means), torch.stack(covariances)


def check(prior: Any, expected: tuple[Tensor, Tensor], tolerance: float = 1e-10) -> None:
    close(prior.mean, expected[0], tolerance)
    close(prior.covariance_matrix.expand(3, -1, -1), expected[1], tolerance)


@given(
    half_life=st.sampled_from([3.0, 20.0, 1e9]),
    temperature=st.sampled_from([0.5, 1.0, 4.0]),
    seed=st.integers(0, 9),
)
def test_running_fades_by_examples(half_life, temperature, seed) -> None:
    data = gaussian(torch.Generator().manual_seed(seed))
    policy = priors.Running(half_life, variance=0.7, temperature=temperature)
    tracker = policy.start(data.head, inference.Conjugate())
    for part in PARTS:
        tracker.collect(*data.parsed(part))
    seen = data.targets[1].any(1)  # one with no target is no example
    weights = [0.5 ** (int(seen[part.stop :].sum()) / half_life) / temperature for part in PARTS]
    base = priors.isotropic(data.head, 0.7)
    check(tracker.prior, weighted_posterior(data, base, weights))
    tracker.update()
    check(tracker.prior, weighted_posterior(data, base, weights))


def test_running_fades_by_a_quarter_of_an_epoch(rng) -> None:
    """Nothing fades in the first epoch, whose length nobody knows yet, nor when refitted."""
    data = gaussian(rng)
    tracker = priors.Running(variance=0.7).start(data.head, inference.Conjugate())
    base = priors.isotropic(data.head, 0.7)
    for part in PARTS:
        tracker.collect(*data.parsed(part))
    check(tracker.prior, weighted_posterior(data, base, [1.0] * len(PARTS)))
    for _ in range(2):  # the second finds nothing new
        tracker.update()
    for part in PARTS:
        tracker.collect(*data.parsed(part))
    seen = data.targets[1].any(1).double()
    weights = [float(0.5 ** (4 * seen[p.stop :].sum() / seen.sum()) + 0.5**4) for p in PARTS]
    check(tracker.prior, weighted_posterior(data, base, weights))


def test_running_never_lags_an_epoch(rng) -> None:
    """Its prior holds the batch just passed; FullData's does not before the update."""
    run = Run(rng, "conjugate", priors.Running(30))
    for x, y in run.batches():
        before = run.mtl._slots["a"].tracker.prior
        run.step(x, y)
        after = run.mtl._slots["a"].tracker.prior
        assert before is None or (before.mean != after.mean).any()
    run.mtl.update_prior()
    run.mtl.start_bayes()


def test_running_makes_its_prior_every_few_batches(rng) -> None:
    data = gaussian(rng)
    tracker = priors.Running(30, refresh=2).start(data.head, inference.Conjugate())
    seen = []
    for part in PARTS:
        tracker.collect(*data.parsed(part))
        seen.append(tracker.prior)
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]
    assert seen[2] is seen[3]


def test_running_streams_second_order_expansions(rng) -> None:
    """Without forgetting it is FullData on streamed sums."""
    data = bernoulli(rng)
    scheme = inference.TaylorGGN()
    running = priors.Running(1e15).start(data.head, scheme)
    full = priors.FullData(storage=inference.Storage(streaming=True)).start(data.head, scheme)
    for part in PARTS:
        for tracker in (running, full):
            tracker.collect(*data.parsed(part))
        with torch.no_grad():
            data.head.weight.add_(0.1)
    full.update()
    same(running.prior, full.prior)


@pytest.mark.parametrize("forgetting", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_previous_batch_is_recursive_filtering(forgetting, kind, rng) -> None:
    data = gaussian(rng)
    variance = torch.rand(3, 5, generator=rng).double() + 0.3

    def base(head: heads.Head) -> Any:
        found = priors.diagonal(head, variance, mean=0.2)
        return found if kind == "diagonal" else found.to_gaussian()

    policy = priors.PreviousBatch(forgetting, base=base)
    tracker = policy.start(data.head, inference.Conjugate())
    same(tracker.prior, base(data.head))
    assert tracker.posterior is None
    for part in PARTS:
        tracker.collect(*data.parsed(part))
    weights = [(1 - forgetting) ** k for k in (4, 3, 2, 1)]
    check(tracker.prior, weighted_posterior(data, base(data.head), weights))
    if forgetting < 1:  # what predicts has not been forgotten yet
        check(
            tracker.posterior,
            weighted_posterior(data, base(data.head), [w / (1 - forgetting) for w in weights]),
        )


def test_previous_batch_with_second_order_schemes(rng) -> None:
    """Diagonal and Kronecker precisions mix likewise; with φ = 1 the base is left."""
    for make, structure in ((bernoulli, "diag"), (categorical, "kron")):
        data = make(rng)
        scheme = inference.TaylorGGN(structure)
        base = priors.isotropic(data.head, 0.5)
        once = priors.PreviousBatch(0.25, variance=0.5).start(data.head, scheme)
        once.collect(*data.parsed(PARTS[0]))
        found = scheme.infer(data.head, *data.parsed(PARTS[0]), base)
        precision = 0.75 * found.precision_matrix + 0.25 * base.precision_matrix
        close(once.prior.precision_matrix.expand_as(precision), precision)
        shift = 0.75 * found.precision_times(found.mean)
        close(once.prior.precision_times(once.prior.mean), shift)
        gone = priors.PreviousBatch(1.0, variance=0.5).start(data.head, scheme)
        gone.collect(*data.parsed(PARTS[0]))
        same(gone.prior, base)


def test_in_place_is_as_elsewhere(rng) -> None:
    """Streamed Kronecker sums begin anew at the weights of their own epoch."""
    data = categorical(rng)
    weights = torch.randn(2, *data.head.weight.shape, generator=rng)

    def trained(in_place: bool) -> Any:
        storage = inference.Storage(streaming=True)
        policy = priors.FullData(in_place=in_place, storage=storage)
        tracker = policy.start(data.head, inference.TaylorGGN("kron"))
        for weight in weights:
            with torch.no_grad():
                data.head.weight.copy_(weight)
            for part in PARTS:
                tracker.collect(*data.parsed(part))
            tracker.update()
        return tracker.prior

    same(trained(True), trained(False))


def test_constant_keeps_the_prior_and_predicts_with_all_data(rng) -> None:
    data = gaussian(rng)
    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Constant(0.5))
    same(mtl.priors()["a"], priors.isotropic(data.head, 0.5))
    mtl.start_bayes()
    point = mtl.predict(data.features)["a"]
    close(point, data.head(data.features.float()).double(), 1e-5)  # nothing better is known yet
    for part in PARTS:
        features, targets = data.rows(part)
        mtl.backward(features.requires_grad_(), {"a": targets})
    mtl.update_prior()
    same(mtl.priors()["a"], priors.isotropic(data.head, 0.5))
    base = priors.isotropic(data.head, 0.5)
    check(mtl.posteriors()["a"], weighted_posterior(data, base, [1.0] * 4))
    mean = mtl.posteriors()["a"].mean
    close(mtl.predict(data.features)["a"], data.head(data.features, mean))


def test_constant_has_the_variance_that_was_learned(rng) -> None:
    data = gaussian(rng)
    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Constant("learned"))
    mtl.collect(data.features, {"a": data.targets})
    mtl.update_prior()
    found = mtl.posteriors()["a"].info.prior_variance
    assert (found != 1).all()
    same(mtl.priors()["a"], priors.isotropic(data.head, found))


def test_fresh_is_the_posterior_of_what_it_is_shown(rng) -> None:
    data = gaussian(rng)
    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Fresh(variance=0.5))
    grad = []

    def batches() -> Any:
        for part in PARTS:
            grad.append(torch.is_grad_enabled())
            features, targets = data.rows(part)
            yield features, {"a": targets}

    mtl.backward(data.features.clone().requires_grad_(), {"a": data.targets})  # is not collected
    mtl.update_prior(batches=batches())
    assert grad == [False] * 4
    base = priors.isotropic(data.head, 0.5)
    check(mtl.priors()["a"], weighted_posterior(data, base, [1.0] * 4))
    mtl.update_prior(batches=batches())  # not added to what was shown before
    check(mtl.priors()["a"], weighted_posterior(data, base, [1.0] * 4))


def test_fresh_stops_after_so_many_examples(rng) -> None:
    data = gaussian(rng)
    drawn = []

    def batches() -> Any:
        for part in PARTS:
            drawn.append(part)
            features, targets = data.rows(part)
            yield features, {"a": targets}

    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Fresh(10, variance=0.5))
    mtl.update_prior(batches=batches())
    assert len(drawn) == 3  # 7 + 1 + 2 of 12
    features, targets = data.parsed(slice(0, 10))
    direct = inference.Conjugate().infer(
        data.head, features, targets, priors.isotropic(data.head, 0.5)
    )
    same(mtl.priors()["a"], direct)


@pytest.mark.parametrize("policy", [priors.Running(30), priors.Running(), priors.Fresh(12)])
def test_examples_without_a_target_do_not_count(policy, rng) -> None:
    """As padding, of weight 0, another head's, left out, validated now or later: one prior."""
    batches = []
    for size in (7, 9, 12):
        h, y = (torch.randn(size, k, generator=rng, dtype=torch.float64) for k in (3, 1))
        a, b = torch.rand(2, size, generator=rng) < 0.6
        batches.append((h, y, a, b))

    def given(h: Tensor, y: Tensor, a: Tensor, b: Tensor, way: str) -> tuple[Any, ...]:
        if way == "tokens":  # of which those without a target of any head are padding
            masked = {"a": (y[None], a[None]), "b": (y[None], b[None])}
            return h.masked_fill(~(a | b)[:, None], torch.nan)[None], masked
        if way == "weights":
            return h, {"a": (y, None, a.double()), "b": (y, None, b.double())}
        if way == "rows":
            return h, {"a": (y, a), "b": (y, b)}
        return ([(h[a], {"a": y[a]}), (h[b], {"b": y[b]})],)

    def prior(way: str, validate: Any) -> Any:
        mtl = ba.BayesAgg({n: heads.Gaussian(3) for n in "ab"}, prior=policy, validate=validate)
        for _ in range(2):
            epoch = [given(*each, way) for each in batches]
            if isinstance(policy, priors.Fresh):
                pairs = [pair for each in epoch for pair in (each[0] if way == "pairs" else [each])]
                mtl.update_prior(pairs)
                continue
            for each in epoch:
                mtl.collect(*each)
            mtl.update_prior()
        return mtl.priors()["a"]

    precision = torch.eye(3, dtype=torch.float64)
    seen = [int(a.sum()) for _, _, a, _ in batches]
    after = [sum(seen[k + 1 :]) for k in range(3)]
    for (h, _, a, _), count, later in zip(batches, seen, after, strict=True):
        h = h[a]
        if isinstance(policy, priors.Fresh):
            h, weight = h[: max(0, 12 - (sum(seen) - later - count))], 1.0
        elif policy.half_life is None:  # nothing fades in the first of two epochs
            weight = 0.5 ** (4 * later / sum(seen)) + 0.5**4
        else:
            weight = 0.5 ** (later / 30) + 0.5 ** ((later + sum(seen)) / 30)
        precision = precision + weight * h.mT @ h
    for way in ("rows", "weights", "pairs", "tokens"):
        for validate in ("now", "deferred"):
            close(prior(way, validate).precision_matrix[0], precision)


def test_policies_of_heads_do_not_mix(rng) -> None:
    """Fresh batches serve the head that takes them; the other has what it collected."""
    a, b = heads.Gaussian(3), heads.Gaussian(3)
    mtl = ba.BayesAgg({"a": a, "b": b}, prior={"a": priors.Fresh(), "b": priors.FullData()})
    h = torch.randn(6, 3, generator=rng).double()
    y = torch.randn(6, 1, generator=rng).double()
    mtl.backward(h.clone().requires_grad_(), {"a": y, "b": y})
    mtl.update_prior(batches=[(2 * h, {"a": y, "b": y})])
    base = priors.isotropic(a, 1.0)
    same(mtl.priors()["a"], inference.Conjugate().infer(a, 2 * h, y, base))
    same(mtl.priors()["b"], inference.Conjugate().infer(b, h, y, base))


@pytest.mark.parametrize("make", [gaussian, bernoulli, categorical])
@pytest.mark.parametrize(
    "policy",
    [
        lambda t: priors.FullData(temperature=t),
        lambda t: priors.FullData(temperature=t, storage=inference.Storage(streaming=True)),
        lambda t: priors.Running(50, temperature=t),
        lambda t: priors.PreviousBatch(0.1, temperature=t),
    ],
    ids=["full", "streamed", "running", "previous"],
)
def test_heat_widens(policy, make, rng) -> None:
    data = make(rng)
    scheme = inference.Conjugate() if make is gaussian else inference.TaylorGGN()
    spreads = []
    for temperature in (0.5, 1.0, 2.0, 8.0):
        tracker = policy(temperature).start(data.head, scheme)
        for part in PARTS[:2]:
            tracker.collect(*data.parsed(part))
        tracker.update()
        spreads.append(tracker.prior.variance)
    for cold, hot in pairwise(spreads):
        assert (hot > cold).all()


def test_heat_widens_priors_that_are_packed_in_parts(rng, monkeypatch) -> None:
    from bayesagg_pyro.priors import _packed

    monkeypatch.setattr(_packed, "LARGE", 1)
    data, found = bernoulli(rng), []
    for dtype in (None, torch.float64):
        tracker = priors.FullData(0.5, temperature=5.0, dtype=dtype)
        tracker = tracker.start(data.head, inference.TaylorGGN())
        tracker.collect(*data.parsed(slice(None)))
        tracker.update()
        found.append(tracker.prior)
    same(*found)


@pytest.mark.parametrize("policy", [priors.FullData, priors.PreviousBatch, priors.Running])
@pytest.mark.parametrize("weighted", [False, True])
def test_heat_is_not_rounded_to_the_features(policy, weighted, rng) -> None:
    data, found = bernoulli(rng), []
    half = data.features.bfloat16()
    for features in (half, half.double()):
        weight = torch.full_like(features[:, 0], 0.5)
        targets = (data.targets, None, weight) if weighted else data.targets
        tracker = policy(temperature=3.0).start(data.head, inference.TaylorGGN())
        tracker.collect(features, data.head.parse_targets(targets, len(features)))
        tracker.update()
        found.append(tracker.prior)
    same(*found)


def test_heat_leaves_the_evidence_alone(rng) -> None:
    """It widens the posterior; variance and noise are those of the data as they are."""
    found = {}
    for temperature in (1.0, 4.0):
        data = gaussian(torch.Generator().manual_seed(3))
        head = heads.Gaussian(4, 3, bias=True, noise_scale="learned")
        tracker = priors.FullData("learned", temperature=temperature).start(
            head, inference.Conjugate()
        )
        for part in PARTS:
            tracker.collect(*data.parsed(part))
        tracker.update()
        found[temperature] = tracker.prior
    cold, hot = found[1.0], found[4.0]
    assert (hot.variance > cold.variance).all()
    close(hot.info.prior_variance, cold.info.prior_variance)
    close(hot.info.noise_scale, cold.info.noise_scale)


def test_fresh_is_tempered_too(rng) -> None:
    data = gaussian(rng)
    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Fresh(variance=0.5, temperature=2.5))
    mtl.update_prior(batches=[(data.features, {"a": data.targets})])
    base = priors.isotropic(data.head, 0.5)
    check(mtl.priors()["a"], weighted_posterior(data, base, [0.4] * 4))


@pytest.mark.parametrize(
    "policy",
    [priors.FullData(in_place=True), priors.PreviousBatch(in_place=True)],
    ids=["full", "previous"],
)
def test_priors_renewed_in_place_stay_where_they_are(policy, rng) -> None:
    """As a captured graph needs it; nothing derived from old values survives."""
    data = gaussian(rng)
    plain = type(policy)(in_place=False)
    trackers = [p.start(data.head, inference.Conjugate()) for p in (policy, plain)]
    addresses = []
    for part in PARTS:
        for tracker in trackers:
            tracker.collect(*data.parsed(part))
            tracker.update()
        prior = trackers[0].prior
        addresses.append([t.data_ptr() for t in prior.tensors().values()])
        same(prior, trackers[1].prior)
        close(prior.variance, trackers[1].prior.variance)
        close(prior.info.condition, trackers[1].prior.info.condition)
    assert all(found == addresses[0] for found in addresses)


def test_a_base_of_ones_own(rng) -> None:
    data = gaussian(rng)
    covariance = torch.eye(5).double() + 0.3

    def base(head: heads.Head) -> Any:
        return priors.dense(head, covariance, mean=1.0)

    tracker = priors.FullData(base=base).start(data.head, inference.Conjugate())
    for part in PARTS:
        tracker.collect(*data.parsed(part))
    tracker.update()
    check(tracker.prior, weighted_posterior(data, base(data.head), [1.0] * 4))


@pytest.mark.parametrize("policy", [priors.FullData, priors.Constant])
def test_every_posterior_of_all_data_is_tempered(policy, rng) -> None:
    data = gaussian(rng)
    found = []
    for temperature in (1.0, 4.0):
        tracker = policy(2.0, temperature=temperature).start(data.head, inference.Conjugate())
        tracker.collect(*data.parsed(slice(None)))
        tracker.accept(tracker.propose())
        base = torch.eye(tracker.posterior.mean.shape[-1], dtype=torch.float64) / 2.0
        found.append(tracker.posterior.precision_matrix - base)
    close(4 * found[1], found[0])


@pytest.mark.parametrize("policy", [priors.FullData, priors.Constant])
def test_a_posterior_is_of_the_last_epoch_alone(policy, rng) -> None:
    data = gaussian(rng)
    tracker = policy(2.0).start(data.head, inference.Conjugate())
    for part in PARTS[2:]:
        tracker.collect(*data.parsed(part))
        tracker.accept(tracker.propose())
    base = priors.isotropic(data.head, 2.0)
    same(tracker.posterior, inference.Conjugate().infer(data.head, *data.parsed(PARTS[3]), base))


class Best(priors.Policy):
    """A user's own, which holds a posterior beside its prior."""

    held = ("prior", "_best")

    def begin(self) -> None:
        self.prior = priors.isotropic(self.head, 1.0)
        self._best: Any = None

    def collect(self, features: Tensor, targets: Any, validity: Any = None) -> None:
        given = self.head, features, targets, self.prior
        self._best = self.scheme.infer(*given)  # type: ignore[arg-type]

    def propose(self, start: Any = None) -> Any:
        return self._best


def test_what_a_policy_of_ones_own_holds_is_saved(rng) -> None:
    data = gaussian(rng)
    one, two = (Best().start(data.head, inference.Conjugate()) for _ in range(2))
    assert {key.split(".")[1] for key in one.state_dict()} == {"prior"}
    one.collect(*data.parsed(slice(0, 8)))
    two.load_state_dict(one.state_dict())
    two.to(torch.device("cpu"))
    same(two._best, one._best)
    same(two.prior, one.prior)
