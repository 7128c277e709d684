"""Aggregators of TorchJD on a matrix of gradients of any scale, with zero or missing rows.

No `Aggregation`, which takes distributions: `TorchJD` is the one that calls this.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import seeded
from bayesagg_pyro._pieces import CACHE
from bayesagg_pyro._state import (
    check_generator,
    finite,
    named,
    part,
    read_generator,
    saved,
    set_generator,
)
from bayesagg_pyro.aggregation._torchjd_state import load_state, read_state
from bayesagg_pyro.aggregation._torchjd_traits import give_back, of_some, traits_of
from bayesagg_pyro.errors import DtypeError, NonFiniteError, NumericalError, ShapeError


class Combined(NamedTuple):
    """One direction from a matrix of gradients.

    Attributes:
        direction: [n].
        weights: [T], with direction = weights @ matrix; None for a method without weights.
    """

    direction: Tensor
    weights: Tensor | None


class MatrixAggregator:
    """An aggregator of TorchJD, as a function of a matrix whose rows are the tasks' gradients.

    Its weights are found from inner products in float64 and, for an aggregator whose result
    follows the scale of the gradients, from gradients brought to size 1: thresholds inside it
    (1e-4 in CAGrad, UPGrad and DualProj, below which they give zeros or the mean) are then
    thresholds of relative size. NashMTL's bargain, which does not depend on the lengths of
    gradients, is solved for unit lengths. NashMTL and FairGrad are not defined for a gradient of
    zeros: such tasks are left out of the step. Where gradients can be combined to (almost)
    nothing, CAGrad's second term is 0/0 and TorchJD gives zeros; here the first term remains, the
    mean. Tasks without any label are left out. Random aggregators draw from `generator`, and
    torch's global random state stays as it was.

    Args:
        aggregator: an object from `torchjd.aggregation`, or a subclass of its `Aggregator`.
        generator: randomness; a new one with seed 0 if None.

    Raises:
        DtypeError: if `aggregator` is no module that can be called with a matrix.
    """

    def __init__(self, aggregator: Any, *, generator: torch.Generator | None = None) -> None:
        if not isinstance(aggregator, torch.nn.Module):
            raise DtypeError(
                f"aggregator must be an object from torchjd.aggregation, not {aggregator!r}"
            )
        self.aggregator: Any = aggregator
        self._traits = traits_of(type(aggregator))
        self.generator = generator or torch.Generator().manual_seed(0)
        self._bargained: Tensor | None = None  # norms at the time of NashMTL's last solution

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """Whether the result has the size of the gradients' mean or of their sum."""
        return self._traits.reduction

    @staticmethod
    def reduction_of(kind: type) -> Literal["mean", "sum"]:
        """What `reduction` is for objects of this class of aggregators."""
        return traits_of(kind).reduction

    def degree(self) -> float | None:
        """p, where gradients times c > 0 give a direction times c^p; None where there is no law."""
        if type(self.aggregator).__name__ == "FairGrad":
            alpha = float(self.aggregator.alpha)
            return (1 - alpha) / (1 + alpha)
        if type(self.aggregator).__name__ == "NashMTL":
            return 0.0
        return 1.0 if self._traits.scaled else None

    def __call__(
        self, matrix: Tensor, names: Sequence[str] | None = None, present: Tensor | None = None
    ) -> Combined:
        """Aggregate.

        Args:
            matrix: [T, n].
            names: of the tasks, for messages.
            present: [T] bool, which tasks have a gradient at all; None when all do. The others
                take no part (their rows of zeros would be short gradients, which stop MGDA and
                bend most others), get weight 0, and what is remembered of them stays.

        Raises:
            ShapeError: if it is no matrix, or the result no direction.
            NonFiniteError: if a gradient holds NaN or infinity, naming the task.
            NumericalError: if the aggregator fails or its result is not finite.
        """
        if matrix.ndim != 2:
            raise ShapeError(f"gradients must be [tasks, n], not {list(matrix.shape)}")
        matrix = matrix.detach()
        if present is not None and not present.all():
            return self._of_some(matrix, names, present)
        gramian = gramian_of(matrix)
        norms = gramian.diagonal().sqrt()
        if not norms.isfinite().all():
            row = int((~norms.isfinite()).nonzero()[0])
            name = f"task {row}" if names is None else f"task {names[row]}"
            raise NonFiniteError(
                f"the gradient of {name} holds NaN, infinity or numbers too large to square; lower "
                "the learning rate, standardise its targets, or look for a bad example"
            )
        kept = norms > 0
        if not kept.any():
            return Combined(torch.zeros_like(matrix[0]), None)
        if self._traits.skips_zeros and not kept.all():
            inner = self._smaller(int(kept.sum()))
            found = inner._aggregate(matrix[kept], gramian[kept][:, kept], norms[kept])
            return _spread(found, kept)
        return self._aggregate(matrix, gramian, norms)

    def _of_some(self, matrix: Tensor, names: Sequence[str] | None, present: Tensor) -> Combined:
        if not present.any():
            return Combined(torch.zeros_like(matrix[0]), None)
        if names is not None:
            names = [name for name, there in zip(names, present.tolist(), strict=True) if there]
        if type(self.aggregator).__name__ == "NashMTL":
            inner = self._smaller(int(present.sum()))
            return _spread(inner(matrix[present], names), present)
        inner = MatrixAggregator(of_some(self.aggregator, present), generator=self.generator)
        found = inner(matrix[present], names)
        give_back(self.aggregator, inner.aggregator, present)
        return _spread(found, present)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that later results depend on, as tensors."""
        state = {
            **read_generator(self.generator),
            **named("aggregator", read_state(self.aggregator)),
        }
        return state if self._bargained is None else {**state, "bargained": saved(self._bargained)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            StateError: if it is something else.
        """
        bargained = state.get("bargained")
        if bargained is not None:
            (bargained,) = finite(type(self.aggregator).__name__, state, ["bargained"])
        check_generator(self.generator, state)
        load_state(self.aggregator, part(state, "aggregator"))
        set_generator(self.generator, state)
        self._bargained = None if bargained is None else bargained.clone()

    def _aggregate(self, matrix: Tensor, gramian: Tensor, norms: Tensor) -> Combined:
        isolated: Any = contextlib.nullcontext()
        if self._traits.random:  # from torch's global generator, which is put back afterwards
            isolated = seeded(self.generator, matrix.device, 2**63 - 1)
        with isolated:
            try:
                direction, weights = self._apply(matrix, gramian, norms, norms.max())
            except Exception as error:  # solvers raise of all kinds
                raise NumericalError(f"{self._said('failed on', norms)}: {error}") from error
        if direction.shape != matrix.shape[1:]:
            raise ShapeError(
                f"{type(self.aggregator).__name__} gave {list(direction.shape)} for gradients of "
                f"shape {list(matrix.shape)}, not one direction; give an aggregator "
                "(torchjd.aggregation.UPGrad()), not what weighs for it (UPGradWeighting())"
            )
        if not direction.isfinite().all():
            raise NumericalError(self._said("gave a direction that is not finite from", norms))
        return Combined(direction, weights)

    def _said(self, what: str, norms: Tensor) -> str:
        sizes = [float(f"{norm:.3g}") for norm in norms.tolist()]
        return f"{type(self.aggregator).__name__} {what} gradients of norms {sizes}"

    def _apply(
        self, matrix: Tensor, gramian: Tensor, norms: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        aggregator, scaled = self.aggregator, self._traits.scaled
        if type(aggregator).__name__ == "NashMTL":
            weights = self._nash(gramian, norms)
        elif _is(aggregator, "GramianWeightedAggregator"):
            weights = aggregator.gramian_weighting(gramian / size.square() if scaled else gramian)
            degree = self.degree()
            if scaled and degree is not None:
                weights = weights * size ** (degree - 1)
            if type(aggregator).__name__ == "CAGrad" and not weights.any():
                weights = torch.full_like(weights, 1 / len(weights))
        elif _is(aggregator, "WeightedAggregator"):
            weights = aggregator.weighting(matrix)
        elif scaled:
            unit = size.to(matrix.dtype)
            return aggregator(matrix / unit) * unit, None
        else:
            return aggregator(matrix), None
        weights = weights.detach().to(gramian.dtype)
        return weights.to(matrix.dtype) @ matrix, weights

    def _nash(self, gramian: Tensor, norms: Tensor) -> Tensor:
        """Weights of the bargain α_i (G α)_i = 1, found for gradients of unit length.

        With G = D C D, where D holds the norms, α = β / D and β solves the bargain for C. TorchJD
        gives it up, with α = 1, where gradients are of norm 1e-3 or less.
        """
        aggregator = self.aggregator
        if len(gramian) == 1:  # of one, its own gradient
            limit = float(aggregator.max_norm)
            return (limit if 0 < limit < 1 else 1.0) / norms
        if (
            self._bargained is None
            or aggregator.weighting.step % aggregator.update_weights_every == 0
        ):
            self._bargained = norms
        norms = self._bargained
        values, vectors = torch.linalg.eigh(gramian / norms / norms[:, None])
        root = vectors * values.clamp(min=0).sqrt()
        with warnings.catch_warnings():
            # Its problem is not of the form that cvxpy likes, and solved roughly by design.
            warnings.simplefilter("ignore")
            weights: Tensor = aggregator.weighting(root)
        return weights / norms

    def _smaller(self, tasks: int) -> MatrixAggregator:
        """The same for so many tasks, without a memory of earlier steps."""
        aggregator = self.aggregator
        if type(aggregator).__name__ == "NashMTL":
            aggregator = type(aggregator)(
                n_tasks=tasks,
                max_norm=aggregator.max_norm,
                update_weights_every=1,
                optim_niter=aggregator.optim_niter,
            )
        return MatrixAggregator(aggregator)

    def __repr__(self) -> str:
        return f"MatrixAggregator({self.aggregator!r})"


def _is(aggregator: Any, base: str) -> bool:
    """Whether a class of that name is among the aggregator's bases; TorchJD is not imported."""
    return any(kind.__name__ == base for kind in type(aggregator).__mro__)


def _spread(found: Combined, kept: Tensor) -> Combined:
    """The result of some tasks with weights for all, 0 for the others."""
    if found.weights is None:
        return found
    weights = found.weights.new_zeros(len(kept))
    weights[kept] = found.weights
    return Combined(found.direction, weights)


def gramian_of(matrix: Tensor) -> Tensor:
    """Inner products of rows in the precision of head algebra, without a copy of the matrix."""
    dtype = linalg.head_dtype(matrix.device)
    total = torch.zeros(len(matrix), len(matrix), dtype=dtype, device=matrix.device)
    for columns in matrix.split(CACHE, dim=1):
        exact = columns.to(dtype)
        total += exact @ exact.T
    return total
