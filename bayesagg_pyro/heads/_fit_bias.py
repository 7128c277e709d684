"""A head that starts at the constant its targets suggest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._optimise import maximise
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.heads._linear import LinearOutputs
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.targets import RawTargets

#: Of the prior, wide beside the log-odds of any share that some thousands of labels can show.
_VARIANCE = 100.0


def fit_bias(head: Head, targets: RawTargets) -> None:
    """Set the biases of a head's point estimate to the most likely constant outputs.

    It is the mode of ∏ p(y | b) N(b | 0, 10²) for each task: nearly the log-odds of a share, or the
    log of a mean count; finite where all labels are of one class. Call it before training. A
    head that starts near 0 first teaches the backbone how rare its classes are, and an optimiser
    such as Adam remembers the size of those gradients for about a thousand steps. Other weights
    stay as they are.

    Args:
        head: linear in the features, with a bias.
        targets: of training, in the form that `mtl.backward` takes for this head; some thousands
            of examples are as good as all.

    Raises:
        SettingError: for a head without a bias, whose outputs are not W φ(h) + b, or that is to
            choose its units, which centre its targets.
        ShapeError, DtypeError, SettingError: for targets that the head does not take.

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
    values: Any = targets[0] if isinstance(targets, tuple | list) else targets
    parsed = head.parse_targets(targets, len(values))
    factor = parsed.factor(linalg.head_dtype(head.weight.device))

    def log_density(bias: Tensor) -> Tensor:
        """Of biases [tasks, outputs], [tasks]."""
        rows = bias if head.outputs_per_task > 1 else bias[..., 0]
        outputs = head.arranged(rows.expand(len(parsed.values), *rows.shape))
        loss = head.negative_log_prob(outputs, like(parsed.values, outputs))
        loss = loss if factor is None else loss * factor
        return -loss.sum(0) - 0.5 * bias.square().sum(-1) / _VARIANCE

    start = head.weight.new_zeros(head.tasks, head.outputs_per_task)
    best = maximise(log_density, start.to(linalg.head_dtype(start.device)))[0]
    with torch.no_grad():
        head.weight[:, -1] = best.flatten()
