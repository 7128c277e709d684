"""Inference schemes: which weights are plausible, given a batch and a prior."""

from bayesagg_pyro.inference._conjugate import Conjugate
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import GaussianStatistics, Statistics

__all__ = ["Conjugate", "GaussianStatistics", "Scheme", "Statistics"]
