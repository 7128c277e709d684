"""Pyro's base of distributions, as type checkers should see it: Pyro itself has no types.

A base class that is unknown makes every attribute of its subclasses known to nobody, and a misspelt
one an error at run time only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pyro import distributions

if TYPE_CHECKING:

    class TorchDistribution(torch.distributions.Distribution):
        """torch's, and what Pyro adds."""

        def __call__(self, sample_shape: Any = ...) -> torch.Tensor: ...
        def shape(self, sample_shape: Any = ...) -> torch.Size: ...
        def expand_by(self, sample_shape: Any) -> Any: ...
        def to_event(self, reinterpreted_batch_ndims: int | None = ...) -> Any: ...
        def mask(self, mask: Any) -> Any: ...

else:
    TorchDistribution = distributions.TorchDistribution
