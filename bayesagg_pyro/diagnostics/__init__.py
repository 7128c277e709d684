"""Diagnostics: whether to believe a posterior, its gradients, the update and the predictions.

Every function takes values that pass between the stages and returns one small value with tensors
and `checks()`: its worst numbers held against the thresholds that people use (`THRESHOLDS`).
`Recorder` watches training, `report` writes one page with all figures.
"""

from bayesagg_pyro.diagnostics._aggregation import (
    Conflicts,
    Update,
    Weights,
    conflicts,
    uncertainty_pull,
    update,
    weights,
)
from bayesagg_pyro.diagnostics._features import (
    Spectrum,
    Staleness,
    head_norms,
    spectrum,
    staleness,
)
from bayesagg_pyro.diagnostics._gradients import (
    DroppedByDiagonal,
    Moments,
    Normality,
    SignalToNoise,
    diagonal_against_full,
    moments,
    normality,
    signal_to_noise,
)
from bayesagg_pyro.diagnostics._lines import read
from bayesagg_pyro.diagnostics._recorder import Recorder
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS, Check, Threshold, judge

__all__ = [
    "THRESHOLDS",
    "Check",
    "Conflicts",
    "DroppedByDiagonal",
    "Moments",
    "Normality",
    "Recorder",
    "SignalToNoise",
    "Spectrum",
    "Staleness",
    "Threshold",
    "Update",
    "Weights",
    "conflicts",
    "diagonal_against_full",
    "head_norms",
    "judge",
    "moments",
    "normality",
    "read",
    "signal_to_noise",
    "spectrum",
    "staleness",
    "uncertainty_pull",
    "update",
    "weights",
]
