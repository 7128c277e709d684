"""Distributions over head weights: what inference returns, what gradients and priors take.

All are Pyro distributions with batch shape [tasks] and event shape [P], P being the number of
weights of one task (P = in_features + bias; times the classes for a Categorical head).
"""

from bayesagg_pyro.posteriors._blocked import BlockedGaussian
from bayesagg_pyro.posteriors._diagonal import DiagonalGaussian, isotropic
from bayesagg_pyro.posteriors._divergence import gaussian_divergence
from bayesagg_pyro.posteriors._empirical import Empirical
from bayesagg_pyro.posteriors._family import GaussianFamily, Projection
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._kronecker import KroneckerGaussian
from bayesagg_pyro.posteriors._low_rank import LowRankGaussian
from bayesagg_pyro.posteriors._normal_inverse_gamma import NormalInverseGamma
from bayesagg_pyro.posteriors._packed import PackedGaussian
from bayesagg_pyro.posteriors._point import Point
from bayesagg_pyro.posteriors._posterior import Posterior
from bayesagg_pyro.posteriors._where import where

__all__ = [
    "BlockedGaussian",
    "DiagonalGaussian",
    "Empirical",
    "Gaussian",
    "GaussianFamily",
    "Info",
    "KroneckerGaussian",
    "LowRankGaussian",
    "NormalInverseGamma",
    "PackedGaussian",
    "Point",
    "Posterior",
    "Projection",
    "gaussian_divergence",
    "isotropic",
    "where",
]
