"""Running the cells: posteriors once, then every estimator on them, then every aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import gradients
from bayesagg_pyro.errors import BayesAggError
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from tests.swap.axes import (
    AGGREGATIONS,
    ESTIMATORS,
    HEADS,
    PRIORS,
    SCHEMES,
    features,
    targets,
)

__all__ = ["Cell", "Trained", "aggregated", "distributions", "trained"]

#: What a combination that cannot be may raise: a typed error, or "there is no formula".
_REFUSED = (BayesAggError, NotImplementedError)


@dataclass(frozen=True)
class Cell:
    """One combination and what came of it.

    Attributes:
        names: of the choices made so far, in the order head, scheme, prior, estimator, aggregation.
        why: the error's first sentence where it cannot be; None where it ran.
        fault: what is wrong with a result that came; None where nothing is.
    """

    names: tuple[str, ...]
    why: str | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Trained:
    """A head, scheme and prior after a warm-up epoch and a Bayesian step in the engine."""

    cell: Cell
    head: Head | None = None
    posterior: Posterior | None = None


def trained(head: str, scheme: str, prior: str) -> Trained:
    """An engine of these three: one epoch, then two Bayesian steps, the second on top."""
    names = (head, scheme, prior)
    make, kind = HEADS[head]
    torch.manual_seed(0)
    h, y = features(), targets(kind)
    try:
        mtl = ba.BayesAgg(
            {"task": make().double()},
            inference=SCHEMES[scheme](),
            prior=PRIORS[prior](),
            generator=torch.Generator().manual_seed(0),
            keep_gradients=True,
        )
        inputs = h.clone().requires_grad_()
        mtl.backward(inputs, {"task": y})
        fresh = [(h, {"task": y})] if prior == "Fresh" else None
        mtl.update_prior(batches=fresh)
        mtl.start_bayes()
        inputs = h.clone().requires_grad_()
        mtl.backward(inputs, {"task": y})
        once = None if inputs.grad is None else inputs.grad.clone()
        mtl.eval()
        mtl.backward(inputs, {"task": y})
    except _REFUSED as error:
        return Trained(Cell(names, why=_sentence(error)))
    assert mtl.info is not None
    assert mtl.info.stages is not None
    posterior = mtl.info.stages.posteriors["task"]
    fault = _fault(inputs.grad, h.shape)
    moved = once is not None and bool(once.abs().max() > 0)
    if moved and torch.equal(once, inputs.grad):  # type: ignore[arg-type]
        fault = fault or "a second backward did not add to the gradient"
    own: Head = mtl.heads["task"]  # type: ignore[assignment]
    return Trained(Cell(names, fault=fault), own, posterior)


def distributions(made: Trained) -> Iterator[tuple[Cell, list[GradientDistribution]]]:
    """The gradient distribution by every estimator, twice, on a posterior that exists."""
    head, posterior = made.head, made.posterior
    assert head is not None
    assert posterior is not None
    h, y = features(), targets(HEADS[made.cell.names[0]][1])
    for name, estimator in ESTIMATORS.items():
        names = (*made.cell.names, name)
        try:
            found = [
                gradients.distribution(
                    head,
                    posterior,
                    h,
                    y,
                    estimator=estimator(),
                    generator=torch.Generator().manual_seed(1),
                )
                for _ in range(2)
            ]
        except _REFUSED as error:
            yield Cell(names, why=_sentence(error)), []
            continue
        shape = torch.Size([head.tasks, *h.shape])
        fault = _fault(found[0].mean, shape) or _fault(found[0].variance, shape)
        if not torch.equal(found[0].mean, found[1].mean):
            fault = fault or "two runs with one seed differ"
        if (found[0].variance < 0).any():
            fault = fault or "a negative variance"
        yield Cell(names, fault=fault), [gradients.cat({"task": grad}) for grad in found]


def aggregated(names: tuple[str, ...], grads: list[GradientDistribution]) -> Iterator[Cell]:
    """The direction by every aggregation, of two equal gradient distributions."""
    for name, make in AGGREGATIONS.items():
        try:
            found = [_direction(make(), grad) for grad in grads]
        except _REFUSED as error:
            yield Cell((*names, name), why=_sentence(error))
            continue
        fault = _fault(found[0], grads[0].mean.shape[1:])
        if not torch.equal(found[0], found[1]):
            fault = fault or "two runs with one seed differ"
        yield Cell((*names, name), fault=fault)


def _direction(method: ba.aggregation.Aggregation, grad: GradientDistribution) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return method(grad)


def _fault(tensor: Tensor | None, shape: torch.Size) -> str | None:
    if tensor is None:
        return "no gradient came"
    if tensor.shape != shape:
        return f"a result of shape {list(tensor.shape)}, not {list(shape)}"
    return None if tensor.isfinite().all() else "a result that is not finite"


def _sentence(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
