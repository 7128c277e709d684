"""Streamed statistics of second-order schemes: sums of the batches' quadratic expansions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._state import count, finite, named, number, part, saved
from bayesagg_pyro.errors import NonFiniteError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._curvature import Summable, gaussian_prior, materialised
from bayesagg_pyro.inference._expansion import chunk_of, dropped_share, summed_kind
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from bayesagg_pyro.inference._newton import SecondOrder


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
        self._kind = summed_kind(head, scheme.structure)
        #: By the names in a state: "shift", Σ (B (ŵ − w₀) − ∇), and "origin", w₀, [blocks, P];
        #: "curvature.…"; "dropped", negative curvature and all, [2, blocks], where there is some.
        self._sums: dict[str, Tensor] = {}
        self._filled = False  # since the sums were last set to 0

    def __bool__(self) -> bool:
        return self._filled

    def labelled(self) -> Tensor:
        """Those of whose sums one is not 0."""
        sums = [t for name, t in self._sums.items() if name not in ("origin", "dropped")]
        of_tasks = [t.reshape(len(t), -1).any(1) for t in sums if len(t) == self.head.blocks]
        return torch.stack(of_tasks).any(0)

    @torch.no_grad()
    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Add a batch's expansion at the head's present weights."""
        features, targets = validity.keep_examples(features, targets, self.head.filler)
        chunk = chunk_of(self.head, features, targets)
        point = self.head.point().detach().to(chunk.design.dtype)
        at = self._scheme.expand(self.head, [chunk], point)
        curvature = materialised(at.curvature)
        origin = self._sums["origin"] if self._sums else point.clone()
        shift = curvature.matvec(point - origin) - at.gradient
        found = {"shift": shift, **named("curvature", vars(curvature))}
        if validity.now and not all(map(linalg.all_finite, found.values())):
            raise NonFiniteError(
                f"head {self.head.site!r}: the expansion of this batch overflows {shift.dtype}, "
                "although features and targets are finite; standardise them, or look for a "
                "backbone that diverges"
            )
        self._filled = True
        if at.dropped is not None:
            found["dropped"] = at.dropped
        if not validity.now:
            found = _times(found, validity.keep(torch.ones_like(shift[0, 0]), 0.0))
        for name, before in self._sums.items():
            found[name] = before + found[name] if name in found else before
        self._sums = {**found, "origin": origin}

    def scaled(self, factor: float) -> ExpansionSums:
        """A copy with all sums times `factor`."""
        other = copy(self)
        other.scale_(factor)
        return other

    def scale_(self, factor: float | Tensor) -> None:
        """Multiply all sums."""
        if isinstance(factor, float) and factor == 0:  # and begin at other weights
            self._sums, self._filled = {}, False
        self._sums = _times(self._sums, factor)

    @torch.no_grad()
    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianFamily:
        """The Gaussian of the summed quadratics and the prior."""
        if not self._sums:
            raise StateError(f"head {self.head.site!r}: no batch has been added")
        curvature, shift = self._curvature(self._sums), self._sums["shift"]
        known = gaussian_prior(self.head, prior, "a second-order scheme")
        known = known.to(shift.device, shift.dtype)
        posterior = curvature.posterior(known, f"head {self.head.site!r}")
        innovation = shift - curvature.matvec(known.mean - self._sums["origin"])
        posterior = posterior.with_mean(known.mean + posterior.solve(innovation))
        if "dropped" in self._sums:
            share = dropped_share(self._sums["dropped"])
            posterior = posterior.with_info(dropped_curvature=share)
        return posterior.replace(outputs_per_task=self.head.outputs_per_task)

    def to(self, device: torch.device) -> None:
        """Move the sums."""
        self._sums = {name: value.to(device) for name, value in self._sums.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The sums."""
        own = {name: saved(value) for name, value in self._sums.items()}
        return {"filled": number(self._filled), **own}

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
        names = [name for name in state if name != "filled"]
        if not names:
            self._sums, self._filled = {}, filled
            return
        size = [self.head.blocks, self.head.weight_size]
        wanted = {"shift", "origin", *(f"curvature.{field.name}" for field in fields(self._kind))}
        shapes = {name: list(value.shape) for name, value in state.items()}
        if shapes.get("shift") != size or {*names} - {"dropped"} != wanted:
            raise StateError(
                f"{owner} has weights of shape {size} and structure={self._scheme.structure!r}; "
                f"the saved sums are {shapes}; make the heads and schemes as saved"
            )
        found = dict(zip(names, finite(owner, state, names), strict=True))
        device = self.head.weight.device
        found = {name: value.to(device, copy=True) for name, value in found.items()}
        product = self._curvature(found).matvec(found["shift"])
        fits = shapes["origin"] == size and list(product.shape) == size
        if not fits or shapes.get("dropped", [2, size[0]]) != [2, size[0]]:
            raise StateError(f"{owner}: the saved sums {shapes} do not fit each other")
        self._sums, self._filled = found, filled

    def _curvature(self, sums: dict[str, Tensor]) -> Summable:
        return self._kind(**part(sums, "curvature"))


def _times(sums: dict[str, Tensor], factor: float | Tensor) -> dict[str, Tensor]:
    """All but the origin times a scalar."""
    return {k: v if k == "origin" else v * factor for k, v in sums.items()}
