"""The engine: runs the stages in order, and keeps the state of heads between steps.

It holds no formula. `step` is what happens to a batch, `bayesagg` the calls that users make.
"""

from bayesagg_pyro.engine.bayesagg import BayesAgg
from bayesagg_pyro.engine.info import Observer, Stages, StepInfo

__all__ = ["BayesAgg", "Observer", "Stages", "StepInfo"]
