"""A prior without the batch, then conditioned on it, is the prior with the batch."""

from __future__ import annotations

import pytest
import torch
from setups import SCHEMES, close, gaussian, same

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, priors

KINDS = ["conjugate", "taylor on gaussian", "taylor", "taylor diag", "softmax"]
BATCH = slice(6, 14)


def everything(policy: priors.Policy, kind: str, rng: torch.Generator):
    make, scheme = SCHEMES[kind]
    data = make(rng)
    tracker = policy.start(data.head, scheme)
    for i in range(0, 30, 6):
        tracker.collect(*data.parsed(slice(i, i + 6)))
    tracker.update()
    return data, scheme, tracker


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", ["conjugate", "taylor on gaussian"])
def test_a_gaussian_head_gets_its_full_posterior_back(kind, temperature, rng) -> None:
    policy = priors.FullData(0.5, leave_batch_out=True, temperature=temperature)
    data, scheme, tracker = everything(policy, kind, rng)
    features, targets = data.parsed(BATCH)
    cavity = tracker.prior_for(features, targets)
    assert cavity.info.left_out.all()
    # As if the batch had never been seen:
    rest = priors.FullData(0.5, temperature=temperature).start(data.head, inference.Conjugate())
    for part in (slice(0, 6), slice(14, 30)):
        rest.collect(*data.parsed(part))
    rest.update()
    same(cavity, rest.prior)
    targets = targets._replace(weight=targets.weight / temperature)
    same(scheme.infer(data.head, features, targets, cavity), tracker.prior)


@pytest.mark.parametrize("kind", ["taylor", "taylor diag", "softmax"])
def test_second_order_schemes_give_the_expansion_back(kind, rng) -> None:
    """At one point estimate the Newton step from the cavity ends where the full data's does."""
    data, scheme, tracker = everything(priors.FullData(0.5, leave_batch_out=True), kind, rng)
    features, targets = data.parsed(BATCH)
    cavity = tracker.prior_for(features, targets)
    assert cavity.info.left_out.all()
    assert (cavity.variance > tracker.prior.variance).all()
    same(scheme.infer(data.head, features, targets, cavity), tracker.prior)


def test_kronecker_sums_come_back(rng) -> None:
    data, scheme, tracker = everything(
        priors.FullData(0.5, leave_batch_out=True), "softmax kron", rng
    )
    features, targets = data.parsed(BATCH)
    cavity = tracker.prior_for(features, targets)
    assert cavity.info.left_out.all()
    again = scheme.infer(data.head, features, targets, cavity)
    close(again.outputs, tracker.prior.outputs)
    close(again.inputs, tracker.prior.inputs)
    close(again.count, tracker.prior.count)


@pytest.mark.parametrize("kind", [*KINDS, "softmax kron"])
def test_features_that_grew_too_much_keep_the_prior_and_say_so(kind, rng) -> None:
    data, _, tracker = everything(priors.FullData(0.5, leave_batch_out=True), kind, rng)
    features, targets = data.parsed(BATCH)
    with torch.no_grad():
        data.head.weight.mul_(0)  # no saturation: large features have large curvature
    cavity = tracker.prior_for(features * 30, targets)
    assert not cavity.info.left_out.any()
    same(cavity, tracker.prior, 1e-12)


def test_tasks_are_decided_one_by_one() -> None:
    """One task has seen this batch, the other nothing like it."""
    torch.manual_seed(0)
    head = heads.Gaussian(2, tasks=2)
    h = torch.eye(2).double()
    tracker = priors.FullData(leave_batch_out=True).start(head, inference.Conjugate())
    mask = torch.tensor([[True, False], [True, False]])
    y = torch.ones(2, 2).double()
    tracker.collect(h, head.parse_targets((y, mask), 2))
    tracker.update()
    cavity = tracker.prior_for(h, head.parse_targets(y, 2))
    assert cavity.info.left_out.tolist() == [True, False]
    close(cavity.mean, torch.zeros(2, 2).double())
    close(cavity.covariance_matrix, torch.eye(2).double().expand(2, -1, -1))


def test_the_engine_reports_it_and_steps_with_it(rng) -> None:
    """With all data in one batch, the step's posterior is the full-data one, not data twice."""
    data = gaussian(rng)
    features, targets = data.rows(slice(0, 30))
    for leave in (True, False):
        mtl = ba.BayesAgg(
            {"a": data.head},
            prior=priors.FullData(0.5, leave_batch_out=leave),
            keep_gradients=True,
        )
        mtl.backward(features.clone().requires_grad_(), {"a": targets})
        mtl.update_prior()
        mtl.start_bayes()
        full = mtl.priors()["a"]
        mtl.backward(features.clone().requires_grad_(), {"a": targets})
        used = mtl.info.stages.posteriors["a"]
        if leave:
            assert mtl.info.left_out["a"].tolist() == [True] * 3
            same(used, full)
        else:
            assert mtl.info.left_out == {}
            assert (used.variance < full.variance).all()


def test_evidence_checks_against_the_prior_it_chose(rng) -> None:
    """The base is N(0, I); what is left must be tighter than half of the scaled one."""
    data, scheme, tracker = everything(
        priors.FullData("learned", leave_batch_out=True), "conjugate", rng
    )
    features, targets = data.parsed(slice(0, 30))
    cavity = tracker.prior_for(features, targets)  # all of the data: the scaled base is left
    assert cavity.info.left_out.all()
    variance = tracker.prior.info.prior_variance
    close(cavity.variance, variance[:, None].expand_as(cavity.variance), 1e-7)
    same(scheme.infer(data.head, features, targets, cavity), tracker.prior)


def test_running_subtracts_what_is_left_of_the_last_epoch(rng) -> None:
    data = gaussian(rng)
    policy = priors.Running(25, variance=0.5, leave_batch_out=True)
    tracker = policy.start(data.head, inference.Conjugate())
    batches = [data.parsed(slice(i, i + 10)) for i in (0, 10, 20)]
    for batch in batches:
        assert tracker.prior is None or tracker.prior_for(*batch) is tracker.prior
        tracker.collect(*batch)
    tracker.update()
    cavity = tracker.prior_for(*batches[0])
    # Of the batch of 20 examples ago, what it will count for an epoch after it came is subtracted.
    weights = [0.5 ** (20 / 25) - 0.5 ** (30 / 25), 0.5 ** (10 / 25), 1.0]
    total = priors.isotropic(data.head, 0.5).precision_matrix.expand(3, -1, -1)
    for (h, targets), weight in zip(batches, weights, strict=True):
        design = data.head.design_matrix(h)
        for t in range(3):
            factor = targets.factor(torch.float64)[:, t] / data.head.noise_scale[t] ** 2
            term = (design * factor[:, None]).T @ design * weight
            total = torch.stack([total[u] + term if u == t else total[u] for u in range(3)])
    close(cavity.precision_matrix, total)


def test_schemes_without_terms_refuse_at_once() -> None:
    class Mine(inference.Scheme):
        def infer(self, head, features, targets, prior, *, start=None, generator=None):
            return prior

    with pytest.raises(errors.SettingError, match=r"'head': Mine\(\) cannot leave a batch out"):
        priors.FullData(leave_batch_out=True).start(heads.Bernoulli(3), Mine())
    with pytest.raises(errors.SettingError, match="every training batch"):
        priors.Fresh(10, leave_batch_out=True)
