"""What a scheme keeps of the training data: an interface, and the examples as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bayesagg_pyro._pieces import slices
from bayesagg_pyro._settings import integers
from bayesagg_pyro._state import saved
from bayesagg_pyro.errors import NonFiniteError, SettingError, StateError, UnsupportedError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Parsed, Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.inference._scheme import Scheme

__all__ = ["Examples", "Statistics", "Storage"]


class Statistics(ABC):
    """What a scheme keeps of the training batches to make a full-data posterior of them.

    `copy.copy` of one must be a snapshot that a later `add` or `scale_` leaves alone: a call that
    fails puts it back.

    Args:
        head: whose batches they are.
    """

    #: Whether what was collected can be faded (`scale_`), as sums can.
    decays: ClassVar[bool] = False

    def __init__(self, head: Head) -> None:
        self.head = head

    @abstractmethod
    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """The posterior over the head's weights given all batches; arguments as `Scheme.infer`."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether any batch has been added."""

    @abstractmethod
    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Take in a batch.

        Args:
            features: [B, d].
            targets: [B, tasks].
            validity: whether to believe it; a bad batch adds nothing.
        """

    def for_head(self, head: Head) -> Self:
        """The same collection, shared, for a view of its head that has another noise."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.head = head
        return other

    def holds(self, features: Tensor) -> Tensor | None:
        """Whether `add` can keep these features as finite numbers, on their device.

        Asked where validation is deferred; None where whatever is finite can be kept.
        """
        return None

    def scaled(self, factor: float) -> Self:
        """The same collection, every example's log-likelihood times `factor`; a copy.

        Raises:
            UnsupportedError: if a class of your own has no such thing.
        """
        raise UnsupportedError(
            f"{type(self).__name__} cannot be tempered; give it a method scaled(factor)"
        )

    def scale_(self, factor: float | Tensor) -> None:
        """As `scaled`, in place, also by a scalar on the device; where `decays` is set.

        The number 0 empties it.
        """
        raise UnsupportedError(f"{type(self).__name__} cannot be faded")

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move what was collected."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What was collected, as tensors under plain names; copies."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` saved.

        Raises:
            StateError, NonFiniteError: for what this class did not save; nothing changes then.
        """


@dataclass(frozen=True)
class Storage:
    """How to keep what an epoch shows.

    Attributes:
        streaming: keep no examples but the sum of the batches' quadratic expansions, each at the
            weights of its own moment: O(T D²) memory, and a prior that mixes old weights.
        dtype: of kept features; None for theirs. torch.float16 halves the memory; its rounding is
            5e-4 of a feature, and features beyond 65,504 overflow in it.
        device: of kept examples; None for theirs, "cpu" for host memory.
        capacity: examples to allocate room for at once; grown by doubling where it does not do.
        memory: bytes of examples of a head beyond which TaylorGGN and Laplace go over to streaming
            for the rest of the epoch, from the expansion of what there is; None for never. They
            keep examples all the same where the sums would take more than half of that, or the
            policy needs examples (a learned variance, a dtype for its prior).
    """

    streaming: bool = False
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    capacity: int = 0
    memory: int | None = 2**30

    def __post_init__(self) -> None:
        integers(0, capacity=self.capacity)
        if self.memory is not None:
            integers(0, memory=self.memory)
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise SettingError(f"features are kept in a floating dtype, not {self.dtype}")


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
        self._factor = 1.0
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
        return self._scheme.infer(
            self.head, features, targets, prior, start=start, generator=generator
        )

    def __bool__(self) -> bool:
        return self._rows > 0

    def __len__(self) -> int:
        return self._rows

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
                one = torch.ones(targets.values.shape, dtype=features.dtype, device=features.device)
                targets = targets._replace(weight=one)
            features, targets = validity.keep_examples(features, targets, self.head.filler)
        elif (fits := self.holds(features)) is not None and not fits:
            raise NonFiniteError(
                f"head {self.head.site!r}: features of up to {features.abs().max():.3g} overflow "
                f"{self._storage.dtype}, in which Storage(dtype=...) keeps them; choose a wider one"
            )
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
            if self._factor != 1.0:
                if weight is None:
                    weight = torch.ones_like(part["values"], dtype=part["features"].dtype)
                weight = weight * self._factor
            yield part["features"], Parsed(part["values"], part.get("mask"), weight)

    def kept_bytes(self) -> int:
        """What the examples take, without room for more."""
        return self._rows * sum(
            array[:1].numel() * array.element_size() for array in self._arrays.values()
        )

    def part(self, head: Head, rows: slice) -> Self:
        """The same features with the targets of some tasks, for a head of those; nothing copied."""
        own = type(self)(head, self._storage, self._scheme)
        own._rows = self._rows
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
        other._factor = self._factor * factor
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

    def _of_kind(self, values: Tensor) -> bool:
        return values.is_floating_point() == (self.head.target_kind == "real")

    def _checked(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        head, optional = self.head, {"mask", "weight"}
        width = {"features": head.in_features}
        count = len(state["features"]) if "features" in state else 0
        wanted = {
            name: (count, width.get(name, head.tasks)) for name in {"features", "values"} | optional
        }
        if not (
            {"features", "values"} <= state.keys() <= wanted.keys()
            and all(array.shape == wanted[name] for name, array in state.items())
            and state["features"].is_floating_point()
            and (head.target_kind in ("binary", "count") or self._of_kind(state["values"]))
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
