"""The values that the paper searched, as far as it prints them.

For BayesAgg and for the scale of Aligned-MTL-UB they are printed. Of the others the paper says that
two or three hyper-parameters were searched, without their values, but for weight decay with LS, SI
and RLW; the values of weight decay here are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments.runner import benchmarks

__all__ = ["QM9_POWERS", "WEIGHT_DECAYS", "expand", "grid", "grids"]

QM9_POWERS: Final = (0.75, 0.85, 0.95)
WEIGHT_DECAYS: Final = (0.0, 1e-4, 5e-4, 1e-3)

_ALIGNED: Final[Mapping[str, Sequence[Any]]] = {
    "scale_mode": ("min", "median", "rmse"),
    "scale_heads": (False, True),
}
_DECAYED: Final = ("ls", "si", "rlw")


def grid(benchmark: str, method: str) -> Mapping[str, Sequence[Any]]:
    """``{option: values}``, empty where nothing is searched.

    Raises:
        SettingsError: There is no such benchmark.
    """
    kind = benchmarks.find(benchmark)
    if method == "bayesagg":
        return kind.grid or ({"power": QM9_POWERS} if benchmark == "qm9" else {})
    if method == "aligned-mtl-ub":
        return _ALIGNED
    if method in _DECAYED and benchmark != "qm9":
        return {"weight_decay": WEIGHT_DECAYS}
    return {}


def grids(benchmark: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """All combinations for each method."""
    plain = [name.partition("@")[0] for name in names]
    return {name: expand(grid(benchmark, name)) for name in plain}


def expand(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the axes' values; one without any where there is no axis."""
    return [
        dict(zip(axes, combination, strict=True))
        for combination in itertools.product(*axes.values())
    ]
