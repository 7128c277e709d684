"""The log of a ratio of gamma functions, without the difference of two large numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def log_gamma_ratio(x: Tensor, y: Tensor | float) -> Tensor:
    """Log Γ(x + y) − log Γ(x) for x > 0 and y ≥ 0, broadcast; y may be lost beside x.

    Where x is large by Stirling's series (DLMF 5.11.1, https://dlmf.nist.gov/5.11.E1): from where
    its second correction, 1 / 360 x³, is less than rounding.
    """
    limit = (360 * torch.finfo(x.dtype).eps) ** (-1 / 3)
    near, far = x.clamp(max=limit), x.clamp(min=limit)
    total = far + y
    series = (total - 0.5) * torch.log1p(y / far) + y * (far.log() - 1)
    series = series - y / (12 * far * total)
    return torch.where(x < limit, torch.lgamma(y + near) - torch.lgamma(near), series)
