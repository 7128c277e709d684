"""The optional package TorchJD: its classes by name, and the arguments that they take."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from experiments.errors import SettingsError

PREFIX: Final = "torchjd:"

#: Arguments without a default that have a usual value, and those that follow from the tasks.
_USUAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "CAGrad": {"c": 0.4},
    "FairGrad": {"alpha": 1.0},
    "PBI": {"theta": 5.0},
    "STCH": {"mu": 1.0},
}
_PER_TASK: Final = frozenset({"n_tasks", "shape"})
#: Arguments that are functions or objects, which no command line can give.
_OBJECTS: Final = frozenset({"f", "projector"})
_WEIGHTS: Final = frozenset({"PBI", "COSMOS"})


def module(part: str, method: str) -> ModuleType:
    """``torchjd.<part>``.

    Args:
        part: ``"aggregation"`` or ``"scalarization"``.
        method: Who needs it, for the message.

    Raises:
        SettingsError: TorchJD is not installed, or its interface is another one.
    """
    try:
        return importlib.import_module(f"torchjd.{part}")
    except ImportError as error:
        raise SettingsError(
            f"method {method} needs TorchJD 0.18, which cannot be imported ({error}): "
            'pip install "bayesagg_pyro[torchjd]"'
        ) from error


def kinds(part: str) -> dict[str, Any]:
    """Classes of TorchJD that can be made, by name."""
    found = module(part, PREFIX)
    base = found.Aggregator if part == "aggregation" else found.Scalarizer
    abstract = {base, getattr(found, "WeightedAggregator", base)}
    abstract.add(getattr(found, "GramianWeightedAggregator", base))
    kinds = {name: getattr(found, name) for name in found.__all__}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind not in abstract
    }


def arrange(own: tuple[str, ...], method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the class, and the rest as its ``arguments``.

    Raises:
        SettingsError: TorchJD does not know one.
    """
    kind = {**kinds("scalarization"), **kinds("aggregation")}[method.removeprefix(PREFIX)]
    known = set(inspect.signature(kind.__init__).parameters) - {"self", *_PER_TASK, *_OBJECTS}
    arranged = {key: value for key, value in given.items() if key in own}
    arguments = {key: value for key, value in given.items() if key not in own}
    arguments.update(arguments.pop("arguments", {}))
    for key, value in arguments.items():
        if key not in known:
            raise SettingsError(
                f"{key} = {value!r} has no meaning for method {method}: leave it out (its options "
                f"are {', '.join([*own, *sorted(known)])})"
            )
    return {**arranged, "arguments": arguments}


def defaults_of(kind: Any) -> list[tuple[str, Any]]:
    """Arguments that may be given, with defaults; three dots where one must be given."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    usual = _USUAL.get(kind.__name__, {})
    found = []
    for parameter in parameters:
        if parameter.name == "self" or parameter.name in _PER_TASK | _OBJECTS:
            continue
        default = usual.get(parameter.name, parameter.default)
        if parameter.name == "weights" and kind.__name__ in _WEIGHTS:
            default = "equal"
        missing = default is parameter.empty
        found.append((parameter.name, "..." if missing else default))
    return found


def arguments_of(method: str, kind: Any, tasks: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a class of TorchJD.

    Raises:
        SettingsError: One is missing, or is no list of numbers where the class wants a tensor.
    """
    arguments: dict[str, Any] = dict(_USUAL.get(kind.__name__, {}))
    if kind.__name__ in _WEIGHTS:
        arguments["weights"] = torch.full((tasks,), 1 / tasks)
    arguments.update(given)
    parameters = inspect.signature(kind.__init__).parameters
    for name, parameter in parameters.items():
        if name in _PER_TASK:
            arguments[name] = tasks
        elif name != "self" and parameter.default is parameter.empty and name not in arguments:
            raise SettingsError(
                f"method {method} needs a value for {name}: give --set {name}=VALUE"
            )
    return {name: _tensor(parameters[name], value) for name, value in arguments.items()}


def _tensor(parameter: inspect.Parameter, value: Any) -> Any:
    """A list as a tensor, other values as they are where the class takes something else."""
    name, hint = parameter.name, str(parameter.annotation)
    if not isinstance(value, (list, tuple)):
        if isinstance(value, Tensor) or value is None or "Tensor" not in hint or "float" in hint:
            return value
        raise SettingsError(f"{name} = {value!r} cannot work: give a list of numbers")
    if name not in _PER_TASK and "Tensor" not in hint:
        raise SettingsError(f"{name} = {value!r} cannot work: give a single value")
    with contextlib.suppress(TypeError, ValueError):
        return torch.tensor(value, dtype=torch.float64 if name == "pref_vector" else torch.float32)
    raise SettingsError(f"{name} = {value!r} cannot work: give a list of numbers")
