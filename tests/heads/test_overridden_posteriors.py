"""A head that changes its base's model is inferred with the change by every scheme, or refused."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from overridden import CASES, CHANGES, LIKELIHOODS, D, Setting, make, seed
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors

SECOND_ORDER: dict[str, Callable[[], inference.Scheme]] = {
    "taylor": inference.TaylorGGN,
    "laplace": inference.Laplace,
    "taylor diag": lambda: inference.TaylorGGN("diag"),
}
GAUSSIAN: dict[str, Callable[[], inference.Scheme]] = {
    "conjugate": inference.Conjugate,
    "integrated": inference.IntegratedNoise,
}
SAMPLED: dict[str, Callable[[], inference.Scheme]] = {
    # From the prior: at the optimum only rounding would be left for Adam to follow.
    "variational": lambda: inference.Variational(
        steps=2, particles=2, whiten="prior", generator=seed()
    ),
    "ensemble": lambda: inference.Ensemble(3, data="bootstrap", generator=seed()),
    "hmc": lambda: inference.HMC(4, warmup=2, chains=1, generator=seed()),
    "delta": inference.Delta,
}


#: The curvature of a changed likelihood is not the base's, nor the point that chains start from.
ELSEWHERE = {
    "student": (*SECOND_ORDER, "hmc"),
    "heteroscedastic": (*SECOND_ORDER, "hmc", "ensemble"),
}


def refused(case: Setting, scheme: str) -> bool:
    """Which schemes have no valid form for which changed heads."""
    if scheme in GAUSSIAN:
        return case.change not in ("design", "loss")
    return False


@pytest.mark.parametrize(("name", "change", "where"), CASES)
def test_posteriors(name: str, change: str, where: str) -> None:
    case = make(name, change, where)
    prior = priors.isotropic(case.head, 0.8)
    schemes = SECOND_ORDER | (GAUSSIAN if name == "gaussian" else {})
    if where != "class":  # of which all ask in one place
        schemes = {key: schemes[key] for key in ("taylor", "conjugate") if key in schemes}
    if where == "class" and name in ("gaussian", "classes", "network"):
        schemes |= SAMPLED  # which look at the density alone
    for scheme, build in schemes.items():
        if change in LIKELIHOODS and scheme in ELSEWHERE.get(name, ()):
            continue
        if refused(case, scheme):
            with pytest.raises(errors.BayesAggError, match=type(case.head).__name__):
                build().infer(case.head, case.features, case.targets, prior)
            with pytest.raises(errors.BayesAggError, match=type(case.head).__name__):
                build().statistics(case.head, inference.Storage())
            continue
        found = build().infer(case.head, case.features, case.targets, prior)
        for got, right in zip(_numbers(found), _expected(name, case.seen, build), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-6, atol=1e-7, msg=scheme)


@functools.cache
def _expected(name: str, seen: str, build: Callable[[], inference.Scheme]) -> tuple[Tensor, ...]:
    """The plain head's posterior, of the data that several changes come to."""
    case = make(name, seen, "class")
    prior = priors.isotropic(case.plain, 0.8)
    return _numbers(build().infer(case.plain, *case.data, prior))


def _numbers(posterior: posteriors.Posterior) -> tuple[Tensor, ...]:
    if isinstance(posterior, posteriors.Empirical):
        return (posterior.samples,)
    if isinstance(posterior, posteriors.Point):
        return (posterior.mean,)
    return posterior.mean, posterior.covariance_matrix


@pytest.mark.skipif(not importlib.util.find_spec("laplace"), reason="laplace-torch is missing")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["gaussian", "classes"])
def test_posteriors_of_laplace_torch(name: str, change: str) -> None:
    case = make(name, change, "class")
    scheme, prior = inference.LaplaceTorch(), priors.isotropic(case.plain, 0.8)
    if change != "loss":
        with pytest.raises(errors.SettingError, match="laplace-torch has no"):
            scheme.infer(case.head, case.features, case.targets, prior)
        return
    found = scheme.infer(case.head, case.features, case.targets, prior)
    expected = scheme.infer(case.plain, case.features, case.targets, prior)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)


@pytest.mark.parametrize("change", CHANGES)
def test_the_default_scheme_is_right_for_a_changed_head(change: str) -> None:
    case = make("gaussian", change, "class")
    found = _trained(case.head, case.features, case.targets)
    features, targets = case.data
    expected = _trained(case.plain, features, targets).posteriors()["y"]
    torch.testing.assert_close(found.posteriors()["y"].mean, expected.mean)
    torch.testing.assert_close(
        found.posteriors()["y"].covariance_matrix, expected.covariance_matrix
    )


def _trained(head: heads.Head, features: Tensor, targets: Any) -> ba.BayesAgg:
    mtl = ba.BayesAgg({"y": head}, warmup=False)
    mtl.collect(features, {"y": targets})
    mtl.update_prior()
    mtl.backward(features.clone().requires_grad_(), {"y": targets})
    return mtl


def test_a_default_that_does_not_fit_is_refused_by_name() -> None:
    class Pair(heads.Head):
        def likelihood(self, outputs: Tensor) -> Any:
            return torch.distributions.Normal(outputs[..., 0], outputs[..., 1].exp())

        def negative_log_probs(self, *arguments: Any) -> Tensor:
            return 2 * super().negative_log_probs(*arguments)

    with pytest.raises(errors.SettingError, match=r"'y'.*Pair.*sampling scheme"):
        ba.BayesAgg({"y": Pair(D, outputs_per_task=2)})


def test_outputs_that_mix_the_weights_of_tasks_are_refused() -> None:
    class Mixed(heads.Gaussian):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return super().forward(features, weight).cumsum(-1)

    head = Mixed(D, 3, name="mixed").double()
    h, y = torch.zeros(4, D).double(), torch.zeros(4, 3).double()
    for scheme in (inference.TaylorGGN(), inference.Laplace()):
        with pytest.raises(errors.SettingError, match=r"'mixed'.*Mixed.*SharedWeights"):
            scheme.infer(head, h, y, priors.isotropic(head, 1.0))
    with pytest.raises(errors.SettingError, match=r"'mixed'.*SharedWeights"):
        ba.BayesAgg({"y": head})


def test_overrides_that_would_be_ignored_are_refused() -> None:
    """By a network, whose outputs are its module's, and by a Pyro model, which says it all."""

    class Twice(heads.Gaussian):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return 2 * super().forward(features, weight)

    class Model(heads.FromPyro):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return 2 * super().forward(features, weight)

    for build in (heads.Network, heads.Network.last_layer):
        with pytest.raises(errors.SettingError, match=r"'mine'.*module.*Twice"):
            build(torch.nn.Linear(D, 1, bias=False), Twice(D, name="mine"))
    with pytest.raises(errors.SettingError, match=r"'mine'.*Model overrides \['forward'\]"):
        Model(lambda features, targets=None: None, D, name="mine")


@pytest.mark.parametrize("variance", ["task", None])
def test_an_evidence_that_is_no_longer_the_heads_is_refused_at_once(variance: Any) -> None:
    noise: Any = 1.0 if variance else "learned"
    case = make("gaussian", "forward", "class")
    head = type(case.head)(D, noise_scale=noise, name="mine")
    policy = priors.FullData("learned" if variance else 1.0)
    with pytest.raises(errors.DtypeError, match=r"'mine'.*Mine overrides forward of Gaussian"):
        ba.BayesAgg({"y": head}, prior=policy)


@pytest.mark.parametrize("scheme", [inference.TaylorGGN, inference.Laplace])
def test_outputs_that_use_other_weights_than_those_given_are_refused(scheme: Any) -> None:
    class Deaf(heads.Bernoulli):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return super().forward(features, self.weight.detach().to(features)[:, : D + 1])

    head = Deaf(D, bias=True)
    h, y = torch.randn(4, D, dtype=torch.float64), torch.ones(4, 1)
    with pytest.raises(errors.SettingError, match="Deaf have no derivative in the weights"):
        scheme().infer(head, h, y, priors.isotropic(head, 1.0))


@pytest.mark.parametrize("bias", [True, False])
def test_an_expansion_by_hand_in_inference_mode(bias: bool) -> None:
    class Twice(heads.Bernoulli):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return 2 * super().forward(features, weight)

    head = Twice(D, bias=bias)
    h, y = torch.randn(6, D, dtype=torch.float64), torch.ones(6, 1)
    right = inference.TaylorGGN().infer(head, h, y, priors.isotropic(head, 1.0))
    with torch.inference_mode():
        prior = priors.isotropic(head, 1.0)
        found = inference.TaylorGGN().infer(head, h.clone(), y.clone(), prior)
    torch.testing.assert_close(found.precision_matrix, right.precision_matrix)
