"""What aggregation needs of Gaussian heads in large batches, without [tasks, B, d] moments.

In the terms of `_gaussian`, Σ_t α_t E[g_t] = 2 (Σ_t α_t m_t r_t + c Σ_t α_t), and the average of
the variance over examples needs averages of r², v, r h and c² alone, E[r c] being S E[r h].
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients._gaussian import gaussian_moments
from bayesagg_pyro.gradients._lazy import Lazy
from bayesagg_pyro.gradients._predictor import predictor_terms
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.posteriors import Gaussian as DenseGaussian
from bayesagg_pyro.targets import Targets

__all__ = ["averages"]


class _Averages(Lazy):
    """Attributes are in the features' precision."""

    residual: Tensor  #: r, [tasks, B]
    cross: Tensor  #: c, [tasks or 1, B, d]
    weight_mean: Tensor  #: m, [tasks, d]
    average: Tensor  #: of the variance, [tasks, 1, d]

    def combined(self, weights: Tensor) -> Tensor:
        if weights.shape[1] > 1:
            return super().combined(weights)
        scale = self.loss_scale()
        share = (weights if scale is None else weights * scale)[:, 0].to(self.cross.dtype)
        direction = self.residual.mT @ (share * self.weight_mean)
        if len(self.cross) == 1:
            direction.addcmul_(self.cross[0], share.sum(0))
        else:
            direction += (share[:, None] * self.cross).sum(0)
        return direction.mul_(2)

    def averaged(self) -> Tensor:
        return self.average


def averages(
    head: Gaussian, posterior: DenseGaussian, features: Tensor, targets: Targets
) -> _Averages:
    """For linear heads, with all targets there and none weighted."""
    exact = linalg.head_dtype(features.device)
    posterior = posterior.to(features.device, exact)
    m, s, c, u, v, _ = predictor_terms(head, posterior, features, features.dtype)
    r = u - targets.values.to(exact)  # [B, T]
    m, s, v = m[:, 0], s[:, 0], v.mean(1, keepdim=True)
    shift = posterior.solve(r.mT @ head.design_matrix(features) / len(r))[:, : m.shape[1]]  # E[r c]
    size = torch.linalg.vector_norm(c, dim=1).square().to(exact) / len(r)  # E[c²]
    variance = 4 * (s * (r.square().mean(0)[:, None] + v) + m.square() * v + 2 * m * shift + size)
    variance = variance.clamp_(min=min(torch.finfo(c.dtype).tiny, 2**-24))  # as in `finish`
    return _Averages.of(
        lambda: gaussian_moments(head, posterior, features, targets),
        residual=r.mT.to(c.dtype),
        cross=c,
        weight_mean=m.to(c.dtype),
        average=variance[:, None].to(c.dtype),
        _like=c,
        shape=torch.Size([head.tasks, *features.shape]),
    )
