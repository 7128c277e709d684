"""Deterministic maps φ(h) in front of a linear head: f = W φ(h), with a posterior over W alone."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from bayesagg_pyro._modes import batched_gradients
from bayesagg_pyro._pieces import BLOCK, fitting
from bayesagg_pyro.heads._module import check_module, in_precision, output_size


class Embedding(nn.Module, ABC):
    """φ: [B, d] -> [B, k], one example at a time; its parameters are point estimates.

    Args:
        in_features: d.
        out_features: k.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """φ(h), [..., B, k], in the features' precision (float32 at least)."""

    def check_ready(self, owner: str) -> None:
        """Refuse to embed before the embedding is ready (inducing points without a place).

        Args:
            owner: who speaks in the error.

        Raises:
            StateError: with what is missing.
        """
        return

    def residual(self, features: Tensor) -> Tensor | None:
        """Prior variance of f that φ cannot express, [B]; None for none."""
        return None

    def jacobian(self, features: Tensor) -> Tensor:
        """∂φ/∂h for every example, [B, k, d]; nothing else is differentiated."""
        size = fitting(self.out_features * max(self.in_features, self.out_features), BLOCK)
        return torch.cat([self._jacobian(part) for part in features.detach().split(size)])

    def _jacobian(self, features: Tensor) -> Tensor:
        with torch.enable_grad():
            h = features.clone().requires_grad_()
            total = self(h).sum(0)  # examples do not mix: each keeps its own gradient
            if not total.requires_grad:
                return h.new_zeros(len(h), self.out_features, self.in_features)
            unit = torch.eye(self.out_features, dtype=total.dtype, device=total.device)
            return batched_gradients(total, h, unit).transpose(0, 1)


class Body(Embedding):
    """A network without its last layer.

    Args:
        module: [B, d] -> [B, k], without batch normalisation or dropout.
        in_features: d.

    Raises:
        SettingError: if the module mixes examples or draws random numbers.
        ShapeError: if it does not take [B, d] or give [B, k].
    """

    def __init__(self, module: nn.Module, in_features: int) -> None:
        check_module(module, in_features)
        super().__init__(in_features, output_size(module, in_features))
        self.module = module

    def forward(self, features: Tensor) -> Tensor:
        """φ(h), [..., B, k]."""
        dtype = torch.promote_types(features.dtype, torch.float32)
        return in_precision(self.module, features.to(dtype))
