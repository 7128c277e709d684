"""Streamed statistics of second-order schemes: sums of the batches' quadratic expansions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING

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
        self._curvature: Summable | None = None
        self._shift: Tensor | None = None
        self._origin: Tensor | None = None
        self._dropped: Tensor | None = None  # negative curvature and all, [2, blocks]
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
        curvature = materialised(at.curvature)
        if self._origin is None:
            self._origin = point.clone()
        shift = curvature.matvec(point - self._origin) - at.gradient
        if validity.now and not all(
            linalg.all_finite(term) for term in (shift, *vars(curvature).values())
        ):
            raise NonFiniteError(
                f"head {self.head.site!r}: the expansion of this batch overflows {shift.dtype}, "
                "although features and targets are finite; standardise them, or look for a "
                "backbone that diverges"
            )
        self._filled = True
        if not validity.now:
            good = validity.keep(torch.ones_like(shift[0, 0]), 0.0)
            curvature, shift = curvature.scaled(good), shift * good
        if at.dropped is not None:
            dropped = validity.keep(at.dropped, 0.0)
            self._dropped = dropped if self._dropped is None else self._dropped + dropped
        if self._curvature is None or self._shift is None:
            self._curvature, self._shift = curvature, shift
        else:
            self._curvature = self._curvature + curvature  # type: ignore[operator]
            self._shift = self._shift + shift

    def scaled(self, factor: float) -> ExpansionSums:
        """A copy with all sums times `factor`."""
        other = copy(self)
        other.scale_(factor)
        return other

    def scale_(self, factor: float | Tensor) -> None:
        """Multiply all sums."""
        if isinstance(factor, float) and factor == 0:
            self._filled = False
        if self._curvature is not None and self._shift is not None:
            number = torch.as_tensor(factor, dtype=self._shift.dtype, device=self._shift.device)
            self._curvature = self._curvature.scaled(number)
            self._shift = self._shift * number
            self._dropped = None if self._dropped is None else self._dropped * number

    @torch.no_grad()
    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianFamily:
        """The Gaussian of the summed quadratics and the prior."""
        if self._curvature is None or self._shift is None or self._origin is None:
            raise StateError(f"head {self.head.site!r}: no batch has been added")
        known = gaussian_prior(self.head, prior, "a second-order scheme")
        known = known.to(self._shift.device, self._shift.dtype)
        posterior = self._curvature.posterior(known, f"head {self.head.site!r}")
        innovation = self._shift - self._curvature.matvec(known.mean - self._origin)
        posterior = posterior.with_mean(known.mean + posterior.solve(innovation))
        info = posterior.info
        if self._dropped is not None and info is not None:
            info = replace(info, dropped_curvature=dropped_share(self._dropped))
        return posterior.replace(outputs_per_task=self.head.outputs_per_task, info=info)

    def to(self, device: object) -> None:
        """Move the sums."""
        if self._curvature is not None and self._shift is not None:
            parts = {k: v.to(device) for k, v in vars(self._curvature).items()}
            self._curvature = type(self._curvature)(**parts)
            self._shift = self._shift.to(device)  # type: ignore[call-overload]
        if self._origin is not None:
            self._origin = self._origin.to(device)  # type: ignore[call-overload]
        if self._dropped is not None:
            self._dropped = self._dropped.to(device)  # type: ignore[call-overload]

    def state_dict(self) -> dict[str, Tensor]:
        """The sums."""
        state = {"filled": number(self._filled)}
        if self._curvature is not None and self._shift is not None and self._origin is not None:
            state |= {"shift": saved(self._shift), "origin": saved(self._origin)}
            state |= {f"curvature.{k}": saved(v) for k, v in vars(self._curvature).items()}
            state |= {} if self._dropped is None else {"dropped": saved(self._dropped)}
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
            self._curvature = self._shift = self._origin = self._dropped = None
            self._filled = filled
            return
        kind = {"full": Dense, "diag": Diagonal, "kron": Kronecker}[self._scheme.structure]
        size = [self.head.blocks, self.head.weight_size]
        names = [f"curvature.{field.name}" for field in fields(kind)]
        shapes = {name: list(value.shape) for name, value in state.items()}
        tensors = {"filled", "shift", "origin", *names}
        if shapes.get("shift") != size or state.keys() - {"dropped"} != tensors:
            raise StateError(
                f"{owner} has weights of shape {size} and structure={self._scheme.structure!r}; "
                f"the saved sums are {shapes}; make the heads and schemes as saved"
            )
        shift, origin, *parts = finite(owner, state, ["shift", "origin", *names])
        curvature = kind(*(value.clone() for value in parts))
        if list(origin.shape) != size or list(curvature.matvec(shift).shape) != size:
            raise StateError(f"{owner}: the saved sums {shapes} do not fit each other")
        self._curvature = curvature
        self._shift, self._origin = shift.clone(), origin.clone()
        self._dropped, self._filled = None, filled
        if "dropped" in state:
            (dropped,) = finite(owner, state, ["dropped"])
            if list(dropped.shape) != [2, size[0]]:
                raise StateError(f"{owner}: the saved sums {shapes} do not fit each other")
            self._dropped = dropped.clone()
        self.to(self.head.weight.device)
