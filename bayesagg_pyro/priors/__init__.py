"""Priors over head weights: functions make distributions, classes make policies over time."""

from bayesagg_pyro.inference._evidence import Evidence
from bayesagg_pyro.posteriors import isotropic
from bayesagg_pyro.priors._constant import Constant
from bayesagg_pyro.priors._data import DataPolicy
from bayesagg_pyro.priors._fresh import Fresh
from bayesagg_pyro.priors._full_data import FullData
from bayesagg_pyro.priors._policy import Policy
from bayesagg_pyro.priors._previous_batch import PreviousBatch
from bayesagg_pyro.priors._running import Running
from bayesagg_pyro.priors._shaped import dense, diagonal, weight_and_bias

__all__ = [
    "Constant",
    "DataPolicy",
    "Evidence",
    "Fresh",
    "FullData",
    "Policy",
    "PreviousBatch",
    "Running",
    "dense",
    "diagonal",
    "isotropic",
    "weight_and_bias",
]
