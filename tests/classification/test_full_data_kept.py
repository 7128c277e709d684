"""Full-data priors of classification heads: examples kept, or their expansions summed."""

from __future__ import annotations

from copy import copy

import pytest
import torch
from dense import CUTS, KINDS, PAIRS, Task, close, normal, rows, start, task

from bayesagg_pyro import errors, inference, posteriors, priors
from bayesagg_pyro.inference import Storage
from bayesagg_pyro.targets import Targets


def direct(t, scheme, features=None) -> posteriors.GaussianFamily:
    h = t.features if features is None else features
    return scheme.infer(t.head, h, t.given, priors.isotropic(t.head, 0.7))


def same(a: posteriors.GaussianFamily, b: posteriors.GaussianFamily, tolerance=1e-10) -> None:
    assert type(a) is type(b)
    assert a.outputs_per_task == b.outputs_per_task
    close(a.mean, b.mean, tolerance)
    close(a.to_gaussian().precision_matrix, b.to_gaussian().precision_matrix, tolerance)


@pytest.mark.parametrize(("kind", "structure"), PAIRS)
@pytest.mark.parametrize("storage", [Storage(), Storage(streaming=True)], ids=["kept", "streamed"])
@pytest.mark.parametrize("holes", [False, True])
def test_however_the_epoch_is_cut(rng, kind, structure, storage, holes) -> None:
    """While the weights stand still, kept and streamed examples both give direct inference."""
    t = task(rng, kind, n=24, mask=holes, weight=holes, by_target=holes)
    # Kronecker sums alone have the mean of their factors.
    scheme = inference.TaylorGGN(structure, mean_steps=0)
    tracker = start(t, scheme, storage)
    assert not tracker.collected
    for cut in CUTS:
        tracker.collect(t.features[cut], rows(t, cut))
    assert tracker.collected
    tracker.update()
    assert not tracker.collected
    same(tracker.prior, direct(t, scheme))
    with pytest.raises(errors.StateError, match="no data"):
        tracker.update()


@pytest.mark.parametrize("kind", KINDS)
def test_laplace_keeps_examples_too(rng, kind) -> None:
    t = task(rng, kind, n=24, mask=True)
    tracker = start(t, inference.Laplace())
    for cut in CUTS:
        tracker.collect(t.features[cut], rows(t, cut))
    tracker.update()
    same(tracker.prior, direct(t, inference.Laplace()))


@pytest.mark.parametrize("first", ["mask", "weight"])
def test_the_first_mask_or_weight_may_come_late(rng, first) -> None:
    """Batches before it are observed and count once; batches after it without one as well."""
    t = task(rng, "binary", n=24, mask=True, weight=True)
    tracker = start(t, inference.TaylorGGN())
    ones = torch.ones_like(t.mask)
    expected_mask, expected_weight = ones.clone(), ones.double()
    for i, cut in enumerate(CUTS):
        late = i == 2
        mask = t.mask[cut] if late and first == "mask" else None
        weight = t.weight[cut] if late and first == "weight" else None
        if mask is not None:
            expected_mask[cut] = mask
        if weight is not None:
            expected_weight[cut] = weight
        tracker.collect(t.features[cut], Targets(t.targets[cut], mask, weight))
    saved = tracker.state_dict()[f"FullData.statistics.{first}"]
    assert saved.dtype == {"mask": torch.bool, "weight": torch.float64}[first]
    t.mask, t.weight = expected_mask, expected_weight
    same(tracker.propose(), direct(t, inference.TaylorGGN()))


@pytest.mark.parametrize("capacity", [0, 2, 24, 1000])
def test_room_grows(rng, capacity) -> None:
    t = task(rng, "class", n=24)
    statistics = inference.TaylorGGN().statistics(t.head, Storage(capacity=capacity))
    for i in range(24):
        statistics.add(t.features[i : i + 1], Targets(t.targets[i : i + 1]))
        room = len(statistics._arrays["features"])
        assert room >= max(capacity, i + 1)
        assert room <= max(capacity, 1, 2 * i)  # doubling, from the capacity on
    assert len(statistics) == 24
    features, targets = statistics.all()
    assert torch.equal(features, t.features)
    assert torch.equal(targets.values, t.targets)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_half_precision_rounds_the_features_and_nothing_else(rng, device) -> None:
    t = task(rng, "class", n=24, weight=True)
    tracker = start(t, inference.TaylorGGN(), Storage(dtype=torch.float16, device=device))
    for cut in CUTS:
        tracker.collect(t.features[cut], rows(t, cut))
    assert tracker.state_dict()["FullData.statistics.features"].dtype == torch.float16
    assert tracker.state_dict()["FullData.statistics.weight"].dtype == torch.float64
    same(tracker.propose(), direct(t, inference.TaylorGGN(), t.features.half().double()))
    exact = direct(t, inference.TaylorGGN())
    error = (tracker.propose().mean - exact.mean).abs() / exact.variance.sqrt()
    assert 0 < error.max() < 2e-3


def test_more_examples_than_one_chunk_holds(rng) -> None:
    t = task(rng, "binary", n=9000, d=2)
    for scheme in (inference.TaylorGGN(), inference.Laplace()):
        tracker = start(t, scheme)
        tracker.collect(t.features, Targets(t.targets))
        same(tracker.propose(), direct(t, scheme), 1e-8)


@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
def test_streamed_sums_follow_the_weights(rng, structure) -> None:
    """Each batch is expanded at the weights of its moment: the minimum of the sum of quadratics.

    Kronecker products do not add up: the factors do, and the batches' own products act on how far
    the weights have moved since the first batch.
    """
    t = task(rng, "class", n=24, tasks=1)
    tracker = start(t, inference.TaylorGGN(structure), Storage(streaming=True))
    eye = torch.eye(12, dtype=torch.float64)
    curvature, shift = 0 * eye, eye[0] * 0
    outputs, inputs, origin = torch.zeros(3, 3).double(), torch.zeros(4, 4).double(), None
    for cut in CUTS:
        with torch.no_grad():
            t.head.weight.add_(0.2 * normal(rng, 3, 4))
        tracker.collect(t.features[cut], rows(t, cut))
        part = Task(t.head, t.features[cut], t.targets[cut])
        point = t.head.point()[0].detach().clone()
        origin = point if origin is None else origin
        b = torch.autograd.functional.hessian(lambda w, part=part: part.nll(w, 0), point)
        if structure == "diag":
            b = torch.diag(b.diagonal())
        elif structure == "kron":
            p = (part.design @ point.reshape(3, 4).T).softmax(-1)
            g, a = torch.diag(p.sum(0)) - p.T @ p, part.design.T @ part.design
            outputs, inputs, b = outputs + g, inputs + a, torch.kron(g, a) / len(p)
        slope = torch.autograd.functional.jacobian(lambda w, part=part: part.nll(w, 0), point)
        curvature, shift = curvature + b, shift + b @ (point - origin) - slope
    if structure == "kron":
        curvature = torch.kron(outputs, inputs) / 24
    precision = curvature + eye / 0.7
    found = tracker.propose()
    close(found.mean[0], origin + torch.linalg.solve(precision, shift - origin / 0.7))
    close(found.to_gaussian().precision_matrix[0], precision)


@pytest.mark.parametrize(("kind", "structure"), PAIRS)
def test_examples_beyond_a_memory_become_sums(rng, kind, structure) -> None:
    """From then on as if streamed: of examples until then at the weights of that moment."""
    assert Storage().memory == 2**30
    t = task(rng, kind, n=24, mask=True, weight=True)
    scheme = inference.TaylorGGN(structure, mean_steps=0)
    sums = 8 * t.head.blocks * {"full": 12**2, "diag": 12, "kron": 3**2 + 4**2}[structure]
    if kind == "binary":
        sums = 8 * t.head.blocks * {"full": 16, "diag": 4}[structure]
    tracker = start(t, scheme, Storage(memory=max(500, 2 * sums)))
    streamed = start(t, scheme, Storage(streaming=True))
    full = start(t, scheme, Storage(memory=0))  # sums would take more than the examples
    kept: list[slice] = []
    for cut in [slice(i, i + 1) for i in range(24)] * 4:
        with torch.no_grad():
            t.head.weight.add_(0.05 * normal(rng, *t.head.weight.shape))
        before = copy(tracker._statistics), tracker.state_dict()
        tracker.collect(t.features[cut], rows(t, cut))
        full.collect(t.features[cut], rows(t, cut))
        state = tracker.state_dict()
        if "FullData.statistics.filled" not in state:
            kept.append(cut)
            continue
        for one in [*kept, cut] if kept else [cut]:
            streamed.collect(t.features[one], rows(t, one))
        kept = []
        tracker._statistics, after = before[0], tracker._statistics
        assert all(torch.equal(v, before[1][k]) for k, v in tracker.state_dict().items())
        tracker._statistics = after
    assert not kept
    assert len(full._statistics) == 96
    same(tracker.propose(), streamed.propose())
    again = start(t, scheme, Storage(memory=max(500, 2 * sums)))
    again.load_state_dict(tracker.state_dict())
    assert again.collected
    same(again.propose(), tracker.propose())
    tempered = start(t, scheme, Storage(streaming=True))
    tempered.load_state_dict(tracker.state_dict())
    same(
        tracker._statistics.scaled(0.5).posterior(priors.isotropic(t.head, 0.7)),
        tempered._statistics.scaled(0.5).posterior(priors.isotropic(t.head, 0.7)),
    )
    tracker.update()
    assert not tracker.collected


def test_an_epoch_has_the_mean_of_the_dense_posterior(rng) -> None:
    t = task(rng, "class", n=24)
    tracker = start(t, inference.TaylorGGN("kron", mean_steps=2))
    tracker.collect(t.features, Targets(t.targets))
    close(tracker.propose().mean, direct(t, inference.TaylorGGN()).mean, 1e-6)


def test_an_evidence_keeps_its_examples(rng) -> None:
    t = task(rng, "class", n=24, tasks=1)
    tracker = priors.FullData("learned", storage=Storage(memory=10_000)).start(
        t.head, inference.TaylorGGN("kron")
    )
    for _ in range(100):
        tracker.collect(t.features, rows(t, slice(0, 24)))
    assert len(tracker._statistics) == 2400


def test_bad_ways_to_keep() -> None:
    with pytest.raises(errors.SettingError, match="memory"):
        Storage(memory=-1)
    with pytest.raises(errors.SettingError, match="capacity"):
        Storage(capacity=-1)
    with pytest.raises(errors.SettingError, match="floating"):
        Storage(dtype=torch.int8)
    with pytest.raises(errors.SettingError, match="variance"):
        priors.FullData(0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_more_examples_than_are_expanded_at_once(rng, kind) -> None:
    t = task(rng, kind, n=5000)
    tracker = start(t, inference.TaylorGGN())
    for cut in (slice(0, 1500), slice(1500, 5000)):
        tracker.collect(t.features[cut], rows(t, cut))
    tracker.update()
    assert isinstance(tracker.prior, posteriors.GaussianFamily)
    one = direct(t, inference.TaylorGGN())
    same(tracker.prior, one, 1e-8)
    assert not torch.allclose(one.info.gain_ratio, torch.ones(()).double())
    close(tracker.prior.info.gain_ratio, one.info.gain_ratio, 1e-8)
