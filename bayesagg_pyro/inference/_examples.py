"""Training data kept as it is, example by example, or until that takes too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import slices
from bayesagg_pyro._state import saved
from bayesagg_pyro.errors import NonFiniteError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._cross_validation import with_noise
from bayesagg_pyro.inference._expansion import Chunk, chunk_of
from bayesagg_pyro.inference._expansion_sums import ExpansionSums
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Parsed, Targets, alike
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.inference._newton import SecondOrder
    from bayesagg_pyro.inference._scheme import Scheme


class Examples(Statistics):
    """Features and targets of all batches of an epoch, in growing arrays.

    Args:
        head: whose batches they are.
        storage: how they are kept.
        scheme: infers the posterior of all examples at once.
    """

    def __init__(self, head: Head, storage: Storage, scheme: Scheme) -> None:
        super().__init__(head)
        self._storage = storage
        self._scheme = scheme
        self._rows = 0
        self._common = True  # whether all weights so far are common to the tasks
        self._arrays: dict[str, Tensor] = {}

    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """The scheme's posterior given all examples at once."""
        features, targets = self.all()
        made = self._scheme.infer(
            self.head, features, targets, prior, start=start, generator=generator
        )
        return with_noise(self.head, made, [(features, targets)], self.share)

    def __bool__(self) -> bool:
        return self._rows > 0

    def __len__(self) -> int:
        return self._rows

    def labelled(self) -> Tensor | None:
        """Those with a target of some weight."""
        parts = [self._arrays[name] for name in ("mask", "weight") if name in self._arrays]
        if not parts:
            return None
        counted = torch.stack([part[: self._rows] > 0 for part in parts]).all(0)
        found = counted.any(0).to(self.head.weight.device)
        return found if self.head.blocks == self.head.tasks else found.any(0, keepdim=True)

    def holds(self, features: Tensor) -> Tensor | None:
        """Whether the dtype to keep them in has room for them."""
        dtype = self._storage.dtype
        if dtype is None or torch.promote_types(dtype, features.dtype) == dtype:
            return None
        return features.to(dtype).isfinite().all()

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Append a batch; a bad one gets weight 0.

        Raises:
            NonFiniteError: if features overflow the dtype to keep them in, unless validation is
                deferred, which asks `holds` before.
        """
        if not validity.now:
            if targets.weight is None:
                one = features.new_ones(len(features), 1).expand_as(targets.values)
                targets = targets._replace(weight=one)
            features, targets = validity.keep_examples(features, targets, self.head.filler)
        elif self._storage.dtype and (fits := self.holds(features)) is not None and not fits:
            raise NonFiniteError(
                f"head {self.head.site!r}: features of up to {features.abs().max():.3g} overflow "
                f"{self._storage.dtype}, in which Storage(dtype=...) keeps them; choose a wider one"
            )
        self._common = self._common and (targets.weight is None or alike(targets.weight))
        batch = {"features": features, **targets._asdict()}
        count = len(features)
        for name, rows in batch.items():
            if rows is None and name in self._arrays:
                kept = self._arrays[name]
                rows = kept.new_ones((count, *kept.shape[1:]))
            if rows is not None:
                self._room(name, rows, count)[self._rows : self._rows + count] = rows
        self._rows += count

    def _room(self, name: str, rows: Tensor, count: int) -> Tensor:
        """The array of that name with room for `count` more rows, and for their precision."""
        array = self._arrays.get(name)
        needed = self._rows + count
        dtype = self._storage.dtype if name == "features" else None
        dtype = dtype or rows.dtype
        if array is not None:
            dtype = torch.promote_types(dtype, array.dtype)
            if len(array) >= needed and dtype == array.dtype:
                return array
        length = max(needed, self._storage.capacity, 0 if array is None else 2 * len(array))
        # Rows before the first mask or weight of an epoch had none: all observed, weight 1.
        grown = torch.ones(
            (length, *rows.shape[1:]),
            dtype=dtype,
            device=self._storage.device or rows.device,
        )
        if array is not None:
            grown[: self._rows] = array[: self._rows]
        self._arrays = {**self._arrays, name: grown}  # a snapshot keeps its own mapping
        return grown

    def chunks(self, size: int = 4096) -> Iterator[tuple[Tensor, Targets]]:
        """Features [n, d] and targets on the head's device, at most `size` rows at a time."""
        device = self.head.weight.device
        for rows in slices(self._rows, size):
            part = {name: array[rows].to(device) for name, array in self._arrays.items()}
            weight = part.get("weight")
            if self.share != 1.0:
                dtype = linalg.head_dtype(device)  # that of the features may round it
                if weight is None:
                    weight = torch.ones_like(part["values"], dtype=dtype)
                weight = weight.to(dtype) * self.share
            if weight is not None and self._common:
                weight = weight[:, :1].expand_as(weight)
            yield part["features"], Parsed(part["values"], part.get("mask"), weight)

    def part(self, head: Head, rows: slice) -> Self:
        """The same features with the targets of some tasks, for a head of those; nothing copied."""
        own = self.for_head(head)
        own._arrays = {
            name: array if name == "features" else array[:, rows]
            for name, array in self._arrays.items()
        }
        return own

    def all(self) -> tuple[Tensor, Targets]:
        """All features [N, d] and targets at once."""
        return next(self.chunks(self._rows))

    def scaled(self, factor: float) -> Self:
        """The same examples, not copied, with all weights times `factor`."""
        other = copy(self)
        other.share = self.share * factor
        return other

    def to(self, device: torch.device) -> None:
        """Move the examples, unless a device for them was chosen."""
        if self._storage.device is None:
            self._arrays = {name: array.to(device) for name, array in self._arrays.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The examples."""
        return {name: saved(array[: self._rows]) for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved examples.

        Raises:
            StateError: if they are those of another head or way to keep them.
            NonFiniteError: if features or targets are not finite.
        """
        rows = self._checked(state) if state else {}
        self._arrays, self._rows = {}, 0
        for name, array in rows.items():
            self._room(name, array, len(array))[: len(array)] = array
        self._rows = len(rows["features"]) if rows else 0
        weight = rows.get("weight")
        self._common = weight is None or bool((weight == weight[:, :1]).all())

    def _checked(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        head = self.head
        count = len(state["features"]) if "features" in state else 0
        wanted = dict.fromkeys(("values", "mask", "weight"), (count, head.tasks))
        wanted["features"] = count, head.in_features
        floating = {"real": (True,), "class": (False,)}.get(head.target_kind, (True, False))
        if not (
            {"features", "values"} <= state.keys() <= wanted.keys()
            and all(array.shape == wanted[name] for name, array in state.items())
            and state["features"].is_floating_point()
            and state["values"].is_floating_point() in floating
            and head.valid(Targets(state["values"], state.get("mask")))
            and ("mask" not in state or state["mask"].dtype == torch.bool)
        ):
            raise StateError(
                f"head {head.site!r} has {head.in_features} features and {head.tasks} tasks; "
                f"the saved statistics ({ {k: list(v.shape) for k, v in state.items()} }) are of "
                "another head or another way to keep examples; make the engine as saved"
            )
        for name, array in state.items():
            if not array.isfinite().all():
                raise NonFiniteError(
                    f"head {head.site!r}: the saved {name} of examples are not finite; load an "
                    "earlier state"
                )
        return {name: array.to(head.weight.device) for name, array in state.items()}


class ExamplesOrSums(Examples):
    """Those of the second-order schemes: examples, or a sum of expansions once they are too many.

    A posterior moves examples to the head's device a part at a time. Once they exceed
    `Storage.memory` they are replaced by the sum of their quadratic expansions at the weights of
    that moment, to which later batches add theirs, each at the weights of its own.
    """

    _scheme: SecondOrder

    def __init__(self, head: Head, storage: Storage, scheme: SecondOrder) -> None:
        super().__init__(head, storage, scheme)
        self._sums: ExpansionSums | None = None

    def __bool__(self) -> bool:
        return super().__bool__() or bool(self._sums)

    def labelled(self) -> Tensor | None:
        """Those with a target of some weight."""
        return super().labelled() if self._sums is None else self._sums.labelled()

    def holds(self, features: Tensor) -> Tensor | None:
        return super().holds(features) if self._sums is None else None

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Append a batch, or add its expansion."""
        if self._sums is None:
            super().add(features, targets, validity)
            memory, arrays = self._storage.memory, self._arrays.values()
            each = sum(array[:1].numel() * array.element_size() for array in arrays)
            if memory is not None and self._rows * each > memory >= 2 * self._bytes_of_sums():
                sums = ExpansionSums(self.head, self._scheme)
                for some in self.chunks():
                    sums.add(*some)
                self._sums, self._arrays, self._rows = sums, {}, 0
            return
        sums = copy(self._sums)  # a snapshot of these statistics keeps its own
        sums.add(features, targets, validity)
        self._sums = sums

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
            sums = self._sums if self.share == 1.0 else self._sums.scaled(self.share)
            return sums.for_head(self.head).posterior(prior, start=start, generator=generator)
        made = self._scheme.for_epoch().infer_chunks(self.head, _Again(self), prior)
        return with_noise(self.head, made, self.chunks(), self.share)

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

    def __init__(self, kept: ExamplesOrSums) -> None:
        self._kept = kept

    def __iter__(self) -> Iterator[Chunk]:
        for features, targets in self._kept.chunks():
            yield chunk_of(self._kept.head, features, targets)
