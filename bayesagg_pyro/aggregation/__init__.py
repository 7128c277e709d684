"""Aggregation: one update direction from the gradient distributions of all tasks."""

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, effective_tasks
from bayesagg_pyro.aggregation._mean import Mean, Sum
from bayesagg_pyro.aggregation._precision_weighted import PrecisionWeighted

__all__ = ["Aggregated", "Aggregation", "Mean", "PrecisionWeighted", "Sum", "effective_tasks"]
