"""The reference for one linear predictor: a trapezoid of 20,001 points on |z| ≤ 40.

For standard deviations up to 30 the integrand is smooth on a scale of eight points and more, on
which the rule is exact to rounding.
"""

from __future__ import annotations

import torch
from dense import F64

Z = torch.linspace(-40, 40, 20_001, dtype=F64)
MASS = (-0.5 * Z.square()).exp()
MASS = MASS / MASS.sum()


def slope(u: torch.Tensor, y: float) -> torch.Tensor:
    """d/du of −log p(y | u)."""
    return torch.sigmoid(u) if y == 0 else -torch.sigmoid(-u)


def by_trapezoid(mean, std, y, m, k, s) -> tuple[torch.Tensor, torch.Tensor]:
    """E and Var of g_d = w_d f(u), w_d | z ~ N(m_d + k_d z, s_d − k_d²); m, k, s are [D]."""
    f = slope(mean + std * Z, y)
    basis = torch.stack([f, Z * f])  # conditional mean of g: m_d f + k_d z f
    first = basis @ MASS
    centred = basis - first[:, None]
    second = (centred * MASS) @ centred.T
    a = torch.stack([m, k], 1)
    left = (s - k.square()).clamp(min=0) * (MASS * f.square()).sum()
    return a @ first, torch.einsum("di,ij,dj->d", a, second, a) + left
