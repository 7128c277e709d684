"""Gradient distributions: what uncertain head weights say about dL/dH."""

from bayesagg_pyro.gradients._cat import cat
from bayesagg_pyro.gradients._dispatch import distribution, register
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._estimators import Estimator, Exact, MonteCarlo
from bayesagg_pyro.gradients._gaussian import gaussian_moments

__all__ = [
    "Estimator",
    "Exact",
    "GradientDistribution",
    "MonteCarlo",
    "cat",
    "distribution",
    "gaussian_moments",
    "register",
]
