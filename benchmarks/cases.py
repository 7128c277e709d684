"""What costs are measured of: heads on a backbone, with what they may take where that is promised.

A case is a line in `CASES`; `measure` times its Bayesian step and its warm-up step in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import heads, inference
from bayesagg_pyro.aggregation import PrecisionWeighted
from benchmarks.published import published_binary_step
from benchmarks.timing import interleave, peak_memory
from models.encoder_decoder import EncoderDecoder
from models.segnet import SegNetDecoder, SegNetEncoder

__all__ = ["CASES", "Case", "Limits", "measure", "selected"]

Heads = Mapping[str, heads.Head]


@dataclass(frozen=True)
class Limits:
    """What a Bayesian step may take; None where nothing is promised.

    Attributes:
        time: Over a warm-up step's.
        memory: Over a warm-up step's, beyond what lives before either.
        seconds: On two cores.
        mebibytes: Beyond what lives before the step.
    """

    time: float | None = None
    memory: float | None = None
    seconds: float | None = None
    mebibytes: float | None = None


@dataclass(frozen=True)
class Case:
    """A backbone with heads.

    Attributes:
        name: Unique; a family's begins with the number that grows in it.
        inputs: Shape of the backbone's.
        heads: Makes the heads; random numbers are torch's.
        backbone: Makes the network.
        settings: Of the engine; the defaults else.
        limits: What is promised.
        slow: Whether a step takes seconds: left out unless asked for.
    """

    name: str
    inputs: tuple[int, ...]
    heads: Callable[[], Heads]
    backbone: Callable[[], nn.Module]
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()
    slow: bool = False


def _rows(name: str, count: int, size: int, make: Callable[[int], Heads], **given: Any) -> Case:
    """Heads on so many rows of features, which one linear layer makes."""
    return Case(name, (count, size), partial(make, size), partial(nn.Linear, size, size), **given)


def _binary(tasks: int, size: int) -> Heads:
    return {"y": heads.Bernoulli(size, tasks)}


def _regressions(tasks: int, size: int) -> Heads:
    return {"y": heads.Gaussian(size, tasks)}


def _softmax(classes: int, size: int) -> Heads:
    return {"y": heads.Categorical(size, classes)}


def _scene(size: int = 64) -> Heads:
    """A class of 13, depth and normals for each pixel, as on NYUv2."""
    return {
        "segments": heads.Categorical(size, 13),
        "depth": heads.Gaussian(size),
        "normals": heads.Gaussian(size, 3),
    }


def _convolutions() -> nn.Module:
    """Two of 3 × 3, to 64 channels."""
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU())


def _segnet() -> nn.Module:
    return EncoderDecoder(SegNetEncoder(), SegNetDecoder())


_DIAGONAL = {"inference": inference.TaylorGGN("diag")}

#: Heads that differ from the three usual ones, by what targets they are given here.
_OTHERS: dict[str, Callable[[int, int], heads.Head]] = {
    "counts": heads.Poisson,
    "overdispersed counts": partial(heads.NegativeBinomial, dispersion=2.0),
    "heavy tails": heads.StudentT,
    "five ordered classes": lambda size, tasks: heads.Ordinal(size, 5, tasks),
    "varying noise": heads.Heteroscedastic,
}


def _other(kind: str, tasks: int, size: int) -> Heads:
    return {"y": _OTHERS[kind](size, tasks)}


CASES = [
    _rows("11 regressions (QM9)", 120, 64, partial(_regressions, 11)),
    _rows("20 binary (CIFAR)", 128, 160, partial(_binary, 20)),
    *(_rows(f"{n} binary", 128, 64, partial(_binary, n)) for n in (1, 10, 100, 300)),
    *(
        _rows(f"{n} binary, diagonal", 128, 128, partial(_binary, n), settings=_DIAGONAL)
        for n in (100, 1000)
    ),
    _rows(
        "10000 binary, diagonal",
        128,
        128,
        partial(_binary, 10_000),
        settings=_DIAGONAL,
        limits=Limits(seconds=1.0),
        slow=True,
    ),
    _rows("10000 binary", 32, 64, partial(_binary, 10_000), slow=True),
    *(_rows(f"11 tasks, {kind}", 120, 64, partial(_other, kind, 11)) for kind in _OTHERS),
    *(_rows(f"20 tasks, {kind}", 128, 160, partial(_other, kind, 20)) for kind in _OTHERS),
    *(_rows(f"{n} classes", 50, 32, partial(_softmax, n)) for n in (3, 20, 30, 100, 300)),
    _rows("10 classes", 50, 32, partial(_softmax, 10), limits=Limits(time=4.0)),
    _rows(
        "1000 classes, 512 features",
        128,
        512,
        partial(_softmax, 1000),
        limits=Limits(seconds=1.0, mebibytes=200.0),
    ),
    _rows("3,456 pixels", 3456, 64, _scene, limits=Limits(time=20.0, memory=1.5)),
    _rows("100,000 rows, 11 regressions", 100_000, 64, partial(_regressions, 11), slow=True),
    _rows("100,000 rows, 20 binary", 100_000, 64, partial(_binary, 20), slow=True),
    _rows("100,000 pixels", 100_000, 64, _scene, slow=True),
    Case(
        "pixels, two convolutions",
        (2, 3, 36, 48),
        _scene,
        _convolutions,
        {"feature_axis": 1},
        Limits(time=3.0, memory=1.5),
    ),
    Case(
        "pixels, SegNet",
        (2, 3, 288, 384),
        _scene,
        _segnet,
        {"feature_axis": 1},
        Limits(time=1.3, memory=1.5),
        slow=True,
    ),
]


def selected(only: list[str], *, limits: bool = False, slow: bool = False) -> list[Case]:
    """Cases whose names hold one of these; all if there are none, slow ones where asked for.

    Raises:
        ValueError: Nothing is left.
    """
    found = [case for case in CASES if not only or any(part in case.name for part in only)]
    found = [case for case in found if case.limits != Limits() or not limits]
    found = [case for case in found if slow or only or not case.slow]
    if not found:
        raise ValueError(f"no case is called like {only}; there are {[c.name for c in CASES]}")
    return found


def measure(
    case: Case, rounds: int = 10, seed: int = 0, *, defaults: bool = False
) -> dict[str, Any]:
    """Time and memory of both kinds of step.

    Args:
        case: What of.
        rounds: Measurements of each, in turns.
        seed: Of weights and data.
        defaults: Whether steps are those of the default rule; else they read every posterior.
    """
    if defaults:
        case = replace(case, settings={"aggregation": None, **case.settings})
    torch.manual_seed(seed)
    inputs = torch.randn(case.inputs)
    steps = {"ls": _step(case, inputs, bayes=False), "bayesagg": _step(case, inputs, bayes=True)}
    timings = interleave(steps, rounds=rounds, warmup=1 if case.slow else 3)
    published = _published(case, inputs, steps["ls"], rounds)
    schemes = _engine(case).schemes
    return {
        "case": case.name,
        "schemes": ", ".join(dict.fromkeys(map(repr, schemes.values()))),
        "seconds": {name: timings.median(name) for name in steps},
        "over_ls": list(timings.ratio("bayesagg", "ls")),
        "published_over_ls": published,
        "peak_bytes": {name: peak_memory(step) for name, step in steps.items()},
    }


def _published(
    case: Case, inputs: Tensor, ls: Callable[[], None], rounds: int
) -> list[float] | None:
    """How many times as long as LS the published algorithm takes, for binary tasks.

    Its Gaussian over the weights of all tasks together is left out where it is a GB and more.
    """
    made = case.heads()
    head = next(iter(made.values()))
    if len(made) > 1 or type(head) is not heads.Bernoulli or inputs.ndim > 2:
        return None
    if len(inputs) * (head.tasks * head.weight_size) * head.tasks > 2**27:
        return None
    targets = _targets(head, inputs)
    calls = {"ls": ls, "published": published_binary_step(inputs, targets)}
    timings = interleave(calls, rounds=max(2, rounds // 5), warmup=1)
    return list(timings.ratio("published", "ls"))


def _engine(case: Case) -> ba.BayesAgg:
    """One whose every step reads every posterior, unless the case says otherwise."""
    return ba.BayesAgg(case.heads(), **{"aggregation": PrecisionWeighted(), **case.settings})


def _step(case: Case, inputs: Tensor, *, bayes: bool) -> Callable[[], None]:
    backbone = case.backbone()
    mtl = _engine(case)
    with torch.no_grad():
        features = backbone(inputs)
    targets = {name: _targets(head, features) for name, head in _each(mtl)}
    mtl.collect(features, targets)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    mtl.eval()  # an epoch's examples are not kept
    backbone.train()

    def step() -> None:
        backbone.zero_grad()
        mtl.zero_grad()
        mtl.backward(backbone(inputs), targets)

    return step


def _each(mtl: ba.BayesAgg) -> list[tuple[str, heads.Head]]:
    return [(n, head) for n, head in mtl.heads.items() if isinstance(head, heads.Head)]


def _targets(head: heads.Head, features: Tensor) -> Tensor:
    """Of rows [B, d] or pixels [B, d, H, W]."""
    batch, *pixels = features.shape[0], *features.shape[2:]
    if isinstance(head, heads.Categorical):
        return torch.randint(head.classes, (batch, head.tasks, *pixels))
    values = torch.randn(batch, head.tasks, *pixels)
    if isinstance(head, heads.Ordinal):
        return torch.randint(head.classes, values.shape)
    counts = isinstance(head, heads.Bernoulli | heads.Poisson | heads.NegativeBinomial)
    return (values > 1).float() if counts else values
