"""Which scheme a head gets where the user names none."""

from __future__ import annotations

from copy import deepcopy

from bayesagg_pyro.errors import BayesAggError
from bayesagg_pyro.heads import Categorical, Gaussian, Head
from bayesagg_pyro.inference import Conjugate, Scheme, TaylorGGN
from bayesagg_pyro.priors import Policy

__all__ = ["affordable", "default_scheme"]

#: Weights of a softmax head, classes times features, up to which its posterior is dense: a step
#: takes time of their cube, and five matrices of their square (`python -m benchmarks.costs`).
_DENSE = 768


def default_scheme(head: Head) -> Scheme:
    """Exact where that exists, else the paper's."""
    exact = head.is_still(Gaussian, "outputs", "likelihood", "weight")
    return Conjugate() if exact else TaylorGGN()


def affordable(scheme: Scheme, head: Head, policy: Policy) -> Scheme:
    """A Kronecker curvature for large softmax heads, if the policy's prior can take one."""
    large = isinstance(head, Categorical) and head.weight_size > _DENSE
    if not (large and head.is_still(Categorical, "outputs", "design")):
        return scheme
    factored = TaylorGGN("kron")
    try:
        policy.start(deepcopy(head).to_empty(device="cpu"), factored)  # it may have no place yet
    except BayesAggError:
        return scheme
    return factored
