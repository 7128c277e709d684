"""What a scheme keeps of the training data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.errors import SettingError, UnsupportedError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self


class Statistics(ABC):
    """What a scheme stores of the training batches, to make a full-data posterior from them.

    `copy.copy` of one must be a snapshot that a later `add` or `scale_` leaves alone: a call that
    fails puts it back.

    Args:
        head: whose batches they are.
    """

    #: Whether what was collected can be faded (`scale_`), as sums can.
    decays: ClassVar[bool] = False
    #: How much of each example's log-likelihood counts, as `scaled` left it.
    share: float = 1.0

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

    def labelled(self) -> Tensor | None:
        """Which tasks have a target that counts among what was added, [blocks] bool.

        None where that is not known, or all have; looks at values where there are many.
        """
        return None

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
    """How the examples of an epoch are stored.

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
