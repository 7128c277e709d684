"""A Gaussian whose overall scale is uncertain: what remains of weights and noise variance together.

p(w, τ²) = N(w; m, τ² Λ⁻¹) · InverseGamma(τ²; a, b). The weights alone are Student-t with 2a degrees
of freedom around m and scale matrix (b / a) Λ⁻¹ (Bernardo and Smith, 1994, appendix A,
https://doi.org/10.1002/9780470316870).
"""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro.errors import NumericalError, ShapeError
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Posterior, Shape


class NormalInverseGamma(Posterior):
    """Weights and noise variance of regression tasks; as a distribution, that of the weights.

    Args:
        mean: m, [tasks, P].
        precision_matrix: Λ, in units of 1/τ², [tasks or 1, P, P].
        shape: a, [tasks], above 2, so that the gradient's variance exists.
        rate: b, [tasks], positive, in squared units of the targets.
        precision_tril: the Cholesky factor of Λ, if the caller has it already ...
        jitter: ... and the jitter that it took.
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the factor tells by itself if None.

    Raises:
        ShapeError: if the shapes do not fit.
        NumericalError: if Λ is not positive definite; on the CPU, if a or b is out of range.
    """

    has_rsample = False
    derived = ("precision_tril", "jitter")

    def __init__(
        self,
        mean: Tensor,
        precision_matrix: Tensor,
        shape: Tensor,
        rate: Tensor,
        *,
        precision_tril: Tensor | None = None,
        jitter: Tensor | None = None,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        super().__init__(*mean.shape, outputs_per_task=outputs_per_task)
        if shape.shape != mean.shape[:1] or rate.shape != mean.shape[:1]:
            raise ShapeError(
                f"shape and rate must be [{len(mean)}] (tasks), not {list(shape.shape)} and "
                f"{list(rate.shape)}"
            )
        good = (shape > 2) & (rate > 0)
        if mean.device.type == "cpu" and not good.all():
            raise NumericalError(
                f"a noise variance needs shape > 2 and rate > 0, not {shape.tolist()} and "
                f"{rate.tolist()}"
            )
        #: N(m, Λ⁻¹), the weights for τ² = 1.
        self.unit = Gaussian(mean, precision_matrix, precision_tril=precision_tril, jitter=jitter)
        self.shape_parameter = shape
        self.rate = rate
        self.info: Info = self.unit.info if info is None else info

    @property
    def mean(self) -> Tensor:
        """m, [tasks, P]."""
        return self.unit.mean

    @property
    def variance(self) -> Tensor:
        """Marginal variances E[τ²] (Λ⁻¹)_pp, [tasks, P]."""
        return self.noise_mean[:, None] * self.unit.variance

    @property
    def covariance_matrix(self) -> Tensor:
        """E[τ²] Λ⁻¹, [tasks, P, P]."""
        return self.noise_mean[:, None, None] * self.unit.covariance_matrix

    @property
    def noise_mean(self) -> Tensor:
        """E[τ²] = b / (a − 1), [tasks]."""
        return self.rate / (self.shape_parameter - 1)

    @property
    def noise_variance(self) -> Tensor:
        """Var[τ²] = E[τ²]² / (a − 2), [tasks]."""
        return self.noise_mean.square() / (self.shape_parameter - 2)

    @property
    def noise(self) -> dist.InverseGamma:
        """The distribution of τ², batch shape [tasks]."""
        return dist.InverseGamma(self.shape_parameter, self.rate)

    def sample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weights, each with a noise of its own, [*sample_shape, tasks, P]."""
        shape = self.shape_parameter.expand(*sample_shape, -1).contiguous()
        gamma = torch._standard_gamma(shape, generator=generator)
        scale = (self.rate / gamma).sqrt()[..., None]
        draws = self.unit.sample(sample_shape, generator=generator)
        return self.mean + scale * (draws - self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of weights [..., tasks, P], as [..., tasks].

        Raises:
            ShapeError: for weights of another shape.
        """
        size = self.mean.shape[-1]
        a, b = self.shape_parameter, self.rate
        offset = self._from_mean(value)
        root = torch.einsum("...tp,tpq->...tq", offset, self._tril())
        half_log_det = self._tril().diagonal(dim1=-2, dim2=-1).log().sum(-1)
        squares = 0.5 * root.square().sum(-1) / b
        normaliser = torch.lgamma(a + size / 2) - torch.lgamma(a)
        normaliser = normaliser + half_log_det - size / 2 * (2 * math.pi * b).log()
        return normaliser - (a + size / 2) * squares.log1p()

    def entropy(self) -> Tensor:
        """Entropy of the weights, a multivariate t with 2a degrees of freedom, in nats, [tasks].

        Kotz and Nadarajah (2004), Multivariate t Distributions, section 1.6,
        https://doi.org/10.1017/CBO9780511550683.
        """
        size, a = self.mean.shape[-1], self.shape_parameter
        half = a + size / 2
        spread = half * (torch.digamma(half) - torch.digamma(a))
        constant = torch.lgamma(a) - torch.lgamma(half) + size / 2 * (2 * math.pi * self.rate).log()
        return constant + spread - 0.5 * self.unit.precision_log_det

    def sound(self) -> bool:
        """Whether Λ is definite and its factor its own, with shape and rate in their range."""
        inside = (self.shape_parameter > 2).all() & (self.rate > 0).all()
        return super().sound() and bool(inside) and self.unit.sound()

    def tensors(self) -> dict[str, Tensor]:
        """What the constructor takes."""
        return {**self.unit.tensors(), "shape": self.shape_parameter, "rate": self.rate}

    def _tril(self) -> Tensor:
        return self.unit.precision_tril.expand(self.tasks, -1, -1)
