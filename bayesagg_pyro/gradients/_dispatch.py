"""Which moment formula: chosen by the types of head and posterior, as torch's `kl` does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._estimators import Estimator, MonteCarlo
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets, Targets

__all__ = ["Formula", "distribution", "register", "registered"]

#: A moment formula: (head, posterior, features, parsed targets) -> distribution.
Formula: TypeAlias = Callable[[Any, Any, Tensor, Targets], GradientDistribution]
_F = TypeVar("_F", bound=Formula)

_formulas: dict[tuple[type, type], Formula] = {}

#: A subclass that changes one of these is another model: its base's formula no longer applies.
_DEFINING = ("forward", "loss", "likelihood", "design")


def register(head: type[Head], posterior: type[Posterior]) -> Callable[[_F], _F]:
    """Decorator: this function gives the moments for `head` with `posterior` and their subclasses.

    The most specific registered pair wins; an ambiguous choice warns. A subclass of `head` that
    overrides `forward`, `loss`, `likelihood` or `design` does not inherit the formula.

    Example:
        >>> from bayesagg_pyro import gradients, heads, posteriors
        >>> class MyHead(heads.Gaussian): ...
        >>> @gradients.register(MyHead, posteriors.Gaussian)
        ... def my_moments(head, posterior, features, targets):
        ...     return gradients.gaussian_moments(head, posterior, features, targets)
    """

    def decorate(formula: _F) -> _F:
        _formulas[head, posterior] = formula
        return formula

    return decorate


def registered(head: Head, posterior: Posterior) -> Formula | None:
    """The formula in force for these two, or None."""
    h, p = type(head), type(posterior)
    matches = [
        (rh, rp)
        for rh, rp in _formulas
        if issubclass(h, rh) and issubclass(p, rp) and _same_model(h, rh)
    ]
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


def _same_model(head: type, base: type) -> bool:
    return all(getattr(head, name) is getattr(base, name) for name in _DEFINING)


def distribution(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: RawTargets,
    *,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> GradientDistribution:
    """The distribution of the gradient of `head.loss` with respect to the features.

    Args:
        head: the head.
        posterior: over its weights.
        features: [B, d]; not differentiated through.
        targets: [B, tasks], or (values, mask).
        estimator: how; None takes the registered formula, or Monte Carlo where there is none.
        generator: randomness for estimators that sample and have no generator of their own.

    Returns:
        Moments [tasks, B, d] in the features' dtype.

    Raises:
        ShapeError, DtypeError, NonFiniteError: for bad features or targets.
    """
    if not isinstance(targets, Targets):  # parsed targets come with checked features
        head.check_features(features)
    observed = head.parse_targets(targets, len(features))
    features = features.detach()
    if estimator is None:
        formula = registered(head, posterior)
        if formula is not None:
            return formula(head, posterior, features, observed)
        estimator = MonteCarlo()
    return estimator.estimate(head, posterior, features, observed, generator)
