"""A posterior known only through samples: the result of MCMC, an ensemble, any user's scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors._posterior import Posterior, Shape

__all__ = ["Empirical"]


class Empirical(Posterior):
    """The uniform distribution over S stored weight vectors per task.

    Args:
        samples: [S, tasks, P], S of at least 2.

    Raises:
        ShapeError: if `samples` has other dimensions.
    """

    has_rsample = False

    def __init__(self, samples: Tensor) -> None:
        if samples.ndim != 3 or samples.shape[0] < 2:
            raise ShapeError(
                f"samples must be [S of at least 2, tasks, weights], not {list(samples.shape)}"
            )
        super().__init__(samples.shape[1], samples.shape[2])
        self.samples = samples

    @property
    def mean(self) -> Tensor:
        """Sample mean, [tasks, P]."""
        return self.samples.mean(0)

    @property
    def variance(self) -> Tensor:
        """Unbiased sample variance, [tasks, P]."""
        return self.samples.var(0)

    def sample(
        self,
        sample_shape: Shape = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Stored draws, with replacement (all tasks from one draw), [*sample_shape, tasks, P]."""
        pick = torch.randint(
            self.samples.shape[0], sample_shape, generator=generator, device=self.samples.device
        )
        return self.samples[pick]

    def tensors(self) -> dict[str, Tensor]:
        """The samples."""
        return {"samples": self.samples}

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Empirical:
        """The same samples elsewhere or in another precision."""
        return Empirical(self.samples.to(device=device, dtype=dtype))
