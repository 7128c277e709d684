"""Models that cannot be heads, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro_models import D, binary, classes, linear, two_tasks
from torch import Tensor

from bayesagg_pyro import BayesAgg, errors, heads, inference


def _weight() -> Tensor:
    w: Tensor = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    return w


def no_target(features: Tensor, targets: Tensor | None = None) -> None:
    f = features @ _weight()
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, 1.0))


def no_latent(features: Tensor, targets: Tensor | None = None) -> None:
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features.sum(-1), 1.0), obs=targets)


def discrete(features: Tensor, targets: Tensor | None = None) -> None:
    f = features @ _weight() * pyro.sample("which", dist.Bernoulli(0.5))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=targets)


def local(features: Tensor, targets: Tensor | None = None) -> None:
    w = _weight()
    with pyro.plate("examples", len(features)):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(features @ w + shift, 1.0), obs=targets)


def gamma(features: Tensor, targets: Tensor | None = None) -> None:
    f, scale = features @ _weight(), pyro.sample("scale", dist.Gamma(2.0, 1.0))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, scale), obs=targets)


def stored(features: Tensor, targets: Tensor | None = None) -> None:
    f = features @ _weight() + pyro.param("shift", torch.zeros(()))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=targets)


def joint(features: Tensor, targets: Tensor | None = None) -> None:
    f = (features @ _weight())[:, None].expand(-1, 2)
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=targets)


def crossed(features: Tensor, targets: Tensor | None = None) -> None:
    w = _weight()
    f = (features - features.mean(0)) @ w
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=targets)


def total(features: Tensor, targets: Tensor | None = None) -> None:
    f = features @ _weight()
    pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=targets)


def penalised(features: Tensor, targets: Tensor | None = None) -> None:
    w = _weight()
    pyro.factor("penalty", -w.abs().sum())
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, 1.0), obs=targets)


def scaled(features: Tensor, targets: Tensor | None = None) -> None:
    with poutine.scale(scale=0.1):
        w = _weight()
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, 1.0), obs=targets)


def masked(features: Tensor, targets: Tensor | None = None) -> None:
    with poutine.mask(mask=False):
        w = _weight()
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, 1.0), obs=targets)


def flat(features: Tensor, targets: Tensor | None = None) -> None:
    w = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).mask(False).to_event(1))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, 1.0), obs=targets)


def branching(features: Tensor, targets: Tensor | None = None) -> None:
    w = _weight()
    scale = 1.0 if w[0] > 0 else 2.0
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, scale), obs=targets)


def subsampled(features: Tensor, targets: Tensor | None = None) -> None:
    f = features @ _weight()
    with pyro.plate("examples", 1000, subsample_size=len(features)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=targets)


def wide(features: Tensor, targets: Tensor | None = None) -> None:
    w = pyro.sample("weight", dist.StudentT(3.0, torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ w, 1.0), obs=targets)


def ordered(features: Tensor, targets: Tensor | None = None) -> None:
    cuts = _weight()[:2].exp().cumsum(0)
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.OrderedLogistic(features[:, 0], cuts), obs=targets)


@pytest.mark.parametrize(
    ("model", "tasks", "message"),
    [
        (subsampled, 1, "plate 'examples' is subsampled"),
        (two_tasks, 1, r"features of shape \[3, .* shape \[3\]; are in_features and tasks"),
        (wide, 1, r"'weight' \(StudentT\) is not known"),
        (ordered, 1, "written in place, as OrderedLogistic"),
        (no_target, 1, "no site of the model is observed"),
        (no_latent, 1, "no latent site"),
        (discrete, 1, r"'which' is discrete \(Bernoulli\)"),
        (local, 1, "'shift' has a value per example"),
        (gamma, 1, r"'scale' \(Gamma\) is not known"),
        (stored, 1, r"'shift' is a pyro\.param"),
        (joint, 2, "make 1 tasks, not 2"),
        (total, 1, r"'y' has shape \[\] for 3 examples"),
        (crossed, 1, "changes with the others in the batch"),
        (branching, 1, "many draws at once"),
        (penalised, 1, r"'penalty' is a pyro\.factor"),
        (scaled, 1, "'weight' is masked or scaled"),
        (masked, 1, "'weight' is masked or scaled"),
        (flat, 1, "'weight' .* is not known"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_with_a_model(model: Callable[..., None], tasks: int, message: str) -> None:
    with pytest.raises(errors.SettingError, match=message):
        heads.FromPyro(model, D, tasks=tasks)
    assert not dict(pyro.get_param_store().items())


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(errors.SettingError, match="target_kind"):
        heads.FromPyro(linear, D, target_kind="integer")  # type: ignore[arg-type]
    with pytest.raises(errors.SettingError, match="one task"):
        heads.FromPyro(classes, D, target_kind="class", missing="nan")
    head = heads.FromPyro(linear, D)
    with pytest.raises(errors.SettingError, match=r"one of \('full',\)"):
        inference.Laplace("diag").statistics(head, inference.Storage())
    with pytest.raises(errors.DtypeError, match="Conjugate"):
        inference.Conjugate().statistics(head, inference.Storage())
    with pytest.raises(NotImplementedError, match="likelihood_at"):
        head.likelihood(torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("model", "kind", "wrong", "message"),
    [
        (binary, "binary", 2.0, "example 1, is 2.0; binary targets are 0 to 1"),
        (binary, "binary", 0.5, "example 1, is 0.5; binary targets are 0 to 1"),
        (classes, "class", 3, "example 1, is 3; class targets are 0 to 2"),
        (classes, "class", -1, "example 1, is -1; class targets are 0 to 2"),
    ],
)
def test_labels_that_are_none(
    model: Callable[..., None], kind: Any, wrong: Any, message: str
) -> None:
    head = heads.FromPyro(model, D, target_kind=kind)
    y, h = torch.tensor([0, wrong, 1, 0]), torch.zeros(4, D)
    with pytest.raises(errors.SettingError, match=message):
        head.parse_targets(y, 4)
    head.parse_targets((y, y != wrong), 4)
    engine = BayesAgg({"y": head})
    with pytest.raises(errors.SettingError, match=message):
        engine.backward(h.requires_grad_(), {"y": y})


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_numbers_that_are_said_to_be_labels(kind: Any) -> None:
    with pytest.raises(errors.SettingError, match=r"not Normal; set target_kind"):
        heads.FromPyro(linear, D, target_kind=kind)
