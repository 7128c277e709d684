"""Multi-task learning with Bayesian heads."""

__version__ = "0.1.0"
