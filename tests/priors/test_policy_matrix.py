"""Every policy with every scheme: it runs, or says why it cannot; saved runs go on to the bit."""

from __future__ import annotations

import io

import pytest
import torch
from setups import POLICIES, SCHEMES, Run

from bayesagg_pyro import errors, priors

#: Schemes that share their code with another one: some policies each.
FEW = {
    "laplace": ("full", "running slow"),
    "taylor on gaussian": ("full left out", "running", "evidence"),
    "taylor diag": ("full left out", "previous", "running slow"),
}


def slow(kind: str, policy: str) -> bool:
    """The evidence takes about 30 inferences at each update of a second-order scheme."""
    if kind in FEW:
        return policy not in FEW[kind]
    if "evidence" in policy:
        return kind.startswith("softmax") or (kind, policy) == ("taylor", "evidence shared")
    return False


PAIRS = [(kind, policy) for kind in SCHEMES for policy in POLICIES if not slow(kind, policy)]


@pytest.mark.parametrize(("kind", "policy"), PAIRS)
def test_a_resumed_run_is_the_same_run(kind, policy) -> None:
    """Warm-up and two Bayesian epochs, saved and resumed within the first of them."""

    def make() -> Run:
        torch.manual_seed(0)
        return Run(torch.Generator().manual_seed(7), kind, POLICIES[policy]())

    def first_part(run: Run) -> None:
        run.epoch()
        run.mtl.start_bayes()
        batches = list(run.batches())
        for batch in batches[:2]:
            run.step(*batch)

    def second_part(run: Run) -> None:
        run.step(*list(run.batches())[2])
        run.update()
        run.epoch()

    one, two = make(), make()
    first_part(one)
    file = io.BytesIO()
    torch.save({"net": one.backbone.state_dict(), "mtl": one.mtl.state_dict()}, file)
    second_part(one)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    two.backbone.load_state_dict(state["net"])
    two.mtl.load_state_dict(state["mtl"])
    second_part(two)
    for a, b in zip(one.backbone.parameters(), two.backbone.parameters(), strict=True):
        assert torch.isfinite(a).all()
        assert torch.equal(a, b)
    x = one.data.features[:5]
    for name, value in one.mtl.predict(x).items():
        assert torch.equal(value, two.mtl.predict(x)[name])
    left, right = one.mtl.priors()["a"], two.mtl.priors()["a"]
    assert torch.equal(left.mean, right.mean)
    assert torch.equal(left.variance, right.variance)


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_are_finite_and_move_the_backbone(policy) -> None:
    run = Run(torch.Generator().manual_seed(7), "conjugate", POLICIES[policy]())
    run.epoch()
    run.mtl.start_bayes()
    before = [p.clone() for p in run.backbone.parameters()]
    run.epoch()
    assert all((a != b).any() for a, b in zip(before, run.backbone.parameters(), strict=True))
    predictive = run.mtl.predictive(run.data.features)
    assert torch.isfinite(predictive["a"].stddev).all()


def test_a_state_of_another_policy_is_refused(rng) -> None:
    one = Run(rng, "conjugate", priors.Running(20))
    one.epoch()
    two = Run(rng, "conjugate", priors.FullData())
    with pytest.raises(errors.StateError, match="policy FullData, the saved state is of Running"):
        two.mtl.load_state_dict(one.mtl.state_dict())
