"""A posterior known only through samples: the result of MCMC, an ensemble, any user's scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import NumericalError, ShapeError
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Posterior, Shape


class Empirical(Posterior):
    """The uniform distribution over S stored weight vectors per task.

    Args:
        samples: [S, tasks, P], S of at least 2; chain after chain.
        chains: how many Markov chains of equal length the samples are from.
        outputs_per_task: linear outputs of one task.
        info: how they were drawn, if that is known.

    Raises:
        ShapeError: if `samples` has other dimensions, or S is no multiple of `chains`.
    """

    has_rsample = False
    arguments = ("samples",)
    numbers = ("chains",)

    def __init__(
        self,
        samples: Tensor,
        chains: int = 1,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        if samples.ndim != 3 or samples.shape[0] < 2:
            raise ShapeError(
                f"samples must be [S of at least 2, tasks, weights], not {list(samples.shape)}"
            )
        if chains < 1 or samples.shape[0] % chains:
            raise ShapeError(
                f"{samples.shape[0]} samples cannot come from {chains} chains of equal length"
            )
        super().__init__(*samples.shape[1:], outputs_per_task=outputs_per_task, info=info)
        self.samples = samples
        self.chains = chains

    @property
    def mean(self) -> Tensor:
        """Sample mean, [tasks, P]."""
        return self.samples.mean(0)

    @property
    def variance(self) -> Tensor:
        """Unbiased sample variance, [tasks, P]."""
        return self.samples.var(0)

    @property
    def covariance_matrix(self) -> Tensor:
        """Unbiased sample covariance, [tasks, P, P]; of rank S - 1 at most."""
        centred = (self.samples - self.mean).transpose(0, 1)
        covariance: Tensor = centred.mT @ centred / (len(self.samples) - 1)
        return covariance

    @property
    def by_chain(self) -> Tensor:
        """The samples chain by chain, [chains, draws, tasks, P]."""
        chains: Tensor = self.samples.unflatten(0, (self.chains, -1))
        return chains

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

    def to_gaussian(self) -> Gaussian:
        """The Gaussian of the samples' mean and covariance, as a prior needs one.

        Correlations are shrunk towards 0 by the oracle approximating factor (Chen et al., 2010,
        https://arxiv.org/abs/0907.4698), which vanishes as samples grow and keeps the matrix
        definite when there are few.

        Raises:
            NumericalError: if a weight has the same value in all samples.
        """
        count, _, size = self.samples.shape
        scale = self.variance.sqrt()
        if scale.device.type == "cpu" and not (scale > 0).all():
            task, weight = (scale <= 0).nonzero()[0].tolist()
            raise NumericalError(
                f"weight {weight} of task {task} is the same in all {count} samples, so they "
                "make no Gaussian; draw more of them"
            )
        standard = ((self.samples - self.mean) / scale).transpose(0, 1)  # [tasks, S, P]
        correlation = standard.mT @ standard / (count - 1)
        squares = correlation.square().sum((-2, -1))  # tr R², with tr R = P
        excess = (squares - size).clamp(min=torch.finfo(squares.dtype).tiny)
        wanted = (1 - 2 / size) * squares + size**2
        share = (wanted / ((count - 2 / size) * excess)).clamp(0, 1)  # count − 1 degrees
        eye = torch.eye(size, dtype=squares.dtype, device=squares.device)
        shrunk = torch.lerp(correlation, eye, share[:, None, None])
        inverse = torch.cholesky_inverse(linalg.cholesky(shrunk, what="sample correlation").tril)
        precision = inverse / (scale[..., :, None] * scale[..., None, :])
        return self._as_dense(Gaussian(self.mean, precision))

    def part(self, rows: slice) -> Empirical:
        """The samples of some of the tasks."""
        info = self._info and self._info.part(rows, self.tasks)
        return self._rebuilt({"samples": self.samples[:, rows]}, info)
