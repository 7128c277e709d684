"""A head that is left out of a batch has no label in it, whatever its kind, scheme and prior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from setups import POLICIES, D, close
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads, inference, priors

B = 12
REAL = {"real": lambda: heads.Gaussian(D, 2, bias=True)}
Make = Callable[[], heads.Head]

#: A head, its scheme, and targets [B, tasks] or [B].
OTHERS: dict[str, tuple[Make, Callable[[], inference.Scheme]]] = {
    "conjugate": (lambda: heads.Gaussian(D, 2), inference.Conjugate),
    "learned noise": (lambda: heads.Gaussian(D, noise_scale="learned"), inference.Conjugate),
    "integrated noise": (lambda: heads.Gaussian(D, 2), inference.IntegratedNoise),
    "bernoulli": (lambda: heads.Bernoulli(D, 2), inference.TaylorGGN),
    "diagonal": (lambda: heads.Bernoulli(D, 2), lambda: inference.TaylorGGN("diag")),
    "laplace": (lambda: heads.Bernoulli(D), inference.Laplace),
    "softmax": (lambda: heads.Categorical(D, 3), inference.TaylorGGN),
    "kronecker": (lambda: heads.Categorical(D, 3), lambda: inference.TaylorGGN("kron")),
    "counts": (lambda: heads.Poisson(D, 2), inference.TaylorGGN),
    "negative binomial": (
        lambda: heads.NegativeBinomial(D, dispersion=0.5),
        inference.Laplace,
    ),
    "student": (lambda: heads.StudentT(D, 2), inference.Laplace),
    "ordinal": (lambda: heads.Ordinal(D, 3, 2), inference.TaylorGGN),
    "heteroscedastic": (lambda: heads.Heteroscedastic(D, 2), inference.TaylorGGN),
    "network": (
        lambda: heads.Network(nn.Linear(D, 2), heads.Bernoulli(D, 2)),
        inference.TaylorGGN,
    ),
    "delta": (lambda: heads.Gaussian(D, 2), inference.Delta),
    "ensemble": (lambda: heads.Bernoulli(D), lambda: inference.Ensemble(3)),
    "variational": (
        lambda: heads.Gaussian(D),
        lambda: inference.Variational("diagonal", steps=5, draws=2),
    ),
}


def labels(head: heads.Head, rng: torch.Generator) -> Tensor:
    if head.target_kind == "class":
        return torch.randint(0, 3, (B, head.tasks), generator=rng)
    y = torch.randn(B, head.tasks, generator=rng, dtype=torch.float64)
    if head.target_kind == "binary":
        return (y > 0).double()
    return y.exp().round() if head.target_kind == "count" else y


def engine(kind: str, policy: Callable[[], priors.Policy] | None = None, **settings: Any) -> Any:
    torch.manual_seed(1)
    make, scheme = OTHERS[kind]
    settings.setdefault("aggregation", aggregation.PrecisionWeighted(power=0.5))
    backbone = nn.Linear(D, D).double()
    mtl = ba.BayesAgg(
        {**{name: one() for name, one in REAL.items()}, "other": make()},
        inference={"real": inference.Conjugate(), "other": scheme()},
        prior=None if policy is None else policy(),
        generator=torch.Generator().manual_seed(3),
        **settings,
    ).double()
    return backbone, mtl


def gradients_of(backbone: nn.Module, mtl: Any) -> list[Tensor]:
    parameters = [*backbone.parameters(), *mtl.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


def run(backbone: nn.Module, mtl: Any, batches: Any) -> list[Any]:
    """Warm-up and a Bayesian epoch; what was reported and every gradient."""
    seen: list[Any] = []
    for _ in range(2):
        for x, y in batches:
            for module in (backbone, mtl):
                module.zero_grad()
            losses = mtl.backward(backbone(x), y)
            seen += [*losses.values(), *gradients_of(backbone, mtl)]
        fresh = any(slot.tracker.takes_batches for slot in mtl._slots.values())
        mtl.update_prior(((backbone(x), y) for x, y in batches) if fresh else None)
        mtl.start_bayes()
    return [*seen, *(p.mean for p in mtl.posteriors().values())]


def batches_of(mtl: Any, rng: torch.Generator, never: bool = False) -> tuple[list[Any], list[Any]]:
    """The same batches with the other head left out of the first, and with an empty mask."""
    left_out, masked = [], []
    for i in range(2):
        x = torch.randn(B, D, generator=rng, dtype=torch.float64)
        real, other = (labels(head, rng) for head in mtl.heads.values())
        if i and not never:
            left_out.append((x, {"real": real, "other": other}))
            masked.append(left_out[-1])
        else:
            left_out.append((x, {"real": real}))
            empty = torch.zeros_like(other, dtype=torch.bool)
            masked.append((x, {"real": real, "other": (other, empty)}))
    return left_out, masked


#: Whose posterior without any label takes a way of its own.
NEVER = ("conjugate", "learned noise", "integrated noise", "laplace", "kronecker")


@pytest.mark.parametrize(
    ("kind", "never"), [*((kind, False) for kind in OTHERS), *((kind, True) for kind in NEVER)]
)
def test_left_out_is_an_empty_mask(kind, never, rng) -> None:
    one, two = engine(kind), engine(kind)
    left_out, masked = batches_of(one[1], rng, never)
    for found, expected in zip(run(*one, left_out), run(*two, masked), strict=True):
        assert torch.equal(found.isnan(), expected.isnan())
        close(found.nan_to_num(), expected.nan_to_num())
    known = one[1].posteriors()["other"]
    assert known.mean.isfinite().all()
    assert known.variance.isfinite().all()


#: A second-order scheme with one policy of each kind.
PAIRS = [
    (kind, policy)
    for policy in POLICIES
    for kind in ("conjugate", "bernoulli")
    if kind == "conjugate" or policy in ("full", "previous", "running slow", "fresh part")
]


@pytest.mark.parametrize(("kind", "policy"), PAIRS)
def test_every_prior(kind, policy, rng) -> None:
    one, two = engine(kind, POLICIES[policy]), engine(kind, POLICIES[policy])
    left_out, masked = batches_of(one[1], rng)
    for found, expected in zip(run(*one, left_out), run(*two, masked), strict=True):
        close(found.nan_to_num(), expected.nan_to_num())


KEPT = [
    *((kind, "full") for kind in OTHERS),
    *(("conjugate", policy) for policy in ("constant", "running", "fresh")),
    *(("bernoulli", policy) for policy in ("streamed", "evidence", "packed")),
    ("kronecker", "streamed"),
    ("conjugate", "evidence"),
]
MORE: dict[str, Callable[[], priors.Policy]] = {
    "full": priors.FullData,
    "constant": priors.Constant,
    "running": priors.Running,
    "fresh": priors.Fresh,
    "streamed": lambda: priors.FullData(storage=inference.Storage(streaming=True)),
    "evidence": lambda: priors.FullData("learned"),
    "packed": lambda: priors.FullData(dtype=torch.float64),
}


@pytest.mark.parametrize(("kind", "policy"), KEPT)
def test_without_a_label_between_two_updates_a_posterior_stays(kind, policy, rng) -> None:
    """That of a head, to the bit, and that of one of its tasks beside others."""
    _, mtl = engine(kind, MORE[policy])
    x = torch.randn(B, D, generator=rng, dtype=torch.float64)
    real, other = (labels(head, rng) for head in mtl.heads.values())

    def update(targets: Any) -> Any:
        if policy == "fresh":
            mtl.update_prior([(x, targets)])
        else:
            mtl.collect(x, targets)
            mtl.update_prior()
        return mtl.posteriors()["other"]

    first = update({"real": real, "other": other})
    scale = mtl.heads["other"].state_dict().get("noise_scale")
    again = update({"real": real})
    assert torch.equal(again.mean, first.mean)
    assert torch.equal(again.variance, first.variance)
    if scale is not None:
        assert torch.equal(mtl.heads["other"].noise_scale, scale)
    if first.tasks == 1 or policy == "running":
        return
    mask = torch.zeros(B, 2, dtype=torch.bool)
    mask[:, 1] = True
    part = update({"real": real, "other": (other, mask)})
    close(part.mean, first.mean)
    close(part.variance, first.variance)


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("mode", ["now", "deferred"])
def test_only_what_is_reported_is_nan(bayes, mode, rng) -> None:
    backbone, mtl = engine("bernoulli", validate=mode)
    batches, _ = batches_of(mtl, rng)
    for x, y in batches:
        mtl.collect(backbone(x), y)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    losses = mtl.backward(backbone(batches[0][0]), batches[0][1])
    mtl.raise_deferred()
    assert losses["other"].isnan().all()
    assert mtl.info.losses["other"].isnan().all()
    assert losses["real"].isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients_of(backbone, mtl))
    weight = mtl.heads["other"].weight
    assert weight.grad is None or (weight.grad == 0).all()


def test_one_task_without_a_label_beside_one_with(rng) -> None:
    backbone, mtl = engine("bernoulli")
    x = torch.randn(B, D, generator=rng, dtype=torch.float64)
    real, other = (labels(head, rng) for head in mtl.heads.values())
    mask = torch.zeros(B, 2, dtype=torch.bool)
    mask[:4, 1] = True
    losses = mtl.backward(backbone(x), {"real": real, "other": (other, mask)})
    assert losses["other"].isnan().tolist() == [True, False]
    outputs = mtl.heads["other"](backbone(x))
    each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, other, reduction="none")
    close(losses["other"][1], each[:4, 1].mean().detach())
    assert all(gradient.isfinite().all() for gradient in gradients_of(backbone, mtl))


@pytest.mark.parametrize("call", ["backward", "collect", "update_prior"])
def test_names_that_nobody_has_and_batches_without_any(call, rng) -> None:
    backbone, mtl = engine("conjugate", POLICIES["fresh"])
    x = torch.randn(B, D, generator=rng, dtype=torch.float64)
    real = labels(mtl.heads["real"], rng)

    def give(targets: Any) -> None:
        if call == "update_prior":
            mtl.update_prior([(backbone(x), targets)])
        else:
            getattr(mtl, call)(backbone(x), targets)

    give({"real": real})
    before = gradients_of(backbone, mtl)
    with pytest.raises(errors.TaskError, match=r"unknown \['others'\]"):
        give({"real": real, "others": real})
    with pytest.raises(errors.TaskError, match="leave the batch out"):
        give({})
    for gradient, kept in zip(gradients_of(backbone, mtl), before, strict=True):
        assert torch.equal(gradient, kept)


def test_examples_kept_after_an_unlabelled_batch_are_not_rounded(rng) -> None:
    """What keeps examples makes room for the first batch's dtype."""
    backbone, mtl = engine("laplace", POLICIES["full"])
    batches, _ = batches_of(mtl, rng)
    for x, y in batches:
        mtl.collect(backbone(x), y)
    mtl.update_prior()
    whole = engine("laplace", POLICIES["full"])[1]
    whole.collect(backbone(batches[1][0]), batches[1][1])
    whole.update_prior()
    close(mtl.posteriors()["other"].mean, whole.posteriors()["other"].mean)
