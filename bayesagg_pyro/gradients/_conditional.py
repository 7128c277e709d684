"""Moments for softmax heads, sampling only the logits (Rao-Blackwell).

Given the C logits f = W h of one example, W is Gaussian with a mean linear in f. With f = E f + R z
and G_k = Cov(W, f) R⁻¹ e_k, R the symmetric root of Cov(f), and δ(z) = softmax(f) − e_y,

    E[g | z]   = Σ_c δ_c (M_c + Σ_k z_k G_kc),     Var[g | z]_d = Σ_ce δ_c δ_e V_ced,
    V_ced      = Cov(W_cd, W_ed) − Σ_k G_kcd G_ked.

So only z ∈ R^C is drawn, from a generator or a scrambled Sobol sequence, and the same for all
examples. E[g | z] is linear in φ = (δ_c, δ_c z_k): the mean and covariance of φ are all that is
needed of the samples, and d never meets the sample axis unless that is cheaper.

Of all roots the symmetric one keeps z_c nearest to the logit of class c: softmax is then closest to
a sum of functions of one coordinate each, which is what Sobol points integrate best. (20 classes,
wide posteriors: their error in the variance, over that of plain draws, is 0.26 to 0.5; in the basis
of eigenvectors it was 0.37 to 0.8.)

Posteriors without covariance between outputs in some basis (diagonal; Kronecker in its eigenbasis)
have G_kc = 0 for k ≠ c there, which leaves 2 C features φ in place of C + C².
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro._settings import positive_or_none
from bayesagg_pyro.errors import DtypeError, SettingError
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import Moments, repeated, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._finish import finish
from bayesagg_pyro.gradients._logit_laws import dense_law, independent, independent_law
from bayesagg_pyro.gradients._samples import outer_products, sampled_moments
from bayesagg_pyro.heads import Categorical, Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["Conditional"]

#: Samples at most, where a tolerance asks for more.
_LIMIT = 2**16


class Conditional(Estimator):
    """Sampled logits, exact conditional moments of the weights; for Categorical heads.

    Args:
        samples: J, at least 2; a power of 2 suits Sobol.
        sobol: scrambled Sobol points in place of independent draws, whose errors shrink faster
            (there are none for more than 21,201 classes, which get independent draws).
        tolerance: the error that is allowed, of the mean in standard deviations and of the variance
            relative to it, a root mean square over the features: samples are doubled, up to 65,536,
            until the estimated standard error is below it, and a warning says so if it is not.
            Looking at the error waits for the device.
        generator: source of randomness; the engine's, or torch's global one, if None.

    The standard error (`GradientDistribution.moment_error`) is the scatter of 16 independent
    repetitions, with scramblings of their own, and costs as much; a tolerance does so at each try.

    Raises:
        SettingError: if J is below 2, or the tolerance not positive.
    """

    def __init__(
        self,
        samples: int = 256,
        *,
        sobol: bool = True,
        tolerance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if samples < 2:
            raise SettingError(f"Conditional needs at least 2 samples, not {samples}")
        self.samples = samples
        self.sobol = sobol
        self.tolerance = positive_or_none("tolerance", tolerance)
        self.generator = generator

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse heads that are no softmax of linear outputs, and non-Gaussian posteriors."""
        softmax = head.is_still(Categorical) and head.embedding is None
        if not softmax or not issubclass(kind, GaussianFamily):
            raise DtypeError(
                f"head {head.site!r}: Conditional is for Categorical heads (without embedding) "
                f"with Gaussian posteriors, not {type(head).__name__} with {kind.__name__}; use "
                "gradients.MonteCarlo()"
            )

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Mean and variance; the full covariance on request is from plain draws.

        Raises:
            DtypeError: if the head is not Categorical (or changes its loss) or the posterior not
                Gaussian.
        """
        generator = self.generator or generator
        self.check(head, type(posterior))
        assert isinstance(head, Categorical)
        assert isinstance(posterior, GaussianFamily)
        design = head.design_matrix(features)
        posterior = posterior.to(design.device, design.dtype)

        def moments(samples: int, generator: torch.Generator | None) -> Moments:
            return self._moments(head, posterior, design, targets, samples, generator)

        def attempt(samples: int) -> GradientDistribution:
            return finish(
                head,
                posterior,
                features,
                targets,
                *moments(samples, generator),
                lambda: sampled_moments(
                    head, posterior, features, targets, samples, generator, outer_products
                )[1],
                lambda: repeated(lambda g: moments(samples, g), features.device),
            )

        name = f"head {head.site!r}, Conditional"
        return until(self.tolerance, attempt, self.samples, _LIMIT, name)

    def _moments(
        self,
        head: Categorical,
        posterior: GaussianFamily,
        design: Tensor,
        targets: Targets,
        samples: int,
        generator: torch.Generator | None,
    ) -> Moments:
        """Mean and variance, [tasks, B, d], some examples at a time."""
        z = self._normal(samples, head.classes, design, generator)
        c = head.classes
        coefficients = 2 * c if independent(posterior) else c + c * c
        per_example = head.tasks * coefficients * max(samples, head.in_features)
        parts = [
            self._chunk(head, posterior, design[rows], targets.examples(rows), z)
            for rows in slices(len(design), fitting(per_example, CACHE))
        ]
        return Moments(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))

    def _chunk(
        self,
        head: Categorical,
        posterior: GaussianFamily,
        design: Tensor,
        targets: Targets,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance for some examples, [tasks, b, d]."""
        law = (
            independent_law(head, posterior, design)
            if independent(posterior)
            else dense_law(head, posterior, design)
        )
        delta = law.logits(z).softmax(-1)  # [tasks, b, J, C]
        # δ_y = p_y − 1 is minus the sum of the others, which has no digits of 1 to lose.
        own = targets.values.mT[..., None, None].expand(*delta.shape[:-1], 1)
        delta.scatter_(-1, own, 0.0)
        delta.scatter_(-1, own, -delta.sum(-1, keepdim=True))
        weight = head.target_weight(targets.values)
        if weight is not None:
            delta *= weight.mT[..., None, None].to(delta.dtype)
        return law.moments(delta, z, len(z) if self.sobol else len(z) - 1)

    def _normal(
        self, samples: int, dimension: int, like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Standard normal points, [samples, dimension]."""
        if not self.sobol or dimension > torch.quasirandom.SobolEngine.MAXDIM:
            return torch.randn(
                samples, dimension, generator=generator, dtype=like.dtype, device=like.device
            )
        device = None if generator is None else generator.device
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=device))
        engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
        uniform = engine.draw(samples, dtype=torch.float64)
        # The engine has 30 bits; the points are moved off 0 by half a step.
        uniform = uniform.clamp(2.0**-31, 1 - 2.0**-31)
        points: Tensor = torch.special.ndtri(uniform)
        return points.to(like)

    def __repr__(self) -> str:
        return (
            f"Conditional(samples={self.samples}, sobol={self.sobol}, tolerance={self.tolerance})"
        )
