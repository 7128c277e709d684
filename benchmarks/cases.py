"""What costs are measured of: heads on a backbone, with what is promised of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn

from bayesagg_pyro import heads, inference
from models.encoder_decoder import EncoderDecoder
from models.segnet import SegNetDecoder, SegNetEncoder

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


# -- heads ----------------------------------------------------------------------------------------


def _module(size: int, tasks: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, tasks))


def _network(size: int, tasks: int) -> heads.Head:
    return heads.Network(_module(size, tasks), heads.Gaussian(size, tasks))


def _last_layer(size: int, tasks: int) -> heads.Head:
    likelihood = heads.Gaussian(size, tasks, bias=True)
    return heads.Network.last_layer(_module(size, tasks), likelihood)


def _process(size: int, tasks: int) -> heads.Head:
    return heads.GaussianProcess(size, tasks, inducing=torch.randn(64, size))


def _in_pyro(size: int, tasks: int) -> heads.Head:
    """Heavy tails, as a model of the user's of one task."""

    def model(features: Tensor, targets: Tensor | None = None) -> None:
        weight = pyro.sample("weight", dist.Normal(torch.zeros(size), 1.0).to_event(1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", dist.StudentT(4.0, features @ weight, 1.0), obs=targets)

    return heads.FromPyro(model, size, tasks)


#: (features, tasks) -> head.
_KINDS: dict[str, Callable[[int, int], heads.Head]] = {
    "regression": heads.Gaussian,
    "binary": heads.Bernoulli,
    "count": heads.Poisson,
    "overdispersed count": partial(heads.NegativeBinomial, dispersion=2.0),
    "heavy tails": heads.StudentT,
    "five ordered classes": lambda size, tasks: heads.Ordinal(size, 5, tasks),
    "varying noise": heads.Heteroscedastic,
    "Gaussian process": _process,
    "on a network's last layer": _last_layer,
}
#: Those of features that an embedding gives.
_EMBEDDED = ("Gaussian process", "on a network's last layer")
#: Those whose tasks share weights, so that gradients are sampled.
_SAMPLED: dict[str, Callable[[int, int], heads.Head]] = {
    "on all of a network": _network,
    "in Pyro": _in_pyro,
}


def _scene(size: int = 64) -> Heads:
    """A class of 13, depth and normals for each pixel, as on NYUv2."""
    return {
        "segments": heads.Categorical(size, 13),
        "depth": heads.Gaussian(size),
        "normals": heads.Gaussian(size, 3),
    }


# -- cases ----------------------------------------------------------------------------------------


def _rows(name: str, count: int, size: int, make: Callable[[], Heads], **given: Any) -> Case:
    """Heads on so many rows of features, which one linear layer makes."""
    return Case(name, (count, size), make, partial(nn.Linear, size, size), **given)


def _of_kind(kind: str, place: str, rows: int, size: int, tasks: int) -> Case:
    def make() -> Heads:
        return {"y": {**_KINDS, **_SAMPLED}[kind](size, tasks)}

    slow = rows > 10_000 or kind in _SAMPLED
    return _rows(f"{place}, {tasks} × {kind}", rows, size, make, slow=slow)


def _binary(tasks: int, size: int, *, diagonal: bool = False, **given: Any) -> Case:
    name = f"{tasks} binary, diagonal" if diagonal else f"{tasks} binary"
    settings = {"inference": inference.TaylorGGN("diag")} if diagonal else {}
    return _rows(
        name, 128, size, lambda: {"y": heads.Bernoulli(size, tasks)}, settings=settings, **given
    )


def _softmax(classes: int, batch: int = 50, size: int = 32, **given: Any) -> Case:
    name = f"{classes} classes" if size == 32 else f"{classes} classes, {size} features"
    return _rows(name, batch, size, lambda: {"y": heads.Categorical(size, classes)}, **given)


def _convolutions() -> nn.Module:
    """Two of 3 × 3, to 64 channels."""
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU())


def _segnet() -> nn.Module:
    return EncoderDecoder(SegNetEncoder(), SegNetDecoder())


def _images(name: str, height: int, width: int, network: Callable[[], nn.Module]) -> Case:
    return Case(name, (2, 3, height, width), _scene, network, {"feature_axis": 1})


CASES = [
    *(_of_kind(kind, "QM9", 120, 64, 11) for kind in _KINDS),
    *(_of_kind(kind, "CIFAR", 128, 160, 20) for kind in _KINDS),
    *(_of_kind(kind, "3456 rows", 3456, 64, 1) for kind in _KINDS),
    # Through an embedding each row has a derivative of its own: for fewer rows.
    *(_of_kind(kind, "100000 rows", 100_000, 64, 1) for kind in _KINDS if kind not in _EMBEDDED),
    *(_of_kind(kind, "1000 rows", 1000, 64, 1) for kind in ("regression", "binary")),
    # A step takes draws, and derivatives by all weights, of each row: a task alone, and few rows.
    *(_of_kind(kind, "QM9", 120, 64, 1) for kind in _SAMPLED),
    *(_binary(tasks, 64, slow=tasks > 300) for tasks in (1, 10, 100, 300, 1000)),
    *(_binary(tasks, 128, diagonal=True) for tasks in (1, 10, 100, 1000)),
    _binary(10_000, 128, diagonal=True, limits=Limits(seconds=1.0), slow=True),
    *(_softmax(n) for n in (3, 20, 30, 100, 300, 1000)),
    _softmax(10, limits=Limits(time=4.0)),
    _softmax(1000, 128, 512, limits=Limits(seconds=1.0, mebibytes=200.0)),
    _rows("3456 pixels", 3456, 64, _scene, limits=Limits(time=20.0, memory=1.5)),
    _rows("100000 pixels", 100_000, 64, _scene, slow=True),
    replace(
        _images("pixels, two convolutions", 36, 48, _convolutions),
        limits=Limits(time=3.0, memory=1.5),
    ),
    replace(
        _images("pixels, SegNet", 288, 384, _segnet), limits=Limits(time=1.3, memory=1.5), slow=True
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
