"""Priors over head weights: functions make distributions, classes make policies over time."""

from bayesagg_pyro.priors._distributions import isotropic
from bayesagg_pyro.priors._full_data import FullData
from bayesagg_pyro.priors._policy import Policy, Tracker

__all__ = ["FullData", "Policy", "Tracker", "isotropic"]
