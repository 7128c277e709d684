"""Pyro models: the equal mixture of their likelihoods at draws of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import FromPyro
from bayesagg_pyro.heads._columns import Columns
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.heads._predictive import predictive_of
from bayesagg_pyro.posteriors import Empirical
from bayesagg_pyro.predictive._classes import from_log_probabilities
from bayesagg_pyro.predictive._laws import CategoricalPredictive
from bayesagg_pyro.predictive._mixture import MixtureOfDraws, standard_error
from bayesagg_pyro.predictive._predict import draws_until

#: Draws where none are asked for, each of which is a run of the model, and at most.
_SAMPLES, _LIMIT = 128, 2**13


@predictive_of.register
def of_pyro_model(
    head: FromPyro,
    features: Tensor,
    posterior: Any,
    *,
    method: str = "auto",
    samples: int | None = None,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """The mixture, a Bernoulli or Categorical for classes.

    Raises:
        SettingError: for another method than draws.
    """
    if method not in ("auto", "samples"):
        raise SettingError(
            f"head {head.site!r}: predictive distributions of Pyro models are made of draws, "
            f'not by {method!r}; use method="samples"'
        )
    if generator is None:
        generator = torch.Generator(features.device).manual_seed(0)

    stored = posterior.samples if isinstance(posterior, Empirical) else None

    def drawn(count: int) -> Any:
        weight = stored
        if weight is None:
            weight = posterior.sample((count,), generator=generator)
        with following(features):
            return _mixture(head, [head.likelihood_at(features, w) for w in weight[:, 0].detach()])

    samples = samples or _SAMPLES
    return draws_until(
        tolerance, drawn, samples, samples if stored is not None else _LIMIT, head.site
    )


def _mixture(head: FromPyro, components: list[Columns]) -> Any:
    if head.target_kind == "binary":
        labels = [components[0].mean.new_full(components[0].batch_shape, y) for y in (0.0, 1.0)]
        log_p = torch.stack([torch.stack([c.log_prob(y) for y in labels], -1) for c in components])
        law = from_log_probabilities(head, log_p.logsumexp(0))
        law.standard_error = standard_error(log_p[..., 1].exp())
        return law
    first = [component.parts[0] for component in components]
    of_classes = all(isinstance(law, torch.distributions.Categorical) for law in first)
    if not of_classes or len(components[0].parts) > 1:  # classes are not the only task
        return MixtureOfDraws(head, components)
    probabilities = torch.stack([law.probs for law in first])
    if probabilities.ndim == 3:  # [S, B, C]: the one task's axis is left out
        probabilities = probabilities[:, :, None]
    made = CategoricalPredictive(probs=probabilities.mean(0), validate_args=False)
    made.standard_error = standard_error(probabilities)
    return made.of(f"head {head.site!r}")
