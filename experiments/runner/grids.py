"""The values that the paper searched, as far as it prints them.

For BayesAgg and for the scale of Aligned-MTL-UB they are printed. Of the others the paper says that
two or three hyper-parameters were searched, without their values, but for weight decay with LS, SI
and RLW; the values of weight decay here are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import registry

WEIGHT_DECAYS: Final = (0.0, 1e-4, 5e-4, 1e-3)

_ALIGNED: Final[Mapping[str, Sequence[Any]]] = {
    "scale_mode": ("min", "median", "rmse"),
    "scale_heads": (False, True),
}
_DECAYED: Final = ("ls", "si", "rlw")


def grids(benchmark: str, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """``{METHOD.OPTION: values}`` for these methods, the axes of a request.

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
