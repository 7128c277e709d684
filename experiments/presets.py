"""Named sets of options to start from, with every single option still free, and searched values.

``docs/qm9_remedies.md`` has the evidence for those of QM9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from experiments import registry
from experiments.errors import SettingsError


@dataclass(frozen=True)
class Preset:
    """What differs from the defaults, which are the paper's.

    Attributes:
        about: What it is for, in a line.
        changes: Of the benchmark and of training, by the name of the option.
        methods: Of methods, ``{method: {option: value}}``.
    """

    about: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PAPER: Final = "paper"

_RECOMMENDED: Final = {
    "pretrain": 12,
    "power": 0.8,
    "prior": "fresh",
    "prior_variance": 1.0,
    "resolution": "task",
    "reduction": "sum",
}

PRESETS: Final[Mapping[str, Mapping[str, Preset]]] = {
    "qm9": {
        PAPER: Preset(
            "the published protocol: 300 epochs of which 50 are pre-training, s = 0.85, γ = 1e-3, "
            "weights per example that sum to 1, prior of the last epoch's features, plateau "
            "schedule"
        ),
        "recommended": Preset(
            "the best found: a short pre-training whose step is kept, γ = 1, one weight per task, "
            "prior of fresh features, cosine schedule",
            {"schedule": "cosine"},
            {"bayesagg": _RECOMMENDED},
        ),
        # Small batches and a schedule that reacts soon: there are only a few thousand steps, so
        # small that a second thread would gain little.
        "small": Preset(
            "3,000 molecules, a network of half the width, 24 epochs: minutes on a CPU",
            {
                "molecules": 3000,
                "validation": 500,
                "test": 1000,
                "width": 32,
                "edge_width": 16,
                "groups": 2,
                "epochs": 24,
                "batch_size": 30,
                "learning_rate": 3e-3,
                "plateau_patience": 2,
            },
            {"bayesagg": {**_RECOMMENDED, "pretrain": 2}},
        ),
    },
    "tox21": {
        PAPER: Preset("fingerprints, 20 epochs: the library's defaults for BayesAgg"),
        "mpnn": Preset(
            "the message-passing network of QM9 on the molecules' graphs: minutes on one core",
            {"network": "mpnn", "width": 32, "groups": 8, "learning_rate": 3e-3},
        ),
    },
}
"""By benchmark; every benchmark has ``paper``, its own defaults."""


def names(benchmark: str) -> list[str]:
    """Presets of a benchmark."""
    return list(PRESETS.get(benchmark, {PAPER: None}))


def find(benchmark: str, name: str) -> Preset:
    """A preset of a benchmark.

    Raises:
        SettingsError: It has none of that name; the message lists those there are.
    """
    known = PRESETS.get(benchmark, {PAPER: Preset("the paper's settings")})
    if name not in known:
        raise SettingsError(
            f"preset = {name!r} is unknown for {benchmark}: give one of {', '.join(known)}"
        )
    return known[name]


WEIGHT_DECAYS: Final = (0.0, 1e-4, 5e-4, 1e-3)

_ALIGNED: Final[Mapping[str, Sequence[Any]]] = {
    "scale_mode": ("min", "median", "rmse"),
    "scale_heads": (False, True),
}
_DECAYED: Final = ("ls", "si", "rlw")


def grids(benchmark: str, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The values that the paper searched, ``{METHOD.OPTION: values}``, the axes of a request.

    For BayesAgg and for the scale of Aligned-MTL-UB they are printed. Of the others the paper says
    that two or three hyper-parameters were searched, without their values, but for weight decay
    with LS, SI and RLW; the values of weight decay here are ours.

    Raises:
        SettingsError: There is no such benchmark.
    """
    found: dict[str, Sequence[Any]] = {}
    for name in names:
        method = name.partition("@")[0]
        for option, values in _grid(benchmark, method).items():
            found[f"{method}.{option}"] = values
    return found


def _grid(benchmark: str, method: str) -> Mapping[str, Sequence[Any]]:
    if method == "bayesagg":
        return registry.find(benchmark).grid
    if method == "aligned-mtl-ub":
        return _ALIGNED
    if method in _DECAYED and benchmark != "qm9":
        return {"weight_decay": WEIGHT_DECAYS}
    return {}
