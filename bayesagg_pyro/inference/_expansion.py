"""Second-order expansions of any head: in closed form (`_ggn`), else by automatic derivatives."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import (
    Categorical,
    Head,
    Heteroscedastic,
    Network,
    OnePredictor,
    SharedWeights,
)
from bayesagg_pyro.inference import _ggn, _nonlinear
from bayesagg_pyro.inference._curvature import Structure
from bayesagg_pyro.inference._ggn import Chunk, Expansion
from bayesagg_pyro.targets import Targets

__all__ = ["check_structure", "check_tasks", "chunk_of", "expand", "value"]


def check_structure(head: Head, structure: Structure) -> None:
    """Refuse heads without second-order expansion and structures that do not fit.

    Raises:
        SettingError: naming the head and the remedy.
    """
    observed = _observed(head)
    if observed is not None:
        _check_curvature(head, observed)
    allowed: tuple[str, ...] = ("full",) if observed is None else ("full", "diag")
    if _linear(head) and isinstance(head, Categorical):
        allowed = ("full", "kron", "diag")
    if structure not in allowed:
        raise SettingError(
            f"head {head.site!r}: structure must be one of {allowed} for {type(head).__name__} "
            f"heads, not {structure!r}"
        )


def check_tasks(head: Head) -> None:
    """Refuse outputs of a subclass that mix the weights of tasks; looks at values, so not per step.

    Raises:
        SettingError: naming the head and the remedy.
    """
    if head.blocks > 1 and not _linear(head):
        _nonlinear.check_tasks(head)


def chunk_of(head: Head, features: Tensor, targets: Targets) -> Chunk:
    """Some examples as the head's expansion takes them, detached and in the precision it has."""
    if _linear(head):
        return Chunk(head.design_matrix(features), targets)
    return Chunk(features.detach().to(linalg.head_dtype(features.device)), targets)


def expand(
    head: Head,
    chunks: Iterable[Chunk],
    point: Tensor,
    structure: Structure,
    *,
    separate_bias: bool = False,
) -> Expansion:
    """Σ −log p at `point`, [blocks, P], to second order, summed over chunks of examples."""
    if _linear(head):
        return _ggn.expand(head, chunks, point, structure, separate_bias=separate_bias)
    observed = _observed(head)
    parts = (_nonlinear.expand(head, observed, chunk, point, structure) for chunk in chunks)
    return reduce(lambda total, part: total + part, parts)


def value(head: Head, chunks: Iterable[Chunk], point: Tensor) -> Tensor:
    """Σ −log p at `point` over the observed examples, [blocks]."""
    if _linear(head):
        return _ggn.value(head, chunks, point)
    parts = (_nonlinear.value(head, chunk, point) for chunk in chunks)
    return reduce(lambda total, part: total + part, parts)


def _linear(head: Head) -> bool:
    """Whether outputs are still f = W φ(h), and the weights those of tasks."""
    return not isinstance(head, SharedWeights) and head.is_still((Head, Categorical), "outputs")


def _observed(head: Head) -> Head | None:
    """Whose likelihood of the outputs is expanded; None for the Hessian in the weights instead."""
    if isinstance(head, Network) and head.is_still(Network, "likelihood", "weight"):
        return head.observation
    return None if isinstance(head, SharedWeights) else head


def _check_curvature(head: Head, observed: Head) -> None:
    """Refuse likelihoods whose curvature in the outputs is not known."""
    remedy = "derive it from heads.OnePredictor or choose a sampling scheme"
    if not head.is_still(Head, "pointwise"):
        reason = f"{head.changed(Head, 'pointwise')}, past which no curvature is known"
    elif isinstance(observed, OnePredictor):
        return
    elif isinstance(observed, Categorical | Heteroscedastic):
        base = Categorical if isinstance(observed, Categorical) else Heteroscedastic
        if observed.is_still(base, "likelihood"):
            return
        reason = f"{observed.changed(base, 'likelihood')}, whose curvature alone is known"
        remedy = "choose a sampling scheme"
    else:
        reason = f"{type(observed).__name__} has no second-order expansion"
    raise SettingError(f"head {head.site!r}: {reason}; {remedy}")
