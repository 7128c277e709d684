"""Gradient distributions: dL/dH under uncertain head weights."""

from bayesagg_pyro.gradients._closed_forms import (
    gaussian_moments,
    integrated_noise_moments,
    poisson_moments,
)
from bayesagg_pyro.gradients._conditional import Conditional
from bayesagg_pyro.gradients._derived import block_diag
from bayesagg_pyro.gradients._dispatch import distribution
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError, cat, loss_scale
from bayesagg_pyro.gradients._estimator import Estimator, Exact
from bayesagg_pyro.gradients._heteroscedastic import heteroscedastic_moments
from bayesagg_pyro.gradients._monte_carlo import AtPoint, MonteCarlo
from bayesagg_pyro.gradients._plug_in import PlugIn
from bayesagg_pyro.gradients._quadrature import Quadrature
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.gradients._samples import sampled_gradients

__all__ = [
    "AtPoint",
    "Conditional",
    "Estimator",
    "Exact",
    "GradientDistribution",
    "MomentError",
    "MonteCarlo",
    "PlugIn",
    "Quadrature",
    "block_diag",
    "cat",
    "distribution",
    "gaussian_moments",
    "heteroscedastic_moments",
    "integrated_noise_moments",
    "loss_scale",
    "poisson_moments",
    "register",
    "sampled_gradients",
]
