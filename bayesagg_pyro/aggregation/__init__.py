"""Aggregation: one update direction from the gradient distributions of all tasks."""

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, effective_tasks
from bayesagg_pyro.aggregation._mean import Mean, Sum
from bayesagg_pyro.aggregation._precision_weighted import PrecisionWeighted
from bayesagg_pyro.aggregation._rows import Combined, Rows
from bayesagg_pyro.aggregation._torchjd import PerSample, TorchJD

__all__ = [
    "Aggregated",
    "Aggregation",
    "Combined",
    "Mean",
    "PerSample",
    "PrecisionWeighted",
    "Rows",
    "Sum",
    "TorchJD",
    "effective_tasks",
]
