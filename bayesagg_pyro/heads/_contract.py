"""What a subclass has changed of its base's model: closed forms hold only for what it has not.

A formula belongs to a model, and a subclass (or an object) may change the model that it has from
its base. `Contract.is_still` is the one place that knows. What a base derives by hand from a method
that a subclass redefines is out of date, and falls back to the general derivation here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any, Literal, TypeAlias

from torch import nn

#: "outputs": f = W φ(h), of the design. "design": φ(h) is the features, or their embedding, with
#: the bias' constant. "likelihood": p(y | f). "weight": the factor of its logarithm. "loss": ℓ.
#: "pointwise": loss and likelihood of an example are functions of its outputs.
Aspect: TypeAlias = Literal["outputs", "design", "likelihood", "weight", "loss", "pointwise"]

_METHODS: Mapping[Aspect, tuple[str, ...]] = {
    "outputs": ("forward", "outputs_of", "design_matrix"),
    "design": ("design",),
    "likelihood": ("likelihood", "negative_log_prob", "negative_log_probs"),
    "weight": ("target_weight",),
    "loss": ("loss", "losses"),
    "pointwise": ("negative_log_probs", "losses"),
}
_ALL: tuple[Aspect, ...] = tuple(_METHODS)

#: Methods, and those that they may be derived from by hand.
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "negative_log_prob": ("likelihood",),
    "loss_derivative": ("loss", "negative_log_prob", "likelihood"),
    "nll_derivatives": ("negative_log_prob", "likelihood"),
}


class Contract(nn.Module):
    """Base of heads: tells which parts of a model were changed, by a subclass or on the object."""

    def is_still(self, base: type | tuple[type, ...], *aspects: Aspect) -> bool:
        """Whether this is a `base` with these aspects of its model unchanged (all of them if none).

        Args:
            base: a class of heads, or several, of which one will do.
            aspects: see `Aspect`.
        """
        for one in base if isinstance(base, tuple) else (base,):
            if isinstance(self, one) and not self.changes(one, *aspects):
                return True
        return False

    def changes(self, base: type, *aspects: Aspect) -> tuple[str, ...]:
        """Names of what differs from `base`: methods, and "hooks" on the outputs."""
        found: dict[str, None] = {}
        for aspect in aspects or _ALL:
            for name in _METHODS[aspect]:
                # As a method of the object, so that one assigned to it counts as well.
                if getattr(getattr(self, name), "__func__", None) is not getattr(base, name):
                    found[name] = None
        if (self._forward_hooks or self._forward_pre_hooks) and "outputs" in (aspects or _ALL):
            found["hooks"] = None
        return tuple(found)

    def changed(self, base: type, *aspects: Aspect) -> str:
        """What `changes` finds, for a message: "Mine overrides forward of Gaussian"."""
        names = " and ".join(self.changes(base, *aspects))
        return f"{type(self).__name__} overrides {names} of {base.__name__}"

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
    heads = [base for base in cls.__mro__ if issubclass(base, Contract) and name in vars(base)]
    return vars(heads[-1])[name] if heads else getattr(cls, name)
