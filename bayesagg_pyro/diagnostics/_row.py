"""What one record holds: every light diagnostic of a step, as columns of numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics import _aggregation, _features, _gradients
from bayesagg_pyro.engine.info import StepInfo
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior

Columns = dict[str, Tensor]


def block_names(head_name: str, head: Head) -> list[str]:
    """Names of the independent groups of weights of a head."""
    if head.blocks == head.tasks:
        return task_names({head_name: head})
    return [head_name] if head.blocks == 1 else [f"{head_name}.{k}" for k in range(head.blocks)]


def task_names(heads: Mapping[str, Head]) -> list[str]:
    """Names of tasks in the order of the gradients' rows: `head` or `head.k`."""
    return [
        name if head.tasks == 1 else f"{name}.{task}"
        for name, head in heads.items()
        for task in range(head.tasks)
    ]


@torch.no_grad()
def row_of(info: StepInfo, heads: Mapping[str, Head]) -> dict[str, float]:
    """The columns of a step that was kept whole; one copy from the device.

    Where heads read different features, numbers of the features are of each head's too, and of all
    together only if they have one width.

    Columns that speak of a task end in `/task`, those of a head in `/head`. What was not observed
    in the batch is not finite, and null in the file.
    """
    stages = info.stages
    assert stages is not None
    columns: Columns = {}
    for name, head in heads.items():
        loss = torch.where(stages.targets[name].counts() > 0, info.losses[name], torch.nan)
        _per_task(columns, "loss", {name: head}, loss)
    if len({head.in_features for head in heads.values()}) == 1:
        _features_of(columns, stages.features)
    if len({(rows.start, rows.stop) for rows in stages.rows.values()}) > 1:
        for name, rows in stages.rows.items():
            _features_of(columns, stages.features[rows, : heads[name].in_features], f"/{name}")
    for name, head in heads.items():
        norms = torch.linalg.vector_norm(head.point().double(), dim=-1)
        _columns(columns, "point_norm", block_names(name, head), norms)
    for name, posterior in stages.posteriors.items():
        _posterior(columns, name, heads[name], posterior, stages.priors[name])
        pull = _aggregation.uncertainty_pull(
            heads[name],
            posterior,
            stages.features[:, : heads[name].in_features],
            stages.targets[name],
        )
        if pull is not None:
            _per_task(columns, "uncertainty_pull", {name: heads[name]}, pull)
    for quantity in ("jitter", "condition"):
        for name, value in getattr(info, quantity).items():
            columns[f"{quantity}/{name}"] = value.max()
    _aggregated(columns, info, heads)
    device = stages.features.device
    values = torch.stack([v.reshape(()).double().to(device) for v in columns.values()]).tolist()
    return dict(zip(columns, values, strict=True))


def _features_of(columns: Columns, features: Tensor, owner: str = "") -> None:
    found = _features.spectrum(features)
    columns[f"live_units{owner}"] = found.live_units
    columns[f"rank{owner}"] = found.rank
    columns[f"effective_rank{owner}"] = found.effective_rank
    norm = torch.linalg.vector_norm(features.double(), dim=1).mean()
    columns[f"feature_norm{owner}"] = norm


def _posterior(
    columns: Columns, name: str, head: Head, posterior: Posterior, prior: Posterior
) -> None:
    _columns(columns, "head_norm", block_names(name, head), _features.head_norms(posterior))
    # One batch against what the prior allows: about sqrt(B / (N + B)) where it still holds.
    moved = (posterior.mean - prior.mean).double() / prior.variance.double().sqrt()
    _columns(columns, "moved", block_names(name, head), moved.square().mean(-1).sqrt())
    spread = posterior.variance.double().mean(-1).sqrt()
    _columns(columns, "posterior_std", block_names(name, head), spread)


def _aggregated(columns: Columns, info: StepInfo, heads: Mapping[str, Head]) -> None:
    grad, result = info.gradients, info.aggregated
    if grad is None or result is None:
        return
    _per_task(columns, "snr", heads, _gradients.signal_to_noise(grad).by_task)
    done = _aggregation.update(grad, result)
    columns["update_norm"] = done.norm * info.update_factor
    _per_task(columns, "first_order", heads, done.change)
    _per_task(columns, "first_order_mean", heads, done.change_of_mean)
    if done.shares is not None:
        weights = _aggregation.weights(grad, result)
        columns["effective_tasks"] = weights.effective_tasks
        columns["observed_tasks"] = torch.tensor(float(weights.observed_tasks))
        _per_task(columns, "share", heads, done.shares)
        _per_task(columns, "weight", heads, weights.mean)
        _per_task(columns, "weight_low", heads, weights.quantiles[0])
        _per_task(columns, "weight_high", heads, weights.quantiles[2])
    pairs = _aggregation.conflicts(grad)
    if grad.tasks > 1:
        off = ~torch.eye(grad.tasks, dtype=torch.bool, device=grad.mean.device)
        columns["cosine_mean"] = pairs.cosine[off].nanmean()
        columns["cosine_min"] = pairs.cosine[off].nan_to_num(torch.inf).amin()
        columns["cosine_scaled_min"] = pairs.scaled[off].nan_to_num(torch.inf).amin()
        columns["conflict_max"] = pairs.against[off].nan_to_num(-torch.inf).amax()


def _per_task(columns: Columns, quantity: str, heads: Mapping[str, Head], values: Tensor) -> None:
    _columns(columns, quantity, task_names(heads), values)


def _columns(columns: Columns, quantity: str, names: list[str], values: Tensor) -> None:
    for name, value in zip(names, values, strict=True):
        columns[f"{quantity}/{name}"] = value
