"""What an engine was made with and keeps: its heads, and what their priors rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from torch import nn

from bayesagg_pyro.engine.layout import check_axis
from bayesagg_pyro.engine.settings import check_estimators, check_settings
from bayesagg_pyro.errors import DtypeError, StateError
from bayesagg_pyro.gradients import Estimator
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme

_T = TypeVar("_T")

#: What an engine keeps, and what to do instead of replacing it.
_KEPT = {
    "heads": "make a new engine, BayesAgg(heads), and take over what fits by "
    "load_state_dict(mtl.state_dict(), strict=False)",
    "schemes": "make a new engine of the same heads, BayesAgg(dict(mtl.heads), inference=...), and "
    "refit(batches)",
    "estimators": "change one, mtl.estimators[name] = ...",
}

_SETTINGS = ("warmup", "warmup_epochs", "working_memory")

#: Attributes that are looked at when they are set.
WATCHED = frozenset({*_KEPT, *_SETTINGS, "observer", "feature_axis"})


def check_attribute(engine: nn.Module, name: str, value: object) -> None:
    """Refuse another in the place of what an engine keeps, and what is no observer or setting.

    Args:
        engine: the engine.
        name: of the attribute, one of `WATCHED`.
        value: what is to be put there.

    Raises:
        StateError, DtypeError, SettingError: naming the heads or the value, and the remedy.
    """
    if name in _SETTINGS:
        check_settings(**{name: value})  # type: ignore[arg-type]
    if name == "feature_axis":
        check_axis(value)
    kept = getattr(engine, name, None) if name in _KEPT else None
    if kept is not None and kept is not value:
        raise StateError(
            f"the {name} of {list(kept)} cannot be replaced by a {type(value).__name__}: an "
            f"engine keeps those that it was made with; {_KEPT[name]}"
        )
    if name == "observer" and value is not None:
        for method in ("wants", "passed"):
            if not callable(getattr(value, method, None)):
                raise DtypeError(
                    f"observer must be None or have methods wants() and passed(info), as "
                    f"diagnostics.Recorder(mtl) has, not {value!r}, which has no {method}()"
                )


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


class _ByHead(Mapping[str, _T]):
    """Something of each head, {name: it}."""

    def __init__(self, found: Mapping[str, _T]) -> None:
        self._found = dict(found)

    def __getitem__(self, name: str) -> _T:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(self._found)


class Settled(_ByHead[Scheme]):
    """The schemes of an engine, {name: scheme}, which it was made with and keeps."""

    def __setitem__(self, name: str, scheme: Scheme) -> None:
        raise StateError(
            f"the scheme of head {name!r} is settled, since its prior rests on it; make a new "
            "engine of the same heads, BayesAgg(dict(mtl.heads), inference=...), and refit(batches)"
        )


class Estimators(_ByHead[Estimator | None], MutableMapping[str, Estimator | None]):
    """The estimators of an engine, {name: one, or None to choose by types}; each may be changed."""

    def __init__(
        self,
        found: dict[str, Estimator | None],
        heads: Mapping[str, Head],
        schemes: Mapping[str, Scheme],
    ) -> None:
        self._found, self._heads, self._schemes = found, heads, schemes  # steps read `found`

    def __setitem__(self, name: str, estimator: Estimator | None) -> None:
        given: Any = {name: estimator}
        self._found[name] = check_estimators(given, self._heads, self._schemes)[name]

    def __delitem__(self, name: str) -> None:
        raise StateError(f"an engine keeps its estimators: set that of {name!r} to None")
