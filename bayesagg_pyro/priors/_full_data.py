"""The paper's prior: the posterior of the whole last epoch ("Prior selection", section 4.1).

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

from bayesagg_pyro.priors._data import DataPolicy


class FullData(DataPolicy):
    """Posterior given all features seen during an epoch, on an isotropic prior N(0, variance · I).

    The features are those of the passing network, so the prior lags up to an epoch behind, and it
    holds the batch that it will be combined with; both are the paper's choice. A task without a
    label in an epoch keeps its prior.

    Args:
        variance: γ, in squared units of the weights, one number or one per task. It is a precision
            of 1/γ against about N/τ² from the data: 1e-3 (a precision of 1,000) is weak next to
            100,000 examples and strong next to 5,000.
        base: makes another prior before the data, see `DataPolicy`.
        temperature: divides the data's log-likelihood; above 1 the prior is wider.
        leave_batch_out: whether a step's prior is freed of the step's own batch.
        in_place: write each new prior into the tensors of the last.
        storage: how a scheme without sufficient statistics (TaylorGGN, Laplace) keeps the epoch's
            examples: as they are (the default), in half precision, in host memory, or as
            streamed sums. Conjugate keeps sums whatever is said here.
        dtype: keep dense precisions packed in this precision, see `DataPolicy`.

    Raises:
        SettingError: if variance or temperature is not positive and finite.
    """
