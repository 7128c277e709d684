"""Inference schemes: which weights are plausible, given a batch and a prior."""

from bayesagg_pyro.inference._conjugate import Conjugate
from bayesagg_pyro.inference._examples import Examples, Keep
from bayesagg_pyro.inference._laplace import Laplace
from bayesagg_pyro.inference._log_joint import log_joint, log_likelihood
from bayesagg_pyro.inference._newton import SecondOrder
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import GaussianStatistics, Statistics
from bayesagg_pyro.inference._taylor import TaylorGGN

__all__ = [
    "Conjugate",
    "Examples",
    "GaussianStatistics",
    "Keep",
    "Laplace",
    "Scheme",
    "SecondOrder",
    "Statistics",
    "TaylorGGN",
    "log_joint",
    "log_likelihood",
]
