"""Diagnostics: whether to trust a posterior, its gradients, the update and the predictions.

Every function takes values that pass between the stages and returns one small value with tensors
and `checks()`: its worst numbers held against the thresholds that people use (`THRESHOLDS`).
`Recorder` watches training, `report` writes one page with all figures.
"""

from bayesagg_pyro.diagnostics._aggregation import (
    Conflicts,
    DroppedByDiagonal,
    Update,
    Weights,
    conflicts,
    diagonal_against_full,
    uncertainty_pull,
    update,
    weights,
)
from bayesagg_pyro.diagnostics._calibration import Calibration, simulate_calibration, uniformity
from bayesagg_pyro.diagnostics._features import Spectrum, Staleness, head_norms, spectrum, staleness
from bayesagg_pyro.diagnostics._gradients import (
    Moments,
    Normality,
    SignalToNoise,
    moments,
    normality,
    signal_to_noise,
)
from bayesagg_pyro.diagnostics._importance import Importance, importance, psis
from bayesagg_pyro.diagnostics._inference_data import to_inference_data
from bayesagg_pyro.diagnostics._lines import read
from bayesagg_pyro.diagnostics._posteriors import (
    AgainstReference,
    Conditioning,
    Convergence,
    against_reference,
    conditioning,
    convergence,
    kl,
    wasserstein2,
)
from bayesagg_pyro.diagnostics._predictions import (
    Epistemic,
    Pit,
    brier,
    epistemic_against_error,
    negative_log_density,
    pit,
)
from bayesagg_pyro.diagnostics._recorder import Recorder
from bayesagg_pyro.diagnostics._reliability import Reliability, reliability
from bayesagg_pyro.diagnostics._report.page import Section, write_page
from bayesagg_pyro.diagnostics._report.plot_posterior import (
    plot_calibration,
    plot_posterior,
    plot_predictions,
)
from bayesagg_pyro.diagnostics._report.plot_record import plot_record
from bayesagg_pyro.diagnostics._report.plot_step import (
    plot_aggregation,
    plot_features,
    plot_gradients,
)
from bayesagg_pyro.diagnostics._report.report import report
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS, Check, Threshold, judge

__all__ = [
    "THRESHOLDS",
    "AgainstReference",
    "Calibration",
    "Check",
    "Conditioning",
    "Conflicts",
    "Convergence",
    "DroppedByDiagonal",
    "Epistemic",
    "Importance",
    "Moments",
    "Normality",
    "Pit",
    "Recorder",
    "Reliability",
    "Section",
    "SignalToNoise",
    "Spectrum",
    "Staleness",
    "Threshold",
    "Update",
    "Weights",
    "against_reference",
    "brier",
    "conditioning",
    "conflicts",
    "convergence",
    "diagonal_against_full",
    "epistemic_against_error",
    "head_norms",
    "importance",
    "judge",
    "kl",
    "moments",
    "negative_log_density",
    "normality",
    "pit",
    "plot_aggregation",
    "plot_calibration",
    "plot_features",
    "plot_gradients",
    "plot_posterior",
    "plot_predictions",
    "plot_record",
    "psis",
    "read",
    "reliability",
    "report",
    "signal_to_noise",
    "simulate_calibration",
    "spectrum",
    "staleness",
    "to_inference_data",
    "uncertainty_pull",
    "uniformity",
    "update",
    "wasserstein2",
    "weights",
    "write_page",
]
