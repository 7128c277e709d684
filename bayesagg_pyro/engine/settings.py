"""Checks on what users pass to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.amp import GradScaler
from torch.distributions import Distribution

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
    reduction: str, warmup: bool, warmup_epochs: int | None, working_memory: int | None
) -> None:
    """Refuse settings of the engine outside their range.

    Raises:
        SettingError: naming the setting.
    """
    if not isinstance(warmup, bool):
        raise SettingError(f"warmup must be True or False, not {warmup!r}")
    if reduction not in ("mean", "sum"):
        raise SettingError(f'reduction must be "mean" or "sum", not {reduction!r}')
    if warmup_epochs is not None and (warmup_epochs < 1 or not warmup):
        raise SettingError("warmup_epochs must be at least 1 and needs warmup=True")
    if working_memory is not None and working_memory < 1:
        raise SettingError(f"working_memory must be positive or None, not {working_memory}")


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
            f"there is no {what} yet for {lacking}: run an epoch of backward() in train mode "
            "and call update_prior() first, or make it of batches with refit()"
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


def check_attribute(engine: nn.Module, name: str, value: object) -> None:
    """Refuse to put something else in the place of what an engine keeps, and what is no observer.

    Raises:
        StateError, DtypeError: naming the heads or the value, and the remedy.
    """
    kept = getattr(engine, name, None) if name in _KEPT else None
    if kept is not None and kept is not value:
        raise StateError(
            f"the {name} of {list(kept)} cannot be replaced by a {type(value).__name__}: an engine keeps "
            f"those that it was made with; {_KEPT[name]}"
        )
    if name == "observer" and value is not None:
        for method in ("wants", "passed"):
            if not callable(getattr(value, method, None)):
                raise DtypeError(
                    f"observer must be None or have methods wants() and passed(info), as "
                    f"diagnostics.Recorder(mtl) has, not {value!r}, which has no {method}()"
                )


#: What an engine keeps, and what to do instead of replacing it.
_KEPT = {
    "heads": "make a new engine, BayesAgg(heads), and take over what fits by "
    "load_state_dict(state, strict=False)",
    "schemes": "make a new engine of the same heads, BayesAgg(dict(mtl.heads), inference=...), and "
    "refit(batches)",
    "estimators": "change one, mtl.estimators[name] = ...",
}


class Heads(nn.ModuleDict):
    """The heads of an engine, {name: head}, which it was made with and keeps."""

    _settled = False

    def __init__(self, heads: Mapping[str, Head]) -> None:
        super().__init__(heads)
        self._settled = True

    def _get_name(self) -> str:
        return "ModuleDict"

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._refuse(name, value)
        super().__setattr__(name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """For torch, which puts back what is there."""
        self._refuse(name, module)
        super().add_module(name, module)

    def __delitem__(self, key: str) -> None:
        self._refuse(key, None)

    def clear(self) -> None:
        """Refused, as long as there is a head."""
        for key in self:
            self._refuse(key, None)

    def _refuse(self, name: str, module: nn.Module | None) -> None:
        if self._settled and self._modules.get(name) is not module:
            raise StateError(
                f"head {name!r} cannot be added, replaced or removed: an engine keeps the heads "
                "that it was made with, since their priors belong to them; make a new engine, "
                "BayesAgg({**mtl.heads, ...}), and take over what fits by load_state_dict(state, "
                "strict=False)"
            )


class Settled(Mapping[str, Scheme]):
    """The schemes of an engine, {name: scheme}, which it was made with and keeps."""

    def __init__(self, schemes: Mapping[str, Scheme]) -> None:
        self._schemes = dict(schemes)

    def __getitem__(self, name: str) -> Scheme:
        return self._schemes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemes)

    def __len__(self) -> int:
        return len(self._schemes)

    def __setitem__(self, name: str, scheme: Scheme) -> None:
        raise StateError(
            f"the scheme of head {name!r} is settled, since its prior rests on it; make a new "
            "engine of the same heads, BayesAgg(dict(mtl.heads), inference=...), and refit(batches)"
        )

    def __repr__(self) -> str:
        return repr(self._schemes)
