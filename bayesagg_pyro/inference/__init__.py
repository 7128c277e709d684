"""Inference schemes: which weights are plausible, given a batch and a prior."""

from bayesagg_pyro.inference._conjugate import Conjugate
from bayesagg_pyro.inference._delta import Delta
from bayesagg_pyro.inference._ensemble import Ensemble
from bayesagg_pyro.inference._evidence import (
    learns_noise,
    log_evidence,
    scaled,
)
from bayesagg_pyro.inference._examples import Examples
from bayesagg_pyro.inference._gaussian_sums import GaussianStatistics
from bayesagg_pyro.inference._integrated_noise import IntegratedNoise
from bayesagg_pyro.inference._iterative import Iterative
from bayesagg_pyro.inference._joint import Joint, log_joint, log_likelihood
from bayesagg_pyro.inference._laplace import Laplace
from bayesagg_pyro.inference._laplace_torch import LaplaceTorch
from bayesagg_pyro.inference._mcmc import HMC, NUTS
from bayesagg_pyro.inference._newton import SecondOrder
from bayesagg_pyro.inference._scheme import Refresh, Scheme
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.inference._taylor import TaylorGGN
from bayesagg_pyro.inference._variational import Variational

__all__ = [
    "HMC",
    "NUTS",
    "Conjugate",
    "Delta",
    "Ensemble",
    "Examples",
    "GaussianStatistics",
    "IntegratedNoise",
    "Iterative",
    "Joint",
    "Laplace",
    "LaplaceTorch",
    "Refresh",
    "Scheme",
    "SecondOrder",
    "Statistics",
    "Storage",
    "TaylorGGN",
    "Variational",
    "learns_noise",
    "log_evidence",
    "log_joint",
    "log_likelihood",
    "scaled",
]
