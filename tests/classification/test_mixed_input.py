"""Holes in the targets and bad targets, in engines with classification heads."""

from __future__ import annotations

import pytest
import torch
from dense import close, normal
from mixed import make

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, priors
from bayesagg_pyro.inference import Storage

NAN = float("nan")
POISON = {"sick": [0.0, NAN, 1e30, -7.0], "side": [0, 1, 99, -1], "kind": [0, 2, 99, -1]}


@pytest.mark.parametrize("which", ["sick", "side", "kind"])
@pytest.mark.parametrize("bayes", [False, True])
def test_what_stands_in_a_hole_does_not_matter(which, bayes) -> None:
    """Whatever the values under a mask are, legal or not; and (for binary) NaN says the same."""
    found = []
    for filler in POISON[which]:
        w = make(validate="now")
        observed = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) < 0.6
        y = w.y[which].reshape(20, -1)
        mask = observed[:, : y.shape[1]]
        y = torch.where(mask, y, torch.full_like(y, filler))
        w.y[which] = (y, mask)
        if bayes:
            w.bayes()
        w.step()
        found.append(w.updates())
    if which == "sick":
        w = make()
        w.heads["sick"].missing = "nan"
        w.y["sick"] = y.where(mask, torch.tensor(NAN).double())
        if bayes:
            w.bayes()
        w.step()
        found.append(w.updates())
    for other in found[1:]:
        for name, value in found[0].items():
            close(other[name], value, 1e-12)


@pytest.mark.parametrize("which", ["age", "sick", "side", "kind"])
def test_missing_targets_leave_no_trace(which) -> None:
    """No gradient, no aggregation weight, a posterior and a loss of the observed rows alone."""
    w = make(keep_gradients=True)
    rows = torch.arange(20) % 3 != 0
    full = w.y[which].reshape(20, -1)
    w.y[which] = (full, rows[:, None].expand_as(full).contiguous())
    w.bayes()
    losses = w.step()
    part = w.mtl.info.gradients.groups[which]
    assert (w.mtl.info.gradients.mean[part][:, ~rows] == 0).all()
    assert (w.mtl.info.gradients.variance[part][:, ~rows] == 0).all()
    assert (w.mtl.info.aggregated.weights[part][:, ~rows] == 0).all()
    head, scheme = w.heads[which], w.mtl.schemes[which]
    h = w.backbone(w.x).detach()[rows]
    own = scheme.infer(head, h, full[rows], priors.isotropic(head, 0.5))
    close(w.mtl.priors()[which].mean, own.mean)
    outputs = head(h) if scheme.needs_point else head(h, own.mean)
    close(losses[which], head.loss(outputs, full[rows]).mean(0).detach())
    if scheme.needs_point:
        loss = head.loss(head(h), full[rows]).mean(0).sum()
        close(head.weight.grad, torch.autograd.grad(loss, head.weight)[0])


@pytest.mark.parametrize("bayes", [False, True])
def test_a_batch_without_any_label_moves_nothing(bayes) -> None:
    w = make()
    if bayes:
        w.bayes()
    empty = {
        name: (y.reshape(20, -1), torch.zeros_like(y.reshape(20, -1), dtype=torch.bool))
        for name, y in w.y.items()
    }
    losses = w.step(empty)
    for loss in losses.values():
        assert loss.isnan().all()
    for gradient in w.updates().values():
        assert (gradient == 0).all()


BAD = [
    ("side", lambda y: y + 1, errors.SettingError, "2; classes are 0 to 1"),
    ("kind", lambda y: y - 1, errors.SettingError, "-1; classes are 0 to 2"),
    ("kind", lambda y: y.double(), errors.DtypeError, r"long\(\)"),
    ("kind", lambda y: y > 0, errors.DtypeError, "class indices"),
    ("kind", lambda y: y[:, :1], errors.ShapeError, r"\[20, 2\]"),
    ("side", lambda y: torch.nn.functional.one_hot(y, 2), errors.ShapeError, r"\[20, 1\]"),
    ("sick", lambda y: y * 0.5, errors.SettingError, "0 or 1"),
    ("sick", lambda y: y - 1, errors.SettingError, "-1"),
    ("sick", lambda y: y * NAN, errors.NonFiniteError, "missing='nan'"),
    ("sick", lambda y: y + float("inf"), errors.NonFiniteError, "inf"),
    ("sick", lambda y: y + 0j, errors.DtypeError, "complex"),
    ("kind", lambda y: y + 0j, errors.DtypeError, "complex"),
    ("sick", lambda y: (y, y), errors.DtypeError, "bool"),
    ("sick", lambda y: (y, (y > 0)[:, :2]), errors.ShapeError, "mask"),
    ("kind", lambda y: (y, (y > 0)[:19]), errors.ShapeError, "mask"),
    ("kind", lambda y: (y, torch.ones(20)), errors.DtypeError, "bool"),
    ("side", lambda y: (y, torch.ones(20)), errors.DtypeError, "bool"),
    ("kind", lambda y: (y, None, torch.full((20,), -1.0)), errors.SettingError, "weight"),
    ("kind", lambda y: (y, None, torch.full((20,), NAN)), errors.NonFiniteError, "weight"),
    ("kind", lambda y: (y, None, torch.ones(20, 3)), errors.ShapeError, "weight"),
]


@pytest.mark.parametrize(("name", "change", "error", "words"), BAD)
@pytest.mark.parametrize("bayes", [False, True])
def test_bad_targets_change_nothing(name, change, error, words, bayes) -> None:
    w = make()
    if bayes:
        w.bayes()
    before = {k: v.clone() for k, v in w.mtl.state_dict().items() if torch.is_tensor(v)}
    bad = {**w.targets(), name: change(w.y[name])}
    with pytest.raises(error, match=f"{name}.*{words}"):
        w.step(bad)
    assert w.updates() == {}
    assert w.mtl.info is None
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        w.mtl.update_prior()
    for k, v in w.mtl.state_dict().items():
        if torch.is_tensor(v):
            assert torch.equal(v, before[k])


@pytest.mark.parametrize("bad", ["label", "half", "weight"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("call", ["backward", "collect"])
def test_deferred_validation_of_classes(rng, bad, streaming, call) -> None:
    """Out-of-range labels never reach an index; the priors leave the batch out."""

    def engine() -> ba.BayesAgg:
        torch.manual_seed(0)
        return ba.BayesAgg(
            {"kind": heads.Categorical(4, 3), "sick": heads.Bernoulli(4)},
            validate="deferred",
            prior=priors.FullData(storage=Storage(streaming=streaming)),
        ).double()

    h, y = normal(rng, 8, 4), torch.randint(0, 3, (8,), generator=rng)
    good = {"kind": y, "sick": (y > 1).double()}
    clean, mtl = engine(), engine()
    for m in (clean, mtl):
        m.collect(h, good)
    clean.update_prior()
    spoilt = dict(good)
    if bad == "label":
        spoilt["kind"] = y + 2
    elif bad == "half":
        spoilt["sick"] = good["sick"] + 0.5
    else:
        spoilt["kind"] = (y, None, torch.full((8,), NAN))
    x = h.clone().requires_grad_()
    getattr(mtl, call)(x, spoilt)
    assert x.grad is None if call == "collect" else (x.grad == 0).all()
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()
    mtl.update_prior()
    for name, prior in mtl.priors().items():
        close(prior.mean, clean.priors()[name].mean)
        close(prior.variance, clean.priors()[name].variance)


@pytest.mark.parametrize("scheme", [inference.TaylorGGN, inference.Laplace])
def test_structures_are_checked_when_the_engine_is_made(scheme) -> None:
    """Not an epoch later, when the first prior is made."""
    with pytest.raises(errors.SettingError, match=r"sick.*'kron'"):
        ba.BayesAgg({"sick": heads.Bernoulli(3, name="sick")}, inference=scheme("kron"))
    with pytest.raises(errors.SettingError, match="structure"):
        scheme("dense")
    with pytest.raises(errors.DtypeError, match="Gaussian"):
        ba.BayesAgg({"sick": heads.Bernoulli(3)}, inference=inference.Conjugate())
