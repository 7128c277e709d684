"""Batch normalisation over the examples of all processes, on any device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


def share_norms(network: nn.Module) -> None:
    """Let every batch normalisation of ``network`` see the whole batch; its state stays as it is.

    As ``torch.nn.SyncBatchNorm``, which CPUs do not have.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.__class__ = _Shared


class _Shared(nn.BatchNorm1d):
    """Statistics of all processes' examples; a share may have none."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes, the channels on the second."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalised ``[B, channels, ...]``."""
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        size = input.new_tensor([input.numel() // input.shape[1]])
        *total, count = all_reduce(torch.cat([input.sum(axes), size]))
        mean = torch.stack(total) / count.detach()
        apart = input - mean.view(shape)
        variance = all_reduce(apart.square().sum(axes)) / count.detach()
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum or 0.1)
                unbiased = variance * (count / (count - 1))
                self.running_var.lerp_(unbiased, self.momentum or 0.1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        found: Tensor = apart * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            found = found * self.weight.view(shape) + self.bias.view(shape)
        return found
