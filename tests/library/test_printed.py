"""What is printed names the class and what was chosen."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors


def model(features: Tensor, targets: Tensor | None = None) -> Tensor:
    slope = pyro.sample("slope", dist.Normal(features.new_zeros(3), 1.0).to_event(1))
    mean = torch.einsum("...bd,...d->...b", features, slope)
    with pyro.plate("examples", features.shape[-2]):
        drawn: Tensor = pyro.sample("y", dist.Normal(mean, 1.0), obs=targets)
    return drawn


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (aggregation.Bargain(), "Bargain()"),
        (gradients.Exact(), "Exact()"),
        (heads.Categorical(3, 4, tasks=2), "classes=4"),
        (heads.Ordinal(3, 5, link="probit"), "classes=5, link='probit'"),
        (heads.FromPyro(model, 3), "sites=['slope']"),
        (heads.Network(nn.Linear(3, 2), heads.Bernoulli(3, tasks=2)), "weights=8"),
        (priors.FullData(0.5, temperature=2.0), "FullData(variance=0.5, temperature=2.0)"),
        (priors.FullData(0.5, leave_batch_out=True), "leave_batch_out=True"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_was_chosen_is_shown(thing: object, said: str) -> None:
    assert said in repr(thing)


def test_an_engine_shows_the_scheme_of_each_head() -> None:
    schemes = {"a": inference.Conjugate(), "b": inference.Delta()}
    mtl = ba.BayesAgg({"a": heads.Gaussian(3), "b": heads.Bernoulli(3)}, inference=schemes)
    assert repr(mtl.schemes) == repr(schemes)
    for stage in (schemes, mtl.aggregation, priors.FullData(1.0)):
        assert repr(stage) in repr(mtl)
    with pytest.raises(errors.StateError, match=r"head 'a' is settled.*make a new engine"):
        mtl.schemes["a"] = inference.Delta()  # type: ignore[index]


def test_a_network_takes_a_module() -> None:
    with pytest.raises(errors.SettingError, match=r"torch\.nn\.Module is needed, not function"):
        heads.Network(lambda x: x, heads.Bernoulli(3))  # type: ignore[arg-type]


def test_what_passes_between_stages_is_told_by_its_size() -> None:
    """Tensors of a batch would fill pages, and lazy ones would be computed to be shown."""
    head, h, y = heads.Bernoulli(3, tasks=2), torch.randn(5, 3), torch.ones(5, 2)
    posterior = inference.Laplace().infer(head, h, y, priors.isotropic(head, 1.0))
    assert repr(posterior) == "Gaussian(tasks=2, weights=4)"
    assert repr(posterior.info).startswith("Info(jitter=tensor([0., 0.]")
    assert "None" not in repr(posterior.info)
    size = "(tasks=2, examples=5, features=3)"
    assert repr(gradients.distribution(head, posterior, h, y)) == f"GradientDistribution{size}"


def test_a_step_is_told_in_lines_also_when_its_gradients_are_kept() -> None:
    mtl = ba.BayesAgg({"y": heads.Gaussian(3)}, keep_gradients=True)
    mtl.backward(torch.randn(64, 3, requires_grad=True), {"y": torch.randn(64, 1)})
    assert mtl.info is not None
    assert mtl.info.stages is not None
    assert "losses={'y'" in repr(mtl.info)
    assert "stages" not in repr(mtl.info)
