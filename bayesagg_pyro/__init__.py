"""Multi-task learning with Bayesian heads.

Features -> head -> posterior -> gradient distribution -> direction -> backbone: each arrow is a
subpackage (`heads`, `priors`, `inference`, `gradients`, `aggregation`), and `BayesAgg` strings
them together. `posteriors` and `predictive` are the distributions in between and at the end,
`diagnostics` looks at every arrow, `errors` are what bad input raises.
"""

from bayesagg_pyro import (
    aggregation,
    diagnostics,
    errors,
    gradients,
    heads,
    inference,
    posteriors,
    predictive,
    priors,
)
from bayesagg_pyro.engine import BayesAgg, StepInfo

__version__ = "0.1.0"

__all__ = [
    "BayesAgg",
    "StepInfo",
    "__version__",
    "aggregation",
    "diagnostics",
    "errors",
    "gradients",
    "heads",
    "inference",
    "posteriors",
    "predictive",
    "priors",
]
