"""What aggregation needs of Gaussian heads in large batches, without [tasks, B, d] moments.

In the terms of `gaussian_moments`, Σ_t α_t E[g_t] = 2 (Σ_t α_t m_t r_t + c Σ_t α_t), and the
average of the variance over examples needs averages of r², v, r h and c² alone, E[r c] being
S E[r h].
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro.gradients._closed_forms import gaussian_moments
from bayesagg_pyro.gradients._lazy import Lazy
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.posteriors import Gaussian as DenseGaussian
from bayesagg_pyro.targets import Targets

#: Entries of the features at once.
_ROWS = CACHE // 16


class _Averages(Lazy):
    """Attributes are in the features' precision."""

    residual: Tensor  #: r, [tasks, B]; 0 where a target is not observed
    cross: Tensor  #: c, [tasks or 1, B, d]
    weight_mean: Tensor  #: m, [tasks, d]
    average: Tensor  #: of the variance, [tasks, 1, d]

    def combined(self, weights: Tensor) -> Tensor:
        if weights.shape[1] > 1:
            return super().combined(weights)
        scale = self.loss_scale()
        share = (weights if scale is None else weights * scale)[:, 0].to(self.cross.dtype)
        direction = self.residual.mT @ (share * self.weight_mean)
        seen = None if self.observed is None else self.observed.to(share.dtype)
        if len(self.cross) == 1:
            direction.addcmul_(self.cross[0], share.sum(0) if seen is None else seen.mT @ share)
        else:
            each = share[:, None] if seen is None else share[:, None] * seen[..., None]
            direction += (each * self.cross).sum(0)
        return direction.mul_(2)

    def averaged(self) -> Tensor:
        return self.average


def averages(
    head: Gaussian, posterior: DenseGaussian, features: Tensor, targets: Targets
) -> _Averages:
    """For linear heads whose examples have no weights."""
    exact, count, d = linalg.head_dtype(features.device), len(features), head.in_features
    posterior = posterior.to(features.device, exact)
    m, s = posterior.mean[:, :d], posterior.variance[:, :d]
    residual = features.new_empty(head.tasks, count)
    cross = features.new_empty(len(posterior.precision_tril), *features.shape)
    seen = None if targets.mask is None else targets.mask.mT  # [T, B]
    found = []
    # Some rows at a time: in the precision of head algebra all would be twice what stays of them.
    for rows in slices(count, fitting(head.weight_size, _ROWS)):
        design = head.design_matrix(features[rows])
        c, v = posterior.project(design, features.dtype)
        r = (design @ posterior.mean.mT - targets.values[rows].to(exact)).mT  # [T, B]
        c = c[..., :d]
        if seen is None:
            norms = torch.linalg.vector_norm(c, dim=1).square().to(exact)
        else:
            own = seen[:, rows]
            r, v = torch.where(own, r, 0.0), torch.where(own, v, 0.0)
            norms = (own[:, None].to(c.dtype) @ c.square())[:, 0].to(exact)
        residual[:, rows], cross[:, rows] = r, c
        each = r.square().sum(1, keepdim=True), r @ design, v.sum(1, keepdim=True), norms
        found.append(each)
    total = count if seen is None else seen.sum(1, keepdim=True).clamp(min=1)
    square, moment, v, size = (
        torch.stack(parts).sum(0) / total for parts in zip(*found, strict=True)
    )
    shift = posterior.solve(moment)[:, :d]  # E[r c]
    variance = 4 * (s * (square + v) + m.square() * v + 2 * m * shift + size)
    variance = variance.clamp_(min=min(torch.finfo(cross.dtype).tiny, 2**-24))  # as in `finish`
    if seen is not None:
        variance = torch.where(seen.any(1, keepdim=True), variance, 0.0)
    return _Averages.of(
        lambda: gaussian_moments(head, posterior, features, targets),
        residual=residual,
        cross=cross,
        weight_mean=m.to(cross.dtype),
        average=variance[:, None].to(cross.dtype),
        observed=seen,
        _like=cross,
        shape=torch.Size([head.tasks, *features.shape]),
    )
