"""Heads: what a task is. Each is a likelihood over linear outputs, written as a Pyro model."""

from bayesagg_pyro.heads._bernoulli import Bernoulli
from bayesagg_pyro.heads._categorical import Categorical
from bayesagg_pyro.heads._embedding import Body, Embedding
from bayesagg_pyro.heads._fit_bias import fit_bias
from bayesagg_pyro.heads._from_pyro import FromPyro
from bayesagg_pyro.heads._gaussian import Gaussian
from bayesagg_pyro.heads._gaussian_process import GaussianProcess
from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._heteroscedastic import Heteroscedastic
from bayesagg_pyro.heads._inducing import InducingPoints
from bayesagg_pyro.heads._negative_binomial import NegativeBinomial
from bayesagg_pyro.heads._network import Network
from bayesagg_pyro.heads._one_predictor import OnePredictor
from bayesagg_pyro.heads._ordinal import Ordinal
from bayesagg_pyro.heads._poisson import Poisson
from bayesagg_pyro.heads._shared import SharedWeights
from bayesagg_pyro.heads._student_t import StudentT

__all__ = [
    "Bernoulli",
    "Body",
    "Categorical",
    "Embedding",
    "FromPyro",
    "Gaussian",
    "GaussianProcess",
    "Head",
    "Heteroscedastic",
    "InducingPoints",
    "NegativeBinomial",
    "Network",
    "OnePredictor",
    "Ordinal",
    "Poisson",
    "SharedWeights",
    "StudentT",
    "fit_bias",
]
