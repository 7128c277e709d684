"""How much of a prediction's uncertainty more data would remove."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.heads import Gaussian, Head, OnePredictor
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.posteriors import GaussianFamily, NormalInverseGamma, Posterior
from bayesagg_pyro.predictive._classes import has_classes, log_probabilities
from bayesagg_pyro.predictive._compound import output_rule
from bayesagg_pyro.predictive._distribution import PredictiveDistribution
from bayesagg_pyro.predictive._gaussian import in_units_of_noise
from bayesagg_pyro.predictive._mixture import SampledPredictive
from bayesagg_pyro.predictive._outputs import at_temperature, drawn_outputs, predictor


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of y given h, in two parts that add up.

    Attributes:
        epistemic: of not knowing the weights, at least 0, [B, tasks]. Var E[y | w]; for classes the
            mutual information of y and w (Houlsby et al., 2011,
            https://arxiv.org/abs/1112.5745).
        aleatoric: of the observation at known weights, [B, tasks]. E Var[y | w]; for classes the
            expected entropy E H[y | w].
        measure: "variance", in squared units of the targets, or "entropy", in nats.
    """

    epistemic: Tensor
    aleatoric: Tensor
    measure: Literal["variance", "entropy"]

    @property
    def total(self) -> Tensor:
        """Var[y], or the entropy H[y] of the predictive distribution, [B, tasks]."""
        return self.epistemic + self.aleatoric


def uncertainty(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    *,
    samples: int = 512,
    generator: torch.Generator | None = None,
) -> Uncertainty:
    """Epistemic and aleatoric uncertainty of each example and task.

    By the same means as `predictive`: closed forms and quadrature with Gaussian posteriors, else
    draws of the weights.

    Args:
        head: the head.
        posterior: over its weights.
        features: [B, d].
        samples: draws, where weights are drawn.
        generator: a new one with a fixed seed if None, so that calls agree.

    Raises:
        ShapeError, DtypeError, NonFiniteError: for bad features, or a posterior over the weights
            of another head.
        SettingError: for a number of samples that is not positive.
    """
    integers(samples=samples)
    head.check_features(features)
    head.check_weights(posterior, "posterior")
    if has_classes(head):
        return _of_classes(head, posterior, features, samples, generator)
    epistemic, aleatoric = _variances(head, posterior, features, samples, generator)
    if isinstance(head, Standardising) and head.units is not None:
        square = head.units.scale.square().to(epistemic)
        epistemic, aleatoric = epistemic * square, aleatoric * square
    return Uncertainty(epistemic, aleatoric, "variance")


def _variances(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Var E[y | w] and E Var[y | w], in the units that the head has its targets in."""
    if isinstance(head, Gaussian) and head.is_still(Gaussian, "outputs", "likelihood"):
        if isinstance(posterior, GaussianFamily):
            spread = predictor(head, posterior, features)[1]
            epistemic, noise = in_units_of_noise(head, posterior, spread)
            return epistemic, noise.expand_as(epistemic)
        if isinstance(posterior, NormalInverseGamma):
            spread = predictor(head, posterior.unit, features)[1]  # for τ² = 1
            a, b = posterior.shape_parameter, posterior.rate
            noise = torch.where(a > 1, b / (a - 1), torch.inf)  # E τ², infinite for few examples
            return noise * spread, noise.expand_as(spread)
    found = head.predictive(features, posterior, samples=samples, generator=generator)
    if not isinstance(found, PredictiveDistribution):
        outputs = drawn_outputs(head, posterior, features, samples, generator)
        found = SampledPredictive(head, torch.cat(list(outputs)))
    return found.epistemic_variance, found.aleatoric_variance


def _of_classes(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    samples: int,
    generator: torch.Generator | None,
) -> Uncertainty:
    head = at_temperature(head, posterior)
    linear = head.is_still(OnePredictor, "outputs")
    if isinstance(head, OnePredictor) and linear and isinstance(posterior, GaussianFamily):
        mean, variance = predictor(head, posterior, features)
        std = variance.sqrt()
        z, weight = output_rule(mean, std, 1 / std.detach().clamp(min=1))  # nothing grows: 8 std
        outputs, log_weight = mean + std * z, weight.log()[..., None]
    else:
        outputs = torch.cat(list(drawn_outputs(head, posterior, features, samples, generator)))
        log_weight = outputs.new_tensor(-math.log(len(outputs)))
    # [N, B, tasks, C], finite: 0 · ∞ in a derivative would be NaN.
    with following(outputs):
        log_p = log_probabilities(head, outputs).clamp(min=-1e30)
    log_mean = (log_p + log_weight).logsumexp(0)
    p = (log_p + log_weight).exp()  # weighted, so that sums over N are expectations
    # Mutual information as an expected Kullback-Leibler divergence, not a difference of entropies.
    divergence = torch.where(p > 0, p * (log_p - log_mean), 0.0).sum(-1).sum(0)
    entropy = -torch.where(p > 0, p * log_p, 0.0).sum(-1).sum(0)
    return Uncertainty(divergence.clamp(min=0), entropy, "entropy")
