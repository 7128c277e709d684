"""Examples of second-order schemes: kept one by one while they fit, as sums of expansions then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.inference._expansion import Chunk, chunk_of
from bayesagg_pyro.inference._expansion_sums import ExpansionSums
from bayesagg_pyro.inference._statistics import Examples, Storage
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.heads import Head
    from bayesagg_pyro.inference._newton import SecondOrder

__all__ = ["KeptExamples"]


class KeptExamples(Examples):
    """Examples that move to the head's device a part at a time.

    Once they exceed `Storage.memory` they are replaced by the sum of their quadratic expansions at
    the weights of that moment, to which later batches add theirs, each at the weights of its own.
    """

    _scheme: SecondOrder

    def __init__(self, head: Head, storage: Storage, scheme: SecondOrder) -> None:
        super().__init__(head, storage, scheme)
        self._sums: ExpansionSums | None = None

    def __bool__(self) -> bool:
        return super().__bool__() or bool(self._sums)

    def holds(self, features: Tensor) -> Tensor | None:
        """Whether the dtype to keep them in has room for them."""
        return super().holds(features) if self._sums is None else None

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Append a batch, or add its expansion."""
        if self._sums is None:
            super().add(features, targets, validity)
            memory = self._storage.memory
            if memory is not None and self.kept_bytes() > memory >= 2 * self._bytes_of_sums():
                self._sum_up()
            return
        sums = copy(self._sums)  # a snapshot of these statistics keeps its own
        sums.add(features, targets, validity)
        self._sums = sums

    def _sum_up(self) -> None:
        sums = ExpansionSums(self.head, self._scheme)
        for features, targets in self.chunks():
            sums.add(features, targets)
        self._sums, self._arrays, self._rows = sums, {}, 0

    def _bytes_of_sums(self) -> int:
        head, outputs = self.head, self.head.outputs_per_task
        each = {
            "full": head.weight_size**2,
            "diag": head.weight_size,
            "kron": outputs**2 + (head.weight_size // outputs) ** 2,
        }
        return 8 * head.blocks * each[self._scheme.structure]

    @torch.no_grad()
    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianFamily:
        """Of all examples at the head's weights, or of their summed quadratics."""
        if self._sums is not None:
            sums = self._sums if self._factor == 1.0 else self._sums.scaled(self._factor)
            return sums.for_head(self.head).posterior(prior, start=start, generator=generator)

        return self._scheme.for_epoch().infer_chunks(self.head, _Again(self), prior)

    def part(self, head: Head, rows: slice) -> Self:
        """The same features with the targets of some tasks; never asked of sums."""
        assert self._sums is None
        return super().part(head, rows)

    def to(self, device: torch.device) -> None:
        """Move examples or sums."""
        super().to(device)
        if self._sums is not None:
            self._sums = copy(self._sums)
            self._sums.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """The examples, or the sums."""
        return super().state_dict() if self._sums is None else self._sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what was saved, of either kind.

        Raises:
            StateError: if it is of another head, structure or way to keep examples.
            NonFiniteError: if a number is not finite.
        """
        if self._storage.memory is None or "filled" not in state:
            super().load_state_dict(state)
            self._sums = None
            return
        sums = ExpansionSums(self.head, self._scheme)
        sums.load_state_dict(state)
        self._sums, self._arrays, self._rows = sums, {}, 0


class _Again(Iterable[Chunk]):
    """Kept examples in chunks, made anew each time that they are gone through."""

    def __init__(self, kept: KeptExamples) -> None:
        self._kept = kept

    def __iter__(self) -> Iterator[Chunk]:
        for features, targets in self._kept.chunks():
            yield chunk_of(self._kept.head, features, targets)
