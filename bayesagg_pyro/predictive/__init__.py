"""Predictive distributions: targets with the weights integrated out, and what makes them wide."""

from bayesagg_pyro.predictive import _gaussian, _pyro_model  # noqa: F401  (they register)
from bayesagg_pyro.predictive._calibrate import calibrated, calibration
from bayesagg_pyro.predictive._compound import Compound, NormalCompound, PredictorCompound
from bayesagg_pyro.predictive._density import log_predictive_density
from bayesagg_pyro.predictive._distribution import PredictiveDistribution
from bayesagg_pyro.predictive._integral import log_expectation
from bayesagg_pyro.predictive._mixture import NormalMixture, SampledPredictive
from bayesagg_pyro.predictive._predict import predictive
from bayesagg_pyro.predictive._uncertainty import Uncertainty, uncertainty

__all__ = [
    "Compound",
    "NormalCompound",
    "NormalMixture",
    "PredictiveDistribution",
    "PredictorCompound",
    "SampledPredictive",
    "Uncertainty",
    "calibrated",
    "calibration",
    "log_expectation",
    "log_predictive_density",
    "predictive",
    "uncertainty",
]
