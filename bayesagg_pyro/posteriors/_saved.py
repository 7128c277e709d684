"""Posteriors as tensors under plain names, and back; see `Posterior.state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesagg_pyro._state import count, finite, named, number, part, saved
from bayesagg_pyro.errors import BayesAggError, NumericalError, StateError
from bayesagg_pyro.posteriors._info import Info

if TYPE_CHECKING:
    from bayesagg_pyro.posteriors._posterior import Posterior

#: Ends the names of matrices that are saved by columns, as LAPACK makes its factors: products of
#: the same numbers in another order round otherwise, and resuming is to be exact.
_COLUMNS = "_by_columns"


def state_of(kind: str, posterior: Posterior) -> dict[str, Tensor]:
    """The tensors of a posterior, behind the name of its kind."""
    state = dict(_laid_out(name, tensor) for name, tensor in posterior.tensors().items())
    numbers = ("outputs_per_task", *posterior.numbers)
    state |= {name: number(getattr(posterior, name)) for name in numbers}
    if posterior.info is not None:
        state |= named("info", {name: saved(v) for name, v in posterior.info.known().items()})
    return named(kind, state)


def rebuilt(
    kinds: Mapping[str, type[Posterior]], state: Mapping[str, Tensor], device: torch.device | None
) -> Posterior:
    """The posterior of one of the kinds, checked; see `Posterior.from_state_dict`."""
    kind, cls, own = _class_of(kinds, state)
    told = {name: value.to(device, copy=True) for name, value in part(own, "info").items()}
    numbers = {name: count(own, name) for name in ("outputs_per_task", *cls.numbers)}
    outputs = numbers.pop("outputs_per_task")
    given = dict(
        _by_columns(name, value)
        for name, value in own.items()
        if "." not in name and name not in ("outputs_per_task", *numbers)
    )
    finite(f"a posterior of class {kind}", given, list(given))
    arguments = {name: value.to(device).clone() for name, value in given.items()}
    build: Any = cls
    try:
        made: Posterior = build(**arguments, **numbers)
        if not made.sound():
            arguments = {k: v for k, v in arguments.items() if k not in cls.derived}
            made, told = build(**arguments, **numbers), {}
        sound = made.sound()
    except BayesAggError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        shapes = {name: list(value.shape) for name, value in given.items()}
        raise StateError(
            f"a saved {kind} posterior holds {shapes}, which do not make one: {error}"
        ) from error
    if not sound:
        raise NumericalError(
            f"a saved {kind} posterior is no distribution: its precision is not positive "
            "definite; load an earlier state"
        )
    if "jitter" in given and made.info is not None:
        _check_info(kind, made, made.info)
    if told:
        made = made.replace(info=_info(kind, made, told))
    return made.replace(outputs_per_task=outputs)


def _class_of(
    kinds: Mapping[str, type[Posterior]], state: Mapping[str, Tensor]
) -> tuple[str, type[Posterior], dict[str, Tensor]]:
    """The one class that all of a state is of, by its short name and with what was saved of it.

    Earlier states have this package's classes without its name.

    Raises:
        StateError: if there is none.
    """
    short = {kind.removeprefix("bayesagg_pyro."): cls for kind, cls in kinds.items()}
    for kind, cls in sorted({**short, **kinds}.items(), key=lambda item: -len(item[0])):
        own = part(state, kind)
        if own and len(own) == len(state):
            return kind.removeprefix("bayesagg_pyro."), cls, own
    raise StateError(
        f"a saved posterior must be of one class that is defined here, but holds "
        f"{sorted(state)}; import the module that defines it first"
    )


def _info(kind: str, posterior: Posterior, told: dict[str, Tensor]) -> Info:
    """What was saved of how it came about.

    Raises:
        StateError: if that is of another posterior.
    """
    known = {field.name for field in fields(Info)}
    try:
        info = Info(**{name: value for name, value in told.items() if name in known})
    except TypeError as error:
        raise StateError(f"a saved {kind} posterior's info is not whole: {error}") from error
    _check_info(kind, posterior, info)
    return info


def _check_info(kind: str, posterior: Posterior, info: Info) -> None:
    chains = getattr(posterior, "chains", None)
    if not info.fits(posterior.tasks, posterior.event_shape[0], chains):
        shapes = {name: list(value.shape) for name, value in info.known().items()}
        raise StateError(
            f"a saved {kind} posterior is over {posterior.tasks} tasks of "
            f"{posterior.event_shape[0]} weights, its info {shapes} is not"
        )


def _laid_out(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    columns = tensor.ndim > 1 and not tensor.is_contiguous() and tensor.mT.is_contiguous()
    return (f"{name}{_COLUMNS}", saved(tensor.mT)) if columns else (name, saved(tensor))


def _by_columns(name: str, value: Tensor) -> tuple[str, Tensor]:
    if not name.endswith(_COLUMNS) or value.ndim < 2:
        return name, value
    return name.removesuffix(_COLUMNS), value.mT
