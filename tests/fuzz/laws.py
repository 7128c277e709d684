"""Laws: the same must come out another way. Each compares copies of the engine on one batch."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro.errors import BayesAggError
from tests.fuzz.broken import Broken, untyped
from tests.fuzz.build import Batch
from tests.fuzz.draw import Call, Case
from tests.fuzz.snapshot import changed, flat

__all__ = ["all_finite", "check", "settled"]


def outcome(mtl: ba.BayesAgg, given: Batch, do: str) -> dict[str, Any]:
    """What comes of one call on an engine: the update, losses, the heads' gradients."""
    state = torch.get_rng_state()
    mtl.zero_grad(set_to_none=True)
    try:
        if do == "collect":
            mtl.collect(given.features, given.targets)
            mtl.update_prior()
            return {"priors": {n: _moments(p) for n, p in mtl.priors().items()}}
        leaf = given.leaf()
        losses = mtl.backward(leaf, given.targets)
        grads = {n: p.grad for n, p in mtl.named_parameters() if p.grad is not None}
        return {"update": leaf.grad, "losses": losses, "gradients": copy.deepcopy(grads)}
    finally:
        mtl.zero_grad(set_to_none=True)
        torch.set_rng_state(state)


def settled(mtl: ba.BayesAgg, given: Batch, do: str) -> dict[str, Any]:
    """The same, with a refusal as an outcome of its own."""
    try:
        found = outcome(mtl, given, do)
        mtl.raise_deferred()
        return found
    except BayesAggError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:
        raise untyped(do, error) from error


def _moments(posterior: Any) -> dict[str, Tensor]:
    return {"mean": posterior.mean.clone(), "deviation": posterior.variance.sqrt()}


def all_finite(what: str, values: Mapping[str, Any]) -> None:
    """Refuse NaN and infinity; losses of tasks without a label may be NaN."""
    for path, value in flat(dict(values)):
        if value is None or ("losses" in path and not value.isinf().any()):
            continue
        if not value.isfinite().all():
            raise Broken(f"{what}: {re.sub(r'h[0-9]', '*', path)} is not finite", f"{value}")


def check(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> None:
    """The law that the call names, where it applies.

    Raises:
        Broken: if two ways differ, or one of them is refused.
    """
    law: Callable[..., Any] = globals()[f"_{call.law}"]
    if call.law != "repeated" and not (_deterministic(case) and _exact(case)):
        return
    if mtl._validation.mode == "deferred":
        return
    few = ("GaussianProcess", "Body", "Network")  # gradients of fewer dimensions than features
    if "covariance='full'" in repr(case) and any(name in repr(case) for name in few):
        return  # singular covariances take jitter, which says so
    pair = law(case, mtl, call, given)
    if pair is None:
        return
    (first, one), (second, two), tolerance = pair
    found = [settled(engine, data, call.do) for engine, data in ((first, one), (second, two))]
    refused = [it["refused"] for it in found if "refused" in it]
    if len(refused) == 1:
        raise Broken(f"law {call.law}: one way alone is refused", refused[0])
    if refused:
        return
    if call.law == "permuted" and call.do == "backward":
        found[1]["update"] = found[1]["update"].flip(0)
    if call.law == "dropped" and call.do == "backward":
        found[0]["update"] = found[0]["update"][1:]
    _compare(call, *found, tolerance)


def _compare(call: Call, one: Any, two: Any, tolerance: float | None) -> None:
    one, two = dict(flat(one)), dict(flat(two))
    if tolerance is None:
        different = changed(one, two)
    else:
        different = [
            path
            for path in one
            if not _close(one[path], two.get(path), tolerance, _unit(one, path))
        ]
    if different:
        what = sorted({re.sub(r"h\d", "*", path) for path in different})
        shown = "; ".join(f"{path}: {one[path]} / {two.get(path)}" for path in different[:2])
        raise Broken(f"law {call.law} ({call.do}) does not hold for {', '.join(what[:3])}", shown)


def _unit(values: dict[str, Any], path: str) -> float:
    """What a value is small beside: a mean beside the deviation."""
    deviation = values.get(path.removesuffix("mean") + "deviation")
    return 1e-30 if deviation is None else float(deviation.nan_to_num().max())


def _close(a: Any, b: Any, tolerance: float, unit: float) -> bool:
    if a is None or b is None:
        return a is b
    a, b = a.double(), b.double()
    size = max(unit, float(a.nan_to_num().abs().max()), float(b.nan_to_num().abs().max()))
    return torch.allclose(a, b, rtol=0, atol=tolerance * size, equal_nan=True)


def _deterministic(case: Case) -> bool:
    sampled = ("Ensemble", "Variational", "NUTS", "HMC", "FromPyro", "Network(", "LaplaceTorch")
    random = ("PerSample", "PCGrad", "GradVac", "CAGrad", "MGDA", "UPGrad", "IMTLG", "Aligned")
    text = repr(case)
    return not any(name in text for name in (*sampled, *random, "MonteCarlo", "Conditional"))


def _exact(case: Case) -> bool:
    """Whether no moment is sampled."""
    return not any("Categorical" in p.head and ", 2," not in p.head for p in case.parts)


def _tolerance(case: Case) -> float:
    return {"float64": 1e-6, "float32": 2e-3}.get(case.dtype, 0.1)


# -- the laws: two engines, each with its batch, and how near the outcomes must be -----------------

Pair = tuple[tuple[ba.BayesAgg, Batch], tuple[ba.BayesAgg, Batch], float | None]


def _two(mtl: ba.BayesAgg) -> tuple[ba.BayesAgg, ba.BayesAgg]:
    return copy.deepcopy(mtl), copy.deepcopy(mtl)


def _mapped(given: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The same change for features, values, masks and weights."""

    def each(target: Any) -> Any:
        if isinstance(target, Tensor):
            return change(target)
        return tuple(None if part is None else change(part) for part in target)

    return Batch(change(given.features), {n: each(t) for n, t in given.targets.items()})


def _parts(target: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if isinstance(target, Tensor):
        return target, None, None
    values, mask, *weight = target
    return values, mask, weight[0] if weight else None


def _repeated(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair:
    """A call on two copies gives the same to the bit."""
    one, two = _two(mtl)
    return (one, given), (two, given), None


def _permuted(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """The order of examples does not matter."""
    if "streaming" in repr(case) and call.do == "collect":
        return None
    one, two = _two(mtl)
    return (one, given), (two, _mapped(given, lambda t: t.flip(0))), _tolerance(case)


def _dropped(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """An example without any label is as one left out."""
    if len(given.features) < 2 or "Running" in repr(case) or call.form:
        return None
    shape = {n: h.tasks for n, h in mtl.heads.items()}
    masked = {}
    for name, target in given.targets.items():
        values, mask, weight = _parts(target)
        if values.is_floating_point() and values.isnan().any():
            return None
        mask = torch.ones(len(values), shape[name], dtype=torch.bool) if mask is None else mask
        mask = mask.clone()
        mask[0] = False
        masked[name] = (values, mask) if weight is None else (values, mask, weight)
    whole = Batch(given.features, masked)
    left = _mapped(whole, lambda t: t[1:])
    one, two = _two(mtl)
    if call.do == "backward" and not mtl.warmup:
        name = type(mtl.aggregation).__name__
        if name == "PrecisionWeighted" or "Evidence" in repr(case):
            return None  # weights sum to the share observed
    return (one, whole), (two, left), _tolerance(case)


def _ones(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """Weights of 1 are none."""
    weighed = {}
    for name, target in given.targets.items():
        values, mask, weight = _parts(target)
        if weight is not None:
            return None
        weighed[name] = (values, mask, torch.ones(len(values)))
    one, two = _two(mtl)
    return (one, given), (two, Batch(given.features, weighed)), _tolerance(case)


def _chunked(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair:
    """In pieces as in one."""
    one, two = _two(mtl)
    for it, memory in ((one, None), (two, 700)):
        it.keep_gradients, it.working_memory = False, memory
    return (one, given), (two, given), _tolerance(case)


def _doubled(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """Weight 2 is the example twice, for all that inference sums."""
    unlike = ("Running", "Fresh", "learned", "Evidence", "Delta", "float16")
    if call.do != "collect" or any(name in repr(case) for name in unlike):
        return None
    weighed = {}
    for name, target in given.targets.items():
        values, mask, weight = _parts(target)
        if weight is not None:
            return None
        weighed[name] = (values, mask, torch.full((len(values),), 2.0))
    one, two = _two(mtl)
    twice = _mapped(given, lambda t: torch.cat([t, t]))
    return (one, Batch(given.features, weighed)), (two, twice), _tolerance(case)


def _precise(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """Features in float64 give what float32 gives, nearly."""
    if case.dtype != "float32" or "float16" in repr(case):
        return None
    if any(one.targets < 1e-15 for one in case.calls):
        return None  # a noise learned from them has variances below float32's smallest
    exact = Batch(given.features.double(), given.targets)
    one, two = _two(mtl)
    return (one, given), (two, exact), 1e-2


def _reordered(case: Case, mtl: ba.BayesAgg, call: Call, given: Batch) -> Pair | None:
    """A mask over nothing and a mask of trues are the same."""
    full = {}
    for name, target in given.targets.items():
        values, mask, weight = _parts(target)
        if mask is not None:
            return None
        mask = torch.ones(values.shape, dtype=torch.bool)
        full[name] = (values, mask) if weight is None else (values, mask, weight)
    one, two = _two(mtl)
    return (one, given), (two, Batch(given.features, full)), _tolerance(case)
