"""Formulas that a head derives by hand, such as slopes: out of date where their source changes.

Where a subclass, or an object, redefines the method that a formula is derived from, and not the
formula, the general derivation takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

from torch import nn

#: Methods, and those that they may be derived from.
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "negative_log_prob": ("likelihood",),
    "loss_derivative": ("loss", "negative_log_prob", "likelihood"),
    "nll_derivatives": ("negative_log_prob", "likelihood"),
}


class DerivedFormulas(nn.Module):
    """Base of heads."""

    @property
    def has_own_density(self) -> bool:
        """Whether `negative_log_prob` is a formula of `likelihood`: one class defines both."""
        names = "likelihood", "negative_log_prob"
        levels = {_level(type(self), name) for name in names}
        return len(levels) == 1 and not vars(self).keys() & set(names)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, sources in _SOURCES.items():
            mine = _level(cls, name)
            if hasattr(cls, name) and any(_level(cls, source) < mine for source in sources):
                general = _general(cls, name)
                if getattr(cls, name) is not general:
                    setattr(cls, name, general)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for derived, sources in _SOURCES.items():
            if name in sources and derived not in vars(self) and hasattr(type(self), derived):
                vars(self)[derived] = MethodType(_general(type(self), derived), self)


def _level(cls: type, name: str) -> int:
    """Index in the list of bases of the one that defines a method; past the end if none does."""
    bases = cls.__mro__
    return next((i for i, base in enumerate(bases) if name in vars(base)), len(bases))


def _general(cls: type, name: str) -> Any:
    """The definition that all heads of the kind begin with: by automatic differentiation."""
    heads = [
        base for base in cls.__mro__ if issubclass(base, DerivedFormulas) and name in vars(base)
    ]
    return vars(heads[-1])[name] if heads else getattr(cls, name)
