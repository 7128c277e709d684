"""Streamed statistics of second-order schemes: sums of the batches' quadratic expansions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._state import count, finite, number, saved
from bayesagg_pyro.errors import NonFiniteError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._curvature import (
    Dense,
    Diagonal,
    Kronecker,
    Summable,
    gaussian_prior,
    materialised,
)
from bayesagg_pyro.inference._expansion import chunk_of, dropped_share
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from bayesagg_pyro.inference._newton import SecondOrder

__all__ = ["ExpansionSums"]


class _Sums(NamedTuple):
    curvature: Summable
    shift: Tensor  #: Σ (B (ŵ − w₀) − ∇), [blocks, P]
    origin: Tensor  #: w₀, [blocks, P]
    dropped: Tensor | None  #: negative curvature and all, [2, blocks]

    def plus(self, other: _Sums) -> _Sums:
        dropped = [own.dropped for own in (self, other) if own.dropped is not None]
        return _Sums(
            self.curvature + other.curvature,
            self.shift + other.shift,
            self.origin,
            sum(dropped[1:], dropped[0]) if dropped else None,
        )

    def scaled(self, factor: float | Tensor) -> _Sums:
        number = torch.as_tensor(factor, dtype=self.shift.dtype, device=self.shift.device)
        dropped = None if self.dropped is None else self.dropped * number
        return _Sums(self.curvature.scaled(number), self.shift * number, self.origin, dropped)

    def to(self, device: torch.device) -> _Sums:
        dropped = None if self.dropped is None else self.dropped.to(device)
        curvature = self.curvature.each(lambda term: term.to(device))
        return _Sums(curvature, self.shift.to(device), self.origin.to(device), dropped)


class ExpansionSums(Statistics):
    """Sums of the batches' quadratic expansions, each at the weights of its moment.

    Their minimum solves (Λ_p + Σ B)(w − w₀) = Λ_p (m_p − w₀) + Σ (B (ŵ − w₀) − ∇), a Gaussian
    head's normal equations with working responses in place of targets. The weights w₀ of the first
    batch change nothing while curvatures add up; the Kronecker one, of which a sum is approximate,
    is so applied to the drift of the weights alone.
    """

    decays = True

    def __init__(self, head: Head, scheme: SecondOrder) -> None:
        super().__init__(head)
        self._scheme = scheme
        self._sums: _Sums | None = None
        self._filled = False  # since the sums were last set to 0

    def __bool__(self) -> bool:
        return self._filled

    @torch.no_grad()
    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Add a batch's expansion at the head's present weights."""
        features, targets = validity.keep_examples(features, targets, self.head.filler)
        chunk = chunk_of(self.head, features, targets)
        point = self.head.point().detach().to(chunk.design.dtype)
        at = self._scheme.expand(self.head, [chunk], point)
        curvature, before = materialised(at.curvature), self._sums
        origin = point.clone() if before is None else before.origin
        shift = curvature.matvec(point - origin) - at.gradient
        if validity.now and not all(
            linalg.all_finite(term) for term in (shift, *vars(curvature).values())
        ):
            raise NonFiniteError(
                f"head {self.head.site!r}: the expansion of this batch overflows {shift.dtype}, "
                "although features and targets are finite; standardise them, or look for a "
                "backbone that diverges"
            )
        self._filled = True
        found = _Sums(curvature, shift, origin, at.dropped)
        if not validity.now:
            found = found.scaled(validity.keep(torch.ones_like(shift[0, 0]), 0.0))
        self._sums = found if before is None else before.plus(found)

    def scaled(self, factor: float) -> ExpansionSums:
        """A copy with all sums times `factor`."""
        other = copy(self)
        other.scale_(factor)
        return other

    def scale_(self, factor: float | Tensor) -> None:
        """Multiply all sums."""
        if isinstance(factor, float) and factor == 0:
            self._filled = False
        self._sums = None if self._sums is None else self._sums.scaled(factor)

    @torch.no_grad()
    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianFamily:
        """The Gaussian of the summed quadratics and the prior."""
        if self._sums is None:
            raise StateError(f"head {self.head.site!r}: no batch has been added")
        curvature, shift, origin, dropped = self._sums
        known = gaussian_prior(self.head, prior, "a second-order scheme")
        known = known.to(shift.device, shift.dtype)
        posterior = curvature.posterior(known, f"head {self.head.site!r}")
        innovation = shift - curvature.matvec(known.mean - origin)
        posterior = posterior.with_mean(known.mean + posterior.solve(innovation))
        if dropped is not None:
            posterior = posterior.with_info(dropped_curvature=dropped_share(dropped))
        return posterior.replace(outputs_per_task=self.head.outputs_per_task)

    def to(self, device: torch.device) -> None:
        """Move the sums."""
        self._sums = None if self._sums is None else self._sums.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums."""
        state = {"filled": number(self._filled)}
        if self._sums is not None:
            curvature, shift, origin, dropped = self._sums
            state |= {"shift": saved(shift), "origin": saved(origin)}
            state |= {f"curvature.{k}": saved(v) for k, v in vars(curvature).items()}
            state |= {} if dropped is None else {"dropped": saved(dropped)}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved sums.

        Raises:
            StateError: if they are those of another head, structure or way to keep examples.
            NonFiniteError: if one is not finite.
        """
        owner = f"head {self.head.site!r}"
        if "filled" not in state:
            raise StateError(
                f"{owner}: the saved statistics {sorted(state)} are no streamed sums; make the "
                "engine with the storage and the scheme as saved"
            )
        filled = bool(count(state, "filled", most=1))
        if state.keys() == {"filled"}:
            self._sums, self._filled = None, filled
            return
        kinds: dict[str, type[Dense | Diagonal | Kronecker]] = {
            "full": Dense,
            "diag": Diagonal,
            "kron": Kronecker,
        }
        kind = kinds[self._scheme.structure]
        size = [self.head.blocks, self.head.weight_size]
        names = [f"curvature.{field.name}" for field in fields(kind)]
        shapes = {name: list(value.shape) for name, value in state.items()}
        tensors = {"filled", "shift", "origin", *names}
        if shapes.get("shift") != size or state.keys() - {"dropped"} != tensors:
            raise StateError(
                f"{owner} has weights of shape {size} and structure={self._scheme.structure!r}; "
                f"the saved sums are {shapes}; make the heads and schemes as saved"
            )
        optional = ["dropped"] if "dropped" in state else []
        found = finite(owner, state, ["shift", "origin", *names, *optional])
        device = self.head.weight.device
        shift, origin, *parts = (value.to(device, copy=True) for value in found)
        dropped = parts.pop() if optional else None
        curvature = kind(*parts)
        fits = list(origin.shape) == size and list(curvature.matvec(shift).shape) == size
        if not fits or (dropped is not None and list(dropped.shape) != [2, size[0]]):
            raise StateError(f"{owner}: the saved sums {shapes} do not fit each other")
        self._sums, self._filled = _Sums(curvature, shift, origin, dropped), filled
