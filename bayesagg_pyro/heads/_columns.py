"""The observed sites of a Pyro model as one distribution over examples and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro._torch_distribution import TorchDistribution

#: Two labels, and numbers that are none.
_TRIED = (0.0, 1.0, 0.5, 2.0)


class Columns(TorchDistribution):
    """Independent likelihoods side by side: batch shapes [B] or [B, k] to [B, tasks].

    Args:
        parts: distributions over examples, or over examples and tasks.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self._sizes = [p.batch_shape[1] if len(p.batch_shape) > 1 else 1 for p in self.parts]
        shape = torch.Size([self.parts[0].batch_shape[0], sum(self._sizes)])
        super().__init__(shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Means, [B, tasks]."""
        return self._joined([p.mean for p in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variances, [B, tasks]."""
        return self._joined([p.variance for p in self.parts])

    @property
    def logits(self) -> Tensor:
        """Class logits of the one part, [B, C]."""
        logits: Tensor = self.parts[0].logits
        return logits

    def are_of_two_labels(self) -> bool:
        """Whether all parts are distributions of 0 and 1."""
        takes = [[bool(p.support.check(torch.tensor(y)).all()) for p in self.parts] for y in _TRIED]
        return all(takes[0] + takes[1]) and not any(takes[2] + takes[3])

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, elementwise."""
        columns = value.split(self._sizes, -1)
        return self._joined(
            [
                p.log_prob(v if len(p.batch_shape) > 1 else v[..., 0])
                for p, v in zip(self.parts, columns, strict=True)
            ],
            value.shape[:-1],
        )

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, [*sample_shape, B, tasks]."""
        leading = torch.Size(sample_shape) + self.batch_shape[:1]
        return self._joined([p.sample(sample_shape) for p in self.parts], leading)

    def _joined(self, columns: list[Tensor], leading: torch.Size | None = None) -> Tensor:
        leading = self.batch_shape[:1] if leading is None else leading
        pairs = zip(columns, self._sizes, strict=True)
        return torch.cat([column.reshape(*leading, size) for column, size in pairs], -1)
