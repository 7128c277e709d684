"""What an engine takes where the user names nothing: schemes, and one rule for all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Final

from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.engine.slot import learns
from bayesagg_pyro.errors import BayesAggError
from bayesagg_pyro.gradients import Estimator, PlugIn
from bayesagg_pyro.heads import Categorical, Gaussian, Head
from bayesagg_pyro.inference import Conjugate, Scheme, TaylorGGN
from bayesagg_pyro.priors import Policy

#: Weights of a softmax head, classes times features, up to which its posterior is dense: a step
#: takes time of their cube, and five matrices of their square (`python -m benchmarks.costs`).
_DENSE: Final = 768
#: s among heads that predict with their posterior mean; docs/settings.md has the evidence.
_POWER: Final = 0.8


def default_scheme(head: Head, policy: Policy) -> Scheme:
    """Exact where that exists, else the paper's.

    With a Kronecker curvature for large softmax heads, if the policy's prior can take one.
    """
    if head.is_still(Gaussian, "outputs", "likelihood", "weight"):
        return Conjugate()
    large = isinstance(head, Categorical) and head.weight_size > _DENSE
    if large and head.is_still(Categorical, "outputs", "design"):
        factored = TaylorGGN("kron")
        try:  # on a copy: the head may have no place yet
            policy.start(deepcopy(head).to_empty(device="cpu"), factored)
        except BayesAggError:
            return TaylorGGN()
        return factored
    return TaylorGGN()


def default_aggregation(
    heads: Mapping[str, Head], schemes: Mapping[str, Scheme]
) -> PrecisionWeighted:
    """Precisions are compared among heads that predict with their posterior mean, and only there.

    Those are the Gaussian ones: how wide their posterior is, is a matter of the features alone, in
    units of the targets, so that precisions say how well a task is fitted. The posterior of a head
    of classes widens without end as the classes come apart, and its precision would take the task
    away just when it is learned: it keeps the weight 1 / T that it has in a mean of losses.
    The others' part of the update is as long as it is there.
    """
    return PrecisionWeighted(
        {name: 0.0 if learns(head, schemes[name]) else _POWER for name, head in heads.items()},
        keep_length=True,
    )


def default_estimators(
    heads: Mapping[str, Head],
    schemes: Mapping[str, Scheme],
    given: Mapping[str, Estimator | None],
) -> dict[str, Estimator | None]:
    """The expected gradient where the posterior mean predicts; else that at the learned weights.

    A posterior mean has seen the batch that it is to teach: for classes its residuals are too
    small, and a head that learns by gradient has honest ones at hand.
    """
    at_weights = PlugIn(at="weights")
    return {
        name: at_weights if found is None and learns(heads[name], schemes[name]) else found
        for name, found in given.items()
    }
