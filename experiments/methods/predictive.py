"""Predictive distributions of methods that learn weights and know no more: the plug-in ones.

A point estimate leaves open how wide regression predictions are, and its probabilities are too
sure, so both are fitted to data that training has not seen, as ``BayesAgg.calibrate`` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from bayesagg_pyro.heads import Bernoulli, Categorical, Gaussian, Head, Ordinal

_TEMPERATURES: Final = torch.logspace(-1, 1, 81, dtype=torch.float64)


def plug_in(head: Head, outputs: Tensor, scale: Tensor | None = None) -> Any:
    """p(y | outputs), of batch shape [B, tasks].

    Args:
        head: Whose likelihood it is.
        outputs: [B, tasks], or [B, classes].
        scale: [tasks], what :func:`calibration` found: standard deviations of Gaussian heads, else
            what logits, and cut-points, are divided by. None leaves the likelihood as it is.
    """
    outputs = outputs.double()
    if scale is None:
        return head.likelihood(outputs)
    if isinstance(head, Gaussian):
        return head.with_noise_scale(scale).likelihood(outputs)
    return _tempered(head, scale).likelihood(outputs / scale)


def calibration(
    heads: Mapping[str, Head], batches: Iterable[tuple[Mapping[str, Tensor], Mapping[str, Any]]]
) -> dict[str, Tensor]:
    """The scales of highest likelihood, ``{head: [tasks]}``; none for other kinds of heads.

    The noise of Gaussian heads is the root mean square error, and the temperature of heads of
    classes the best of 81 from 0.1 to 10; both are 1 for a task without a target.

    Args:
        heads: ``{name: head}``.
        batches: Outputs and targets, ``{head: [B, ...]}`` each; NaN where a target is missing, or
            with a mask of those that are there.
    """
    shown = list(batches)
    found = {}
    for name, head in heads.items():
        outputs = torch.cat([batch[name] for batch, _ in shown]).double()
        given = [batch[name] for _, batch in shown]
        joined: Any
        if isinstance(given[0], Tensor):
            joined = torch.cat(given)
        else:
            joined = tuple(map(torch.cat, zip(*given, strict=True)))
        targets = head.parse_targets(joined, len(outputs))

        def nll(scale: Tensor, head: Head = head, f: Tensor = outputs, y: Any = targets) -> Tensor:
            law = _tempered(head, scale.expand(head.tasks))
            mean: Tensor = y.mean(law.negative_log_prob(f / scale, y.values))
            return mean

        if isinstance(head, Gaussian):
            square = targets.mean((outputs - targets.values).square())
            scale = square.sqrt().clamp(min=torch.finfo(square.dtype).tiny)
        elif isinstance(head, (Bernoulli, Categorical, Ordinal)):
            trials = torch.stack([nll(t) for t in _TEMPERATURES])
            scale = _TEMPERATURES[trials.argmin(0).cpu()].to(outputs.device)
        else:
            continue
        found[name] = torch.where(targets.counts() > 0, scale, 1.0)
    return found


def _tempered(head: Head, temperature: Tensor) -> Head:
    return head.with_temperature(temperature) if isinstance(head, Ordinal) else head
