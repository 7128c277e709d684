"""The size of a loss that a user has written, so that its units do not matter."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.heads import Categorical, Gaussian, Head, Network


def loss_size(head: Head) -> Tensor | None:
    """How steep the head's loss is beside its `standard_loss`, [tasks]; None if that is its loss.

    None also where losses are functions of more than outputs. Taken at outputs of 0, where nothing
    has been learned, and at targets of 1 and −1 (standard deviations), of both labels, of all
    classes, or of the counts up to 2; 1 where a slope is 0.
    """
    usual = (Head, Categorical, Gaussian, Network)
    if head.is_still(usual, "loss") or not head.is_still(usual, "pointwise"):
        return None
    device = head.weight.device
    weight = torch.zeros_like(head.point(), device=device).detach()
    if head.target_kind == "class":
        targets = torch.arange(max(head.outputs_per_task, 2), device=device)
    else:
        typical = [-1.0, 1.0] if head.target_kind == "real" else [0.0, 1.0]
        typical += [2.0] if head.target_kind == "count" else []
        targets = torch.tensor(typical, dtype=weight.dtype, device=device)
        targets = targets[head.supports(targets)]
    features = torch.zeros(len(targets), head.in_features, dtype=weight.dtype, device=device)
    targets = targets[:, None].expand(-1, head.tasks)
    with torch.enable_grad():
        outputs = torch.zeros_like(head(features, weight)).requires_grad_()
        slopes = [
            torch.autograd.grad(loss(outputs, targets).sum(), outputs)[0]
            .reshape(len(targets), head.tasks, -1)
            .abs()
            .sum((0, 2))
            for loss in (head.loss, head.standard_loss)
        ]
    size = slopes[0] / slopes[1]
    return torch.where(size.isfinite() & (size > 0), size, 1.0)
