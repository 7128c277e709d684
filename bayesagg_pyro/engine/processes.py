"""Several processes with a share of the batch each: the head stages see the whole batch in each.

Features (B × d numbers) and targets are gathered, so every process computes the same posteriors,
moments, directions and gradients of heads, and every scheme works as in one process. Each hands its
own rows of the direction to its backbone, times the number of processes, because whatever averages
the backbone's gradients (DistributedDataParallel) divides by it.

Before anything is gathered the processes tell each other what they are about to do, so that none
waits for one that failed, and calls that do not belong together are refused by all.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bayesagg_pyro.engine import shares
from bayesagg_pyro.engine.batch import Batch, Group
from bayesagg_pyro.engine.replicas import checksum, checksums
from bayesagg_pyro.errors import SettingError, ShapeError, StateError
from bayesagg_pyro.validity import Validity

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["STEPS", "Processes", "exchange"]

_FAILED, _NOTHING, _BATCH = range(3)
#: Calls between which the backbone changes.
STEPS = ("backward", "backward_in_pieces")


class _Told(NamedTuple):
    """What a process tells before anything else, as integers."""

    status: int
    joined: int
    call: int  # digest of what it calls, and in which mode
    formats: int  # digest of what its share is made of
    rows: int
    parameters: int  # of the backbone, where they are to be compared
    watched: int


class Processes:
    """Those that share every batch.

    Args:
        distributed: True for torch's default group, where there is one; a group; False keeps each
            process to itself.

    Attributes:
        joined: whether all have begun from one state.

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
        self._wanted = distributed is not False
        self._group = None if isinstance(distributed, bool) else distributed
        self.joined = False
        self._steps = 0
        self._apart = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        return Processes(self._wanted if self._group is None else self._group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "joined": False}

    @property
    def count(self) -> int:
        """How many share each batch."""
        there = self._wanted and dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self._group) if there else 1

    def warn_if_apart(self) -> None:
        """Once, where a launcher has started several processes that no group connects.

        Warns:
            UserWarning: with the remedies.
        """
        started = os.environ.get("WORLD_SIZE", "")
        connected = dist.is_available() and dist.is_initialized()
        if self._apart or connected or not self._wanted or started in ("", "1"):
            return
        self._apart = True
        warnings.warn(
            f"{started} processes were started (WORLD_SIZE), but there is no process group: each "
            "takes steps on its own share, with priors and heads of its own. Call "
            "torch.distributed.init_process_group() before the first step; where that is meant, "
            "give BayesAgg(..., distributed=False)",
            stacklevel=2,
        )

    @property
    def rank(self) -> int:
        """This one's place among them."""
        return dist.get_rank(self._group)

    # -- one state -------------------------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor]) -> None:
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

    def check_alike(self, parts: Mapping[str, str]) -> None:
        """Hold all processes to engines that are made alike.

        Args:
            parts: {what: its description}.

        Raises:
            StateError: naming what differs.
        """
        found = self._objects(dict(parts))
        for what in parts:
            told = [one.get(what) for one in found]
            if len(set(told)) > 1:
                raise StateError(
                    f"the processes' engines differ in {what}: "
                    + "; ".join(f"process {rank}: {one}" for rank, one in enumerate(told))
                    + ". Make the same engine in all of them"
                )

    def check_same(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Hold all processes to the same tensors.

        Args:
            state: {name: tensor}.
            device: where the group exchanges.

        Raises:
            StateError: naming an entry that differs.
        """
        found = [(k, tuple(v.shape), int(checksum(v))) for k, v in sorted(state.items())]
        if len({row[0] for row in self._exchanged([_digest(found)], device)}) == 1:
            return
        others = [set(one) for one in self._objects(found)]
        (name, *_), *_ = sorted(set.union(*others) - set.intersection(*others))
        raise StateError(
            f"the processes begin from different states, for one in {name!r}: load the same "
            "checkpoint in all of them, and give them generators of the same seed"
        )

    # -- calls -----------------------------------------------------------------------------------

    def whole(
        self,
        call: tuple[str, ...],
        share: Callable[[], Batch | None],
        *,
        parameters: Sequence[Tensor],
        nothing: Callable[[], Validity],
        join: Callable[[], None],
        device: torch.device,
        watched: bool = False,
    ) -> Batch | None:
        """The batch of all processes, in the order of their ranks.

        Args:
            call: what is called, with all that must be the same in every process.
            share: this process's part, checked; None when it has no more. Others go on without.
            parameters: of the backbone, where the features' graph does not lead to them.
            nothing: validity of a part that is not there.
            join: makes the state the first process's.
            device: where the group exchanges.
            watched: whether this process keeps what passes between the stages, which is then made
                as a whole in all: what is made in pieces may draw in another order.

        Returns:
            None when no process has a share.

        Raises:
            Exception: what `share` raises.
            StateError: if that of another process does, if calls or shares do not fit each other,
                or another process is gone.
            ShapeError: if there is no example in any share.
        """
        mine, refused = None, None
        try:
            mine = share()
        except Exception as error:  # the others wait to hear of it, whatever it is
            refused = error
        compared = mine is not None and call[0] in STEPS and self._steps & (self._steps + 1) == 0
        given = [] if mine is None else [g.given for g in mine.groups if g.given is not None]
        sums = checksums([*given, *parameters]) if compared else []
        status = _FAILED if refused is not None else _NOTHING if mine is None else _BATCH
        formats = [] if mine is None else shares.formats(mine)
        rows = sum(count for count, _ in formats)
        made_as = [one for _, one in formats]
        own = _digest(call), _digest(made_as), rows, len(sums), watched
        told = _Told(status, self.joined, *own)
        table = [_Told(*row) for row in self._exchanged(list(told), device)]
        if refused is not None:
            raise refused
        self._check(call, table)
        if not all(one.joined for one in table):
            join()
            self.joined = True
        self._steps += call[0] in STEPS
        if all(one.status == _NOTHING for one in table):
            return None
        self._compare(sums, table, device)
        if not any(one.rows for one in table):
            raise ShapeError("every process's share of the batch is empty; leave it out")
        if len({one.formats for one in table}) > 1:
            made_as = shares.common([one for one in self._objects(formats) if one])
        sizes = [[one.rows] for one in table]
        if len(made_as) > 1:
            sizes = self._exchanged([count for count, _ in formats] or [0] * len(made_as), device)
        validity = nothing() if mine is None else mine.validity
        validity.agree(self._all)
        groups = [None] * len(made_as) if mine is None else mine.groups
        columns = zip(*sizes, strict=True)
        whole = [
            self._gathered(group, one, counts, device)
            for group, one, counts in zip(groups, made_as, columns, strict=True)
        ]
        if self._steps == 1 and all(same for _, same in whole):
            warnings.warn(
                "the processes' shares of the batch are the same, so that each example counts "
                f"{self.count} times: give each its own (DistributedSampler), or make the engine "
                "with distributed=False, or the group that shares out the data",
                stacklevel=4,
            )
        groups = tuple(group for group, _ in whole)
        return Batch(groups, validity, self.count, any(one.watched for one in table))

    def _check(self, call: tuple[str, ...], table: list[_Told]) -> None:
        failed = [rank for rank, one in enumerate(table) if one.status == _FAILED]
        if failed:
            raise StateError(
                f"process {failed[0]} refused its share of the batch or failed on the way to it "
                "(its own error says why); no process has taken the step"
            )
        if len({one.call for one in table}) > 1:
            told = enumerate(self._objects(call))
            calls = "; ".join(f"process {rank}: {', '.join(one)}" for rank, one in told)
            raise StateError(
                f"the processes are not at the same call ({calls}); each must make the same ones, "
                "as often as the others and in the same mode. One without examples gives a share "
                "without rows, features[:0]"
            )

    def _compare(self, sums: list[Tensor], table: list[_Told], device: torch.device) -> None:
        """Refuse backbones that have gone their own ways."""
        if not sums or len({one.parameters for one in table}) > 1:
            return  # branches that one batch takes and another does not
        found = self._exchanged([int(one) for one in sums], device)
        differing = sum(len(set(values)) > 1 for values in zip(*found, strict=True))
        if 2 * differing > len(sums):  # a few may be each process's own by design
            raise StateError(
                f"{differing} of {len(sums)} parameters of the backbone differ between the "
                "processes: its gradients are not averaged. Wrap it in DistributedDataParallel or "
                "fully_shard before it makes features, or make the engine with distributed=False"
            )

    def _gathered(
        self,
        mine: Group | None,
        made_as: shares.Format,
        sizes: Sequence[int],
        device: torch.device,
    ) -> tuple[Group, bool]:
        """The examples of all, and whether all gave the same."""
        padded = torch.zeros((max(sizes), shares.width(made_as)), dtype=torch.uint8, device=device)
        if mine is not None and len(mine.features):
            padded[: len(mine.features)] = shares.pack(mine, made_as)
        found = [torch.empty_like(padded) for _ in sizes]
        with exchange():
            dist.all_gather(found, padded, group=self._group)
        same = self._steps == 1 and all(torch.equal(found[0], other) for other in found[1:])
        whole = torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])
        features, targets = shares.unpack(whole, made_as)
        start = sum(sizes[: self.rank])
        whose = slice(start, start + sizes[self.rank])
        kept, given = (None, None) if mine is None else (mine.kept, mine.given)
        return Group(features, targets, whose, kept, given), same

    # -- exchanges -------------------------------------------------------------------------------

    def _exchanged(self, numbers: list[int], device: torch.device) -> list[list[int]]:
        """Everybody's numbers, of which all have as many."""
        own = torch.tensor(numbers, dtype=torch.int64, device=device)
        found = [torch.empty_like(own) for _ in range(self.count)]
        with exchange():
            dist.all_gather(found, own, group=self._group)
            table: list[list[int]] = torch.stack(found).tolist()
        return table

    def _objects(self, own: Any) -> list[Any]:
        """Everybody's object."""
        found = [None] * self.count
        with exchange():
            dist.all_gather_object(found, own, group=self._group)
        return found

    def _all(self, flag: Tensor) -> Tensor:
        """Whether a flag is set in all processes."""
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


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "little")
