"""Checks on what users pass to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.amp import GradScaler
from torch.distributions import Distribution

from bayesagg_pyro._settings import integers
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.errors import (
    DtypeError,
    SettingError,
    StateError,
    TaskError,
)
from bayesagg_pyro.gradients import Estimator
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior

if TYPE_CHECKING:
    from bayesagg_pyro.engine.slot import Slot

_T = TypeVar("_T")
_Default = TypeVar("_Default")


def check_heads(heads: Mapping[str, Head]) -> None:
    """Refuse no heads, things that are no heads, one head twice, unusable names.

    Raises:
        TaskError, DtypeError: naming the head and the remedy.
    """
    if not isinstance(heads, Mapping) or not heads:
        raise TaskError("heads must be a non-empty {name: head}")
    seen: dict[int, str] = {}
    probe = nn.ModuleDict()
    for name, head in heads.items():
        if not isinstance(head, Head):
            raise DtypeError(
                f"{name!r} must be a head from bayesagg_pyro.heads, not {type(head).__name__}"
            )
        if id(head) in seen:
            raise TaskError(
                f"one head object is given as {seen[id(head)]!r} and as {name!r}; make two heads, "
                "or one with more tasks"
            )
        seen[id(head)] = name
        if not isinstance(name, str) or not name or "." in name or hasattr(probe, name):
            raise TaskError(
                f"{name!r} cannot name a head: names are non-empty strings without dots, and no "
                "attribute of torch.nn.ModuleDict ('type', 'keys', ...); rename it, for example "
                f"to {'head_' + str(name).replace('.', '_')!r}"
            )


@contextmanager
def named_heads(heads: Mapping[str, Head]) -> Iterator[None]:
    """Name heads by their keys, for messages and sites; heads of a refused engine lose it again."""
    nameless = [head for head in heads.values() if head.name is None]
    for name, head in heads.items():
        head.name = name if head.name is None else head.name
    try:
        yield
    except BaseException:
        for head in nameless:
            head.name = None
        raise


def check_settings(
    reduction: str = "sum",
    warmup: bool = True,
    warmup_epochs: int | None = None,
    working_memory: int | None = None,
) -> None:
    """Refuse settings of the engine outside their range.

    Raises:
        SettingError: naming the setting.
    """
    if not isinstance(warmup, bool):
        raise SettingError(f"warmup must be True or False, not {warmup!r}")
    if reduction not in ("mean", "sum"):
        raise SettingError(f'reduction must be "mean" or "sum", not {reduction!r}')
    if warmup_epochs is not None:
        integers(warmup_epochs=warmup_epochs)
        if not warmup:
            raise SettingError("warmup_epochs needs warmup=True")
    if working_memory is not None:
        integers(working_memory=working_memory)


def check_aggregation(aggregation: Aggregation, heads: Mapping[str, Head]) -> None:
    """Refuse objects that are no `Aggregation`, and one made for other heads.

    Raises:
        DtypeError: for another type.
        TaskError, SettingError, ShapeError: what the aggregation has against the heads.
    """
    if not isinstance(aggregation, Aggregation):
        raise DtypeError(
            f"aggregation must be an object from bayesagg_pyro.aggregation, not {aggregation!r}"
        )
    if aggregation.reduction not in ("mean", "sum"):
        raise SettingError(
            f"{type(aggregation).__name__}.reduction is {aggregation.reduction!r}: weights add up "
            "to 1 ('mean') or to the number of tasks ('sum')"
        )
    if getattr(aggregation, "scale", None) in ("mean", "sum"):
        raise SettingError(f"{type(aggregation).__name__}.scale is to be called reduction")
    aggregation.check_heads({name: head.tasks for name, head in heads.items()})


def known(what: str, found: Mapping[str, Posterior | None]) -> dict[str, Posterior]:
    """Each head's distribution; an error where a head has none yet.

    Args:
        what: "prior" or "posterior", for the message.
        found: {head: distribution or None}.

    Raises:
        StateError: naming the heads that have none yet.
    """
    lacking = [name for name, distribution in found.items() if distribution is None]
    if lacking:
        raise StateError(
            f"there is no {what} yet for {lacking}: run an epoch of backward() in train mode, "
            "after the warm-up of collect(), and call update_prior() first, or make it of batches "
            "with refit()"
        )
    return {name: it for name, it in found.items() if it is not None}


def active(scaler: GradScaler) -> GradScaler | None:
    """A gradient scaler, None for one that is not enabled.

    Raises:
        DtypeError: for what is no scaler.
    """
    if not isinstance(scaler, GradScaler):
        raise DtypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    return scaler if scaler.is_enabled() else None


def per_head(
    argument: str,
    given: _T | Mapping[str, _T] | None,
    heads: Iterable[str],
    kind: type,
    default: Callable[[str], _Default],
) -> dict[str, _T | _Default]:
    """One setting for all heads, or for those that are named; where there is none, the default.

    Raises:
        TaskError: for names of no head.
        DtypeError: if a setting has the wrong type.
    """
    chosen: Mapping[str, Any] = given if isinstance(given, Mapping) else dict.fromkeys(heads, given)
    unknown = [name for name in chosen if name not in heads]
    if unknown:
        raise TaskError(
            f"{argument} is given for unknown heads {unknown}; the heads are {[*heads]}"
        )
    spread: dict[str, _T | _Default] = {}
    for name in heads:
        value: Any = chosen.get(name)
        fits = value is None or isinstance(value, kind)
        if not fits:
            hint = f"; call it: {value.__name__}()" if isinstance(value, type) else ""
            if isinstance(value, Distribution):
                hint = (
                    "; a policy starts from a distribution: priors.FullData(base=lambda head: ...),"
                    " or priors.Constant to keep it. A prior that is not Gaussian goes into a Pyro "
                    "model, heads.FromPyro"
                )
            raise DtypeError(
                f"{argument} of {name!r} must be a bayesagg_pyro {kind.__name__}, not "
                f"{value!r}{hint}"
            )
        spread[name] = default(name) if value is None else value
    return spread


def check_estimators(
    given: Estimator | Mapping[str, Estimator] | None,
    heads: Mapping[str, Head],
    schemes: Mapping[str, Scheme],
) -> dict[str, Estimator | None]:
    """One estimator for each head; None, to choose by types, where none is given.

    Raises:
        DtypeError, UnsupportedError: also for estimators that cannot take what a scheme gives.
    """
    spread = per_head("estimator", given, heads, Estimator, lambda name: None)
    for name, value in spread.items():
        kind = schemes[name].gives
        if value is not None and kind is not None:
            value.check(heads[name], kind)
    return spread


def check_followers(slots: Iterable[Slot]) -> None:
    """Refuse weights into which a posterior mean cannot be written, or more than one would be.

    Raises:
        SettingError: for one that a parametrisation computes.
        TaskError: for one that two heads share, naming both.
    """
    owners: dict[nn.Parameter, Slot] = {}
    for slot in slots:
        slot.check_follows()
        if isinstance(weight := slot.head.weight, nn.Parameter):
            other = owners.setdefault(weight, slot)
            if other is not slot and not (slot.learns and other.learns):
                raise TaskError(
                    f"heads {other.name!r} and {slot.name!r} share one weight, into which each "
                    "writes its own posterior mean; give each its own, or make one head with "
                    "more tasks"
                )
