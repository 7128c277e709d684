"""Point predictions and predictive distributions: shapes, ranges, and each against the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads, posteriors
from bayesagg_pyro.errors import BayesAggError
from tests.fuzz.broken import Broken
from tests.fuzz.build import Batch
from tests.fuzz.draw import Call

__all__ = ["check_predicted", "check_predictive"]


def check_predicted(mtl: ba.BayesAgg, given: Batch, found: dict[str, Tensor], call: Call) -> None:
    """Shapes and finiteness."""
    for name, head in mtl.heads.items():
        outputs = found[name]
        if call.tame and not outputs.isfinite().all():
            raise Broken("a prediction is not finite", f"{name}: {outputs}")
        if len(outputs) != len(given.features):
            raise Broken("a prediction has another number of examples", str(outputs.shape))
        if not head.embedding and outputs.dtype == torch.float16:
            raise Broken("a prediction in half precision", name)


def check_predictive(mtl: ba.BayesAgg, given: Batch, found: dict[str, Any], call: Call) -> None:
    """Mean, variance, samples and log-density of the labels."""
    for name, head in mtl.heads.items():
        try:
            _check(head, found[name], given, name, mtl.posteriors()[name], call)
        except Broken:
            raise
        except BayesAggError as error:
            if _trains(head, given.targets[name], len(given.features)):
                kind = f"{type(head).__name__} predictive refuses what training takes"
                raise Broken(kind, str(error)) from error
        except NotImplementedError:
            continue
        except Exception as error:
            kind = f"{type(head).__name__} predictive raises {type(error).__name__}"
            raise Broken(kind, str(error)) from error


def _trains(head: heads.Head, labels: Any, examples: int) -> bool:
    """Whether training takes these labels."""
    try:
        head.parse_targets(labels, examples)
    except BayesAggError:
        return False
    return True


def _check(
    head: heads.Head, found: Any, given: Batch, name: str, posterior: Any, call: Call
) -> None:
    kind, shape = type(head).__name__, torch.Size([len(given.features), head.tasks])
    if found.batch_shape != shape:
        raise Broken(f"{kind} predictive has another batch shape", f"{found.batch_shape} {shape}")
    labels = given.targets[name]
    values = labels[0] if isinstance(labels, tuple | list) else labels
    values = values.reshape(shape)
    if values.is_floating_point():
        values = values.nan_to_num(1.0)
    log_p = found.log_prob(values)
    if log_p.shape != shape:
        raise Broken(f"{kind} log_prob has another shape", str(log_p.shape))
    # After an overlong step: deviations of exp(±400), and rates beyond the largest number, under
    # which a count has no probability.
    steep = kind == "Heteroscedastic"
    bad = log_p == torch.inf if kind == "Poisson" else ~log_p.isfinite()
    if log_p.isnan().any() or (call.tame and not steep and bad.any()):
        raise Broken(f"{kind} log_prob is not finite", f"{log_p}")
    if head.tasks == 1:
        flat = found.log_prob(values[:, 0])
        if flat.shape != shape or not torch.equal(flat, log_p):
            raise Broken(f"{kind} log_prob of [B] targets differs", str(flat.shape))
    draws = found.sample((3,))
    if draws.shape != (3, *shape):
        raise Broken(f"{kind} predictive samples have another shape", str(draws.shape))
    if call.tame and not steep and draws.is_floating_point() and not draws.isfinite().all():
        raise Broken(f"{kind} predictive samples are not finite", f"{draws}")
    if hasattr(found, "probs") and head.target_kind == "class":
        if not torch.allclose(found.probs.sum(-1), torch.ones_like(found.probs[..., 0])):
            raise Broken(f"{kind} probabilities do not sum to 1", f"{found.probs}")
        return
    mean, variance = found.mean, found.variance
    if (variance < 0).any():
        raise Broken(f"{kind} predictive variance is negative", f"{variance}")
    heavy = kind in ("StudentT", "Poisson", "NegativeBinomial", "Heteroscedastic", "Network")
    if call.tame and not heavy and not (mean.isfinite() & variance.isfinite()).all():
        raise Broken(f"{kind} predictive moments are not finite", f"{mean} {variance}")
    if type(head) is heads.Gaussian and isinstance(posterior, posteriors.Gaussian):
        design = head.design(given.features.double())
        expected = head.in_target_units(design @ posterior.mean.double().mT)
        spread = variance.double().sqrt()
        if not ((mean - expected).abs() <= 1e-4 * (spread + expected.abs())).all():
            raise Broken("Gaussian predictive mean is not hᵀm", f"{mean} {expected}")
