"""All or nothing: a call that fails leaves everything as it was, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.errors import NumericalError
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.inference import Statistics
from bayesagg_pyro.posteriors import GaussianFamily

if TYPE_CHECKING:
    from bayesagg_pyro.engine.stateful import Stateful

#: Puts something back to what it was when this was made.
Undo = Callable[[], None]


@contextmanager
def all_or_nothing(undo: Iterable[Undo]) -> Iterator[None]:
    """Run a block; if anything ends it early, Ctrl-C too, call each `undo`, last made first.

    Raises:
        NumericalError: in place of torch's own error for a matrix.
    """
    made = list(undo)
    try:
        yield
    except BaseException as error:
        for restore in reversed(made):
            restore()
        if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            raise NumericalError(
                f"a matrix cannot be decomposed ({error}); strengthen the prior, or standardise "
                "features and targets"
            ) from error
        raise


def as_a_whole(engine: Stateful, *, step: bool = False) -> AbstractContextManager[None]:
    """A block that an engine goes through as a whole or not at all.

    Args:
        engine: the engine.
        step: whether the heads' weights do not change in it, except those that follow a mean.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return nullcontext()
    owners: list[Any] = [engine]
    weights: list[Tensor] = []
    written: list[Tensor] = []
    for slot in engine._slots.values():
        head = slot.head
        owners += [slot] if slot._tracker is None else [slot, slot._tracker]
        weights += head.parameters()
        if not slot.learns:
            written.append(head.weight)
        if not step:
            written += head.buffers()
        if isinstance(head, Standardising):
            owners.append(head)
            written += head.open_units if step else []
    values = [of_values(written)] if written else []
    return all_or_nothing(
        [of_attributes(owners), of_gradients(weights), *values, *of_steps(engine)]
    )


def of_steps(engine: Stateful) -> list[Undo]:
    """Puts back what every step moves on, whether its batch counts or not."""
    generators = [engine._generator]
    for slot in engine._slots.values():
        generators.append(slot.generator)
        estimator = slot.estimators[slot.name]
        for owner in (slot.scheme, estimator, getattr(estimator, "estimator", None)):
            own = getattr(owner, "generator", None)
            if isinstance(own, torch.Generator):
                generators.append(own)
    return [of_generators(generators), of_aggregation(engine._aggregation)]


def of_attributes(owners: Iterable[Any]) -> Undo:
    """Puts back objects' attributes; of statistics and priors written in place, copies."""
    found: list[tuple[Any, dict[str, Any]]] = []
    written: list[tuple[GaussianFamily, GaussianFamily]] = []
    for owner in owners:
        before = dict(vars(owner))
        found.append((owner, before))
        for name, value in before.items():
            if isinstance(value, Statistics):
                before[name] = copy(value)
        if before.get("in_place", False):
            base = before.get("_base")  # never written to
            own = [v for v in before.values() if isinstance(v, GaussianFamily) and v is not base]
            for one in own:
                clones = {k: tensor.clone() for k, tensor in one.tensors().items()}
                written.append((one, one._rebuilt(clones, one._info)))

    def undo() -> None:
        for owner, before in found:
            vars(owner).clear()
            vars(owner).update(before)
        for posterior, twin in written:
            posterior.copy_(twin)

    return undo


def of_gradients(weights: Iterable[Tensor]) -> Undo:
    """Puts back the `.grad` of tensors, which autograd adds to in place."""
    before: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    for weight in weights:
        gradient = weight.grad
        before.append((weight, gradient, None if gradient is None else gradient.detach().clone()))

    def undo() -> None:
        for weight, gradient, value in before:
            weight.grad = gradient
            if gradient is not None and value is not None:
                with torch.no_grad():
                    gradient.copy_(value)

    return undo


def of_values(tensors: Iterable[Tensor]) -> Undo:
    """Puts back the values of parameters and buffers."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def undo() -> None:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)

    return undo


def of_tensors(module: nn.Module) -> Undo:
    """Puts back tensors and attributes of a module and its parts, even where replaced."""
    before = [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in module.modules()]
    tensors = [*module.parameters(), *module.buffers()]
    values = of_values(tensor for tensor in tensors if not tensor.is_meta)

    def undo() -> None:
        for one, attributes, parameters, buffers in before:
            vars(one).clear()
            vars(one).update(attributes)
            one._parameters.clear()
            one._parameters.update(parameters)
            one._buffers.clear()
            one._buffers.update(buffers)
        values()

    return undo


def of_generators(generators: Iterable[torch.Generator | None]) -> Undo:
    """Puts back the states of random generators; None is torch's global ones.

    Those of GPUs cannot be read while a graph is captured.
    """
    before: dict[torch.Generator, Tensor] = {}
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    gpus = () if capturing else torch.cuda.default_generators
    for given in generators:
        for generator in (torch.default_generator, *gpus) if given is None else (given,):
            if generator not in before:
                before[generator] = generator.get_state()

    def undo() -> None:
        for generator, state in before.items():
            generator.set_state(state)

    return undo


def of_aggregation(aggregation: Aggregation) -> Undo:
    """Puts back what an aggregation remembers."""
    before = aggregation.state_dict()
    return lambda: aggregation.load_state_dict(before)
