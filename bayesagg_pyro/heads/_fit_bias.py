"""A head that starts at the constant its targets suggest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._optimise import maximise
from bayesagg_pyro.errors import NumericalError, SettingError
from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.heads._linear import LinearOutputs
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.targets import RawTargets

#: Of the prior, wide beside the log-odds of any share that some thousands of labels can show.
_VARIANCE = 100.0
#: Quantiles of real targets that the search starts from, and in how many standard deviations of
#: the mode it has to end.
_QUANTILES, _NEAR = 33, 1e-3


def fit_bias(head: Head, targets: RawTargets) -> None:
    """Set the biases of a head's point estimate to the most likely constant outputs.

    For real targets it is the maximum of ∏ p(y | b) for each task, in whatever units: the mean of a
    `Gaussian` head, mean and log-variance of a `Heteroscedastic` one. For labels and counts it is
    the mode of ∏ p(y | b) N(b | 0, 10²): nearly the log-odds of a share, or the log of a mean
    count; finite where all labels are of one class. A task without targets gets 0. Call it before
    training. A head that starts near 0 first teaches the backbone how rare its classes are, and an
    optimiser such as Adam remembers the size of those gradients for about a thousand steps. Other
    weights stay as they are.

    Args:
        head: linear in the features, with a bias.
        targets: of training, in the form that `mtl.backward` takes for this head; some thousands
            of examples are as good as all.

    Raises:
        SettingError: for a head without a bias, whose outputs are not W φ(h) + b, or that is to
            choose its units, which centre its targets.
        ShapeError, DtypeError, SettingError: for targets that the head does not take, or that are
            all equal where the noise is an output too.
        NumericalError: if there is no most likely constant of real targets.

    Example:
        >>> import torch
        >>> from bayesagg_pyro import heads
        >>> head = heads.Bernoulli(8)
        >>> heads.fit_bias(head, torch.tensor([0.0, 0.0, 0.0, 1.0] * 1000))
        >>> head.weight[0, -1].sigmoid().round(decimals=3)
        tensor(0.2500, grad_fn=<RoundBackward1>)
    """
    if not head.is_still(LinearOutputs, "outputs"):
        raise SettingError(f"head {head.site!r} has no bias to fit: its outputs are not linear")
    if not head.bias:
        raise SettingError(f"head {head.site!r} has no bias to fit: make it with bias=True")
    if isinstance(head, Standardising) and head.units_state == "open":
        raise SettingError(
            f"head {head.site!r} chooses its units in training, which centre its targets: leave it "
            "as it is, or make it with standardise=False"
        )
    first: Any = targets[0] if isinstance(targets, tuple | list) else targets
    parsed = head.parse_targets(targets, len(first))
    dtype = linalg.head_dtype(head.weight.device)
    factor, real = parsed.factor(dtype), head.target_kind == "real"
    seen = parsed.seen()

    def log_density(bias: Tensor) -> Tensor:
        """Of biases [tasks, outputs], [tasks]."""
        rows = bias if head.outputs_per_task > 1 else bias[..., 0]
        outputs = head.arranged(rows.expand(len(parsed.values), *rows.shape))
        loss = head.negative_log_prob(outputs, like(parsed.values, outputs))
        loss = loss if factor is None else loss * factor
        prior = 0.5 * bias.square().sum(-1) / _VARIANCE
        return -loss.sum(0) - (torch.where(seen, 0.0, prior) if real else prior)

    start = head.weight.new_zeros(head.tasks, head.outputs_per_task).to(dtype)
    if real:
        values = parsed.values.to(dtype)
        counted = torch.ones_like(values) if factor is None else factor
        observed = [y[f > 0].sort().values for y, f in zip(values.T, counted.T, strict=True)]
        if head.outputs_per_task > 1 and any(len(y) and y[0] == y[-1] for y in observed):
            raise SettingError(
                f"head {head.site!r}: all targets of a task are equal, for which noise of any "
                "smaller size is more likely; give targets that differ"
            )
        start = _search(log_density, start, observed)
    best, _, decrement = maximise(log_density, start)
    if real and not (decrement < _NEAR).all():
        raise NumericalError(f"head {head.site!r}: these targets have no most likely constant")
    with torch.no_grad():
        head.weight[:, -1] = best.flatten()


def _search(
    log_density: Callable[[Tensor], Tensor], start: Tensor, observed: Sequence[Tensor]
) -> Tensor:
    """The best of 0, powers of two and quantiles of the targets, output after output.

    Newton's steps find the maximum from there, whatever the units and the heads' links.

    Args:
        log_density: of biases [tasks, outputs], [tasks].
        start: [tasks, outputs].
        observed: targets of each task, in order.
    """
    powers = 2.0 ** torch.arange(7).to(start)
    grid = torch.cat([start.new_zeros(1), powers, -powers])
    level = torch.linspace(0, 1, _QUANTILES, dtype=start.dtype)
    columns = [
        torch.cat([grid, y[(level * (len(y) - 1)).long()] if len(y) else level.to(grid) * 0])
        for y in observed
    ]
    candidates = torch.stack(columns, -1)  # [trials, tasks]
    for output in range(start.shape[1]):
        trials = start.repeat(len(candidates), 1, 1)
        trials[..., output] = candidates
        score = torch.stack([_score(log_density, trial) for trial in trials])
        start = trials[score.argmax(0), torch.arange(len(start))]
    return start


def _score(log_density: Callable[[Tensor], Tensor], bias: Tensor) -> Tensor:
    """The log-density, −∞ where the likelihood cannot be evaluated."""
    try:
        return log_density(bias).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    except ValueError:  # of a distribution that checks its arguments
        return bias.new_full(bias.shape[:1], -torch.inf)
