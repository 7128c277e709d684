"""Moments for softmax heads, sampling only the logits.

Given the C logits f = W h of one example, W is Gaussian with a mean linear in f (Rao-Blackwell:
Casella and Robert, 1996, https://doi.org/10.1093/biomet/83.1.81). With f = E f + R z and
G_k = Cov(W, f) R⁻¹ e_k, R the symmetric root of Cov(f), and δ(z) = softmax(f) − e_y,

    E[g | z]   = Σ_c δ_c (M_c + Σ_k z_k G_kc),     Var[g | z]_d = Σ_ce δ_c δ_e V_ced,
    V_ced      = Cov(W_cd, W_ed) − Σ_k G_kcd G_ked.

So only z ∈ R^C is drawn, the same for all examples. E[g | z] is linear in φ = (δ_c, δ_c z_k): the
mean and covariance of φ are all that is needed of the samples, and d never meets the sample axis
unless that is cheaper. The mean alone needs E[δ] and E[δ_c z_k] only, and no G.

Of all roots the symmetric one keeps z_c nearest to the logit of class c: softmax is then closest to
a sum of functions of one coordinate each, which Sobol points integrate best. (20 classes, wide
posteriors: error in the variance over that of plain draws 0.26 to 0.5; by eigenvectors to 0.8.)

Posteriors without covariance between outputs in some basis (diagonal; Kronecker in its eigenbasis)
have G_kc = 0 for k ≠ c there, which leaves 2 C features φ in place of C + C².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import BLOCK, CACHE, fitting, slices
from bayesagg_pyro._settings import integers, positive_or_none
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._averaged import of_some
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._error import Moments, repeated, until
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._law_of import independent, law_of, many
from bayesagg_pyro.gradients._logit_laws import Law
from bayesagg_pyro.gradients._monte_carlo import outer_products, sampled_moments
from bayesagg_pyro.gradients._points import Points
from bayesagg_pyro.gradients._predictor import is_softmax
from bayesagg_pyro.gradients._samples import finish
from bayesagg_pyro.heads import Categorical, Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets

#: Samples at most, where a tolerance asks for more.
_LIMIT = 2**16
#: Standard deviations of the logits from which points are doubled.
_WIDE = (1.0, 3.0)
#: Independent draws.
_PLAIN = 256
#: Logits at points up to which all examples of a batch have as many points as its widest.
_SMALL = 2**16
#: Logits of the examples that make up an average variance, where there are very many classes.
_LOGITS = 51_200
#: Classes up to which points come in pairs (`Points`), and how many points there are at least.
_PAIRED, _LEAST = 64, 32


class Conditional(Estimator):
    """Sampled logits, exact conditional moments of the weights; for Categorical heads.

    Args:
        samples: J, at least 2; a power of 2 suits Sobol. None takes 32 for an example whose logits
            have standard deviations of up to 1, 64 up to 3, and 128 beyond (more with more than 16
            classes, up to four times; on a GPU, where looking would wait for the device, the
            second number for all). Up to 64 classes errors are about 1 % of a standard deviation in
            the mean and 2 to 3 % in the variance, and a tenth of that where standard deviations are
            below 0.1. The widest of a small batch decides for all (of 65,536 logits at the points),
            and they are 64 at least.
        sobol: Sobol points, randomly shifted, in place of independent draws (256 of those, if
            `samples` is None), whose errors shrink faster. There are none for more than 21,201
            classes, which get independent draws.
        tolerance: the error that is allowed, of the mean in standard deviations and of the variance
            relative to it, a root mean square over the features: samples are doubled, up to 65,536,
            until the estimated standard error is below it, and a warning says so if it is not.
            Looking at the error waits for the device.
        average_rows: examples of a batch of more than twice as many, drawn at random, that make up
            the variance where only its average is asked for (`gradients.distribution`); with more
            than 128 classes as many as have 51,200 logits, at least 32. None for all of them.
        generator: source of randomness; the engine's, or torch's global one, if None.

    The standard error (`GradientDistribution.moment_error`) is the scatter of 16 independent
    repetitions, with shifts of their own, and costs as much; a tolerance does so at each try.

    Raises:
        SettingError: if J is below 2, the tolerance not positive, or there are no rows.
    """

    def __init__(
        self,
        samples: int | None = None,
        *,
        sobol: bool = True,
        tolerance: float | None = None,
        average_rows: int | None = 512,
        generator: torch.Generator | None = None,
    ) -> None:
        given = {"samples": samples, "average_rows": average_rows}
        integers(2, **{name: value for name, value in given.items() if value is not None})
        self.samples = samples
        self.sobol = sobol
        self.tolerance = positive_or_none("tolerance", tolerance)
        self.average_rows = average_rows
        self.generator = generator

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse heads that are no softmax of linear outputs, and non-Gaussian posteriors."""
        if not is_softmax(head) or not issubclass(kind, GaussianFamily):
            raise _refused(head, kind)

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
        batch = self._of_batch(head, posterior, features, targets)
        given = head, batch.posterior, features, targets

        def attempt(samples: int | None) -> GradientDistribution:
            draws = samples or _PLAIN
            return finish(
                *given,
                *batch.moments(samples, generator),
                lambda: sampled_moments(*given, draws, generator, outer_products)[1],
                lambda: repeated(lambda g: batch.moments(samples, g), features.device),
            )

        if self.tolerance is None:
            return attempt(self.samples)
        name = f"head {head.site!r}, Conditional"
        return until(self.tolerance, attempt, self.samples or _LEAST, _LIMIT, name)

    def mean(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mean alone, [tasks, B, d], from E[δ] and E[δ_c z_k]."""
        batch = self._of_batch(head, posterior, features, targets)
        return batch.mean(self.samples, self.generator or generator)

    def averaged(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution | None:
        """Every example's mean, and the variance of some of them."""
        rows = self.average_rows
        if rows is None or self.tolerance is not None:
            return None
        if many(classes := head.outputs_per_task):
            rows = min(rows, max(32, _LOGITS // classes))
        return of_some(self, rows, head, posterior, features, targets, generator)

    def _of_batch(
        self, head: Head, posterior: Posterior, features: Tensor, targets: Targets
    ) -> _BatchMoments:
        if not is_softmax(head) or not isinstance(posterior, GaussianFamily):
            raise _refused(head, type(posterior))
        dtype = torch.promote_types(features.dtype, torch.float32)
        exact = linalg.head_dtype(features.device)
        posterior = posterior.to(features.device, exact)
        # In a basis of independent weights nothing cancels on the way to the law.
        design = head.design_matrix(features, dtype=dtype if independent(posterior) else exact)
        return _BatchMoments(head, posterior, design, targets, self.sobol, dtype)

    def __repr__(self) -> str:
        return (
            f"Conditional(samples={self.samples}, sobol={self.sobol}, tolerance={self.tolerance})"
        )


@dataclass(frozen=True)
class _BatchMoments:
    """Of the examples of a call; `dtype` is what all is in once the logits' law is found."""

    head: Categorical
    posterior: GaussianFamily
    design: Tensor
    targets: Targets
    sobol: bool
    dtype: torch.dtype

    def moments(self, samples: int | None, generator: torch.Generator | None) -> Moments:
        """Mean and variance, [tasks, B, d]."""
        c = self.head.classes
        return Moments(*self._over(samples, generator, 2 * c if self._independent else c + c * c))

    def mean(self, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """The mean, [tasks, B, d]."""
        c = self.head.classes
        return self._over(samples, generator, c if self._independent else c * c, mean=True)[0]

    @property
    def _independent(self) -> bool:
        return independent(self.posterior)

    def _over(
        self,
        samples: int | None,
        generator: torch.Generator | None,
        coefficients: int,
        *,
        mean: bool = False,
    ) -> list[Tensor]:
        """Mean and, if wanted, variance of all examples, each with the points that it asks for."""
        head = self.head
        like = self.design.new_empty((), dtype=self.dtype)
        points = Points(head.classes, like, generator, sobol=self.sobol)
        most = samples or 4 * self._least
        whole = None
        if self._independent and many(head.classes):
            size = fitting(head.tasks * most * (head.classes + head.in_features), BLOCK)
            # What points have in common is made once, and nothing of an example is large.
            whole = law_of(head, self.posterior, self.design, self.dtype)
        else:
            each = head.tasks * coefficients * max(most, head.in_features)
            # Of independent weights moments take half a dozen tensors as large, means three.
            share = 1 if not self._independent else 2 if mean else 4
            size = fitting(each, CACHE // share)
        shape = head.tasks, len(self.design), head.in_features
        found = [like.new_empty(shape) for _ in range(1 if mean else 2)]
        for rows in slices(len(self.design), size):
            if whole is None:
                law = law_of(head, self.posterior, self.design[rows], self.dtype)
            else:
                law = whole.examples(rows)
            targets = self.targets.examples(rows)
            for some, count in self._groups(law, samples):
                own = law if some is None else law.examples(some)
                of_own = targets if some is None else targets.examples(some)
                where = rows if some is None else rows.start + some
                z = points(count).mT.contiguous()
                delta = self._delta(own, of_own, z)
                if mean:
                    found[0][:, where] = own.mean(delta, z)
                    continue
                moments = own.moments(delta, z, points.degrees(count))
                for kept, part in zip(found, moments, strict=True):
                    kept[:, where] = part
        return found

    @property
    def _least(self) -> int:
        """Points at least: enough for pairs, where there are few classes."""
        classes = self.head.classes
        return max(_LEAST, 1 << (2 * classes - 1).bit_length() if classes <= _PAIRED else 0)

    def _groups(self, law: Law, samples: int | None) -> Iterator[tuple[Tensor | None, int]]:
        """Which examples (None: all) get how many points."""
        if samples is not None or not self.sobol:
            yield None, samples or _PLAIN
            return
        if law.logit_mean.device.type != "cpu":
            yield None, 2 * self._least
            return
        level = torch.bucketize(law.spread().amax(0), law.logit_mean.new_tensor(_WIDE))
        counts = torch.bincount(level, minlength=1).tolist()
        most = self._least << max(len(counts) - 1, 1)
        if most * law.logit_mean[:, 0].numel() * len(self.design) <= _SMALL:
            yield None, most
            return
        for i, count in enumerate(counts):
            if count:
                every = count == len(level)
                yield None if every else (level == i).nonzero()[:, 0], self._least << i

    def _delta(self, law: Law, targets: Targets, z: Tensor) -> Tensor:
        """softmax(f) − e_y at the points, times the weight of the true class, [tasks, b, C, J]."""
        delta = law.probabilities(z)
        # δ_y = p_y − 1 is minus the sum of the others, which has no digits of 1 to lose.
        tasks, examples = (torch.arange(n, device=z.device) for n in delta.shape[:2])
        own = tasks[:, None], examples, targets.values.mT
        delta[own] = 0.0
        delta[own] = -delta.sum(2)
        weight = self.head.target_weight(targets.values)
        if weight is not None:
            delta *= weight.mT[..., None, None].to(delta.dtype)
        return delta


def _refused(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: Conditional is for Categorical heads (without embedding) with "
        f"Gaussian posteriors, not {type(head).__name__} with {kind.__name__}; use "
        "gradients.MonteCarlo()"
    )
