"""The processes of a group of torch, and what they tell each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from bayesagg_pyro.errors import SettingError, StateError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Peers:
    """This process and those that it shares every batch with.

    Args:
        distributed: True for torch's default group, where there is one; a group; False keeps each
            process to itself.

    Attributes:
        wanted: whether there may be others.
        warned: whether the user was told that a launcher's processes are not connected.

    Raises:
        SettingError: for anything else.
    """

    def __init__(self, distributed: bool | ProcessGroup) -> None:
        known = isinstance(distributed, bool) or (
            dist.is_available() and isinstance(distributed, dist.ProcessGroup)
        )
        if not known:
            raise SettingError(
                "distributed must be True, False or a torch.distributed.ProcessGroup, not "
                f"{distributed!r}"
            )
        self.wanted = distributed is not False
        self._group = None if isinstance(distributed, bool) else distributed
        self.warned = False

    @property
    def count(self) -> int:
        """How many share each batch."""
        there = self.wanted and dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self._group) if there else 1

    @property
    def rank(self) -> int:
        """This one's place among them."""
        return dist.get_rank(self._group)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the first one's values.

        Raises:
            StateError: if they are sharded.
        """
        if self.count == 1:
            return
        if any(hasattr(tensor, "full_tensor") for tensor in tensors):
            raise StateError(
                "the heads are cut up between the processes, each of which needs them whole: call "
                "fully_shard or parallelize_module on the backbone alone"
            )
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        with exchange(), torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.data, first, group=self._group)

    def numbers(self, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Everybody's numbers, of which all have as many.

        Args:
            own: this process's.
            device: where the group exchanges.
        """
        sent = torch.tensor(own, dtype=torch.int64, device=device)
        found = [torch.empty_like(sent) for _ in range(self.count)]
        with exchange():
            dist.all_gather(found, sent, group=self._group)
            table: list[list[int]] = torch.stack(found).tolist()  # waits, and may fail so late
        return table

    def tensors(self, own: Tensor) -> list[Tensor]:
        """Everybody's tensor, all of one shape."""
        found = [torch.empty_like(own) for _ in range(self.count)]
        with exchange():
            dist.all_gather(found, own, group=self._group)
        return found

    def objects(self, own: Any) -> list[Any]:
        """Everybody's object."""
        found = [None] * self.count
        with exchange():
            dist.all_gather_object(found, own, group=self._group)
        return found

    def all_set(self, flag: Tensor) -> Tensor:
        """Whether a flag is set in all processes, [] bool."""
        number = flag.to(torch.int32)
        with exchange():
            dist.all_reduce(number, dist.ReduceOp.MIN, group=self._group)
        return number.bool()


@contextmanager
def exchange() -> Iterator[None]:
    """An exchange, of the engine's own or of the backbone's gradients.

    Raises:
        StateError: if another process is gone or late, saying what to do.
    """
    try:
        yield
    except RuntimeError as error:
        backend = re.search(r"\b(gloo|nccl|ucc|mpi)\b", str(error), re.IGNORECASE)
        if not (backend or isinstance(error, dist.DistError)):
            raise
        raise StateError(
            "the processes could not exchange what they must: one has ended, or did not come "
            "within the group's timeout (the first error of all processes says why); end them all, "
            f"and resume from the last checkpoint. {error}"
        ) from error
