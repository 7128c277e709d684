"""The registry of moment formulas, keyed by the types of head and posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

#: A moment formula: (head, posterior, features, parsed targets) -> distribution.
Formula: TypeAlias = Callable[[Any, Any, Tensor, Targets], GradientDistribution]
_F = TypeVar("_F", bound=Formula)

_formulas: dict[tuple[type[Head], type[Posterior]], Formula] = {}
#: Formulas that also hold for heads with an embedding.
_embedded: set[Formula] = set()


def register(
    head: type[Head], posterior: type[Posterior], *, embedded: bool = False
) -> Callable[[_F], _F]:
    """Decorator that registers a formula for the moments of a head type and a posterior type.

    The most specific registered pair wins; an ambiguous choice warns. A subclass of `head` that
    is another model (`heads.Head.is_still`: it overrides `loss`, `likelihood`, `forward`, ...) does
    not inherit it.

    Args:
        head: type of the head.
        posterior: type of the posterior.
        embedded: whether the formula also holds for heads with an embedding, whose design is not
            made of the features (`head.embedding.jacobian` leads back to them).

    Example:
        >>> from bayesagg_pyro import gradients, heads, posteriors
        >>> class MyHead(heads.Gaussian): ...
        >>> @gradients.register(MyHead, posteriors.Gaussian)
        ... def my_moments(head, posterior, features, targets):
        ...     return gradients.gaussian_moments(head, posterior, features, targets)
    """

    def decorate(formula: _F) -> _F:
        _formulas[head, posterior] = formula
        if embedded:
            _embedded.add(formula)
        return formula

    return decorate


def registered(head: Head, posterior: Posterior) -> Formula | None:
    """The formula in force for these two, or None."""
    h, p = type(head), type(posterior)
    matches = []
    for (rh, rp), formula in _formulas.items():
        if issubclass(h, rh) and issubclass(p, rp) and _holds(formula, head, rh):
            matches.append((rh, rp))
    if not matches:
        return None
    by_head = min(matches, key=lambda m: (h.__mro__.index(m[0]), p.__mro__.index(m[1])))
    by_posterior = min(matches, key=lambda m: (p.__mro__.index(m[1]), h.__mro__.index(m[0])))
    if by_head != by_posterior:
        left, right = (f"({a.__name__}, {b.__name__})" for a, b in (by_head, by_posterior))
        warnings.warn(
            f"gradient moments for ({h.__name__}, {p.__name__}) are ambiguous between {left} and "
            f"{right}; {left} is used. Register the pair itself to decide.",
            RuntimeWarning,
            stacklevel=3,
        )
    return _formulas[by_head]


def might_be_registered(head: Head, kind: type[Posterior]) -> bool:
    """Whether there is a formula for some posterior of that kind."""
    return any(
        issubclass(kind, p) or issubclass(p, kind)
        for (h, p), formula in _formulas.items()
        if _holds(formula, head, h)
    )


def _holds(formula: Formula, head: Head, base: type[Head]) -> bool:
    """Whether a formula for heads of that class holds for this one."""
    return head.is_still(base) and (head.embedding is None or formula in _embedded)
