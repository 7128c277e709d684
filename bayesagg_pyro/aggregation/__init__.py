"""Aggregation: one update direction from the gradient distributions of all tasks."""

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, effective_tasks
from bayesagg_pyro.aggregation._bargain import Bargain
from bayesagg_pyro.aggregation._matrix_aggregator import Combined, MatrixAggregator
from bayesagg_pyro.aggregation._mean import Mean, Sum
from bayesagg_pyro.aggregation._precision_weighted import PrecisionWeighted
from bayesagg_pyro.aggregation._torchjd import PerSample, TorchJD

__all__ = [
    "Aggregated",
    "Aggregation",
    "Bargain",
    "Combined",
    "MatrixAggregator",
    "Mean",
    "PerSample",
    "PrecisionWeighted",
    "Sum",
    "TorchJD",
    "effective_tasks",
]
