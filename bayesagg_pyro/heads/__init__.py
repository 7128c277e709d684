"""Heads: what a task is. Each is a likelihood over linear outputs, written as a Pyro model."""

from bayesagg_pyro.heads._gaussian import Gaussian
from bayesagg_pyro.heads._head import Head

__all__ = ["Gaussian", "Head"]
