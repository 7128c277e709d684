"""Standard normal points over which expectations of softmax heads are averaged."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

#: Bits of torch's Sobol points.
_BITS = 30


class Points:
    """Standard normal points of one call, [J, dimension] for any J.

    Sobol points get one random shift of their bits, which makes averages over them unbiased
    (Cranley and Patterson, 1976, https://doi.org/10.1137/0713071). Where there are at least twice
    as many as dimensions, they come in pairs ±z whose covariance is made I, so that whatever is
    quadratic in z is integrated exactly, as softmax nearly is where logits are nearly certain.
    There are none of more than 21,201 dimensions, which get independent draws.

    Args:
        dimension: of the points.
        like: their dtype and device.
        generator: source of randomness.
        sobol: False for independent draws.
    """

    def __init__(
        self, dimension: int, like: Tensor, generator: torch.Generator | None, *, sobol: bool
    ) -> None:
        self.sobol = sobol and dimension <= torch.quasirandom.SobolEngine.MAXDIM
        self._dimension = dimension
        self._like = like
        self._generator = generator
        self._made: dict[int, Tensor] = {}
        if self.sobol:
            device = None if generator is None else generator.device
            self._shift = torch.randint(
                2**_BITS, (dimension,), generator=generator, device=device
            ).to(like.device)

    def __call__(self, samples: int) -> Tensor:
        """So many points; the same at each call."""
        if samples not in self._made:
            self._made[samples] = self._even(samples) if self.sobol else self._plain(samples)
        return self._made[samples]

    def degrees(self, samples: int) -> int:
        """What a variance over the points divides by."""
        return samples if self.sobol else samples - 1

    def _plain(self, samples: int) -> Tensor:
        like = self._like
        return torch.randn(
            samples,
            self._dimension,
            generator=self._generator,
            dtype=like.dtype,
            device=like.device,
        )

    def _even(self, samples: int) -> Tensor:
        paired = samples % 2 == 0 and samples >= 2 * self._dimension
        base = _sobol(samples // 2 if paired else samples, self._dimension)
        bits = base.to(self._shift.device) ^ self._shift
        z: Tensor = torch.special.ndtri((bits.to(torch.float64) + 0.5) * 2.0**-_BITS)
        if paired:
            tril, failed = torch.linalg.cholesky_ex(z.mT @ z / len(z))
            white = torch.linalg.solve_triangular(tril, z.mT, upper=False).mT
            z = torch.where(failed > 0, z, white)  # of points in fewer dimensions there is none
            z = torch.cat([z, -z])
        return z.to(self._like)


@lru_cache(maxsize=16)
def _sobol(samples: int, dimension: int) -> Tensor:
    """Sobol points as whole numbers of so many bits, scrambled once, on the CPU."""
    with torch.inference_mode(False):
        engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0)
        points: Tensor = (engine.draw(samples, dtype=torch.float64) * 2**_BITS).long()
        points[0] = engine.shift  # which torch rounds to its default precision
        return points
