"""Several processes with a share of the batch each: the head stages see the whole batch in each.

Features (B × d numbers) and targets are gathered, so every process computes the same posteriors,
moments, directions and gradients of heads, and every scheme works as in one process. Each hands its
own rows of the direction to its backbone, times the number of processes, because whatever averages
the backbone's gradients (DistributedDataParallel) divides by it.

Before anything is gathered the processes tell each other what they are about to do, so that none
waits for one that failed, and calls that do not belong together are refused by all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.engine import shares
from bayesagg_pyro.engine.alike import check_backbones, checksums, digest
from bayesagg_pyro.engine.batch import Batch, Group
from bayesagg_pyro.engine.peers import Peers
from bayesagg_pyro.errors import ShapeError, StateError
from bayesagg_pyro.validity import Validity

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

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


class Processes(Peers):
    """Those that share every batch; arguments as for `Peers`.

    Attributes:
        joined: whether all have begun from one state.
    """

    def __init__(self, distributed: bool | ProcessGroup) -> None:
        super().__init__(distributed)
        self.joined = False
        self._steps = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        return Processes(self.wanted if self._group is None else self._group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "joined": False}

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
        own = digest(call), digest(made_as), rows, len(sums), watched
        told = _Told(status, self.joined, *own)
        table = [_Told(*row) for row in self.numbers(told, device)]
        if refused is not None:
            raise refused
        self._check(call, table)
        if not all(one.joined for one in table):
            join()
            self.joined = True
        self._steps += call[0] in STEPS
        if all(one.status == _NOTHING for one in table):
            return None
        check_backbones(sums, [one.parameters for one in table], self, device)
        if not any(one.rows for one in table):
            raise ShapeError("every process's share of the batch is empty; leave it out")
        if len({one.formats for one in table}) > 1:
            made_as = shares.common([one for one in self.objects(formats) if one])
        sizes = [[one.rows] for one in table]
        if len(made_as) > 1:
            sizes = self.numbers([count for count, _ in formats] or [0] * len(made_as), device)
        validity = nothing() if mine is None else mine.validity
        validity.agree(self.all_set)
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
            told = enumerate(self.objects(call))
            calls = "; ".join(f"process {rank}: {', '.join(one)}" for rank, one in told)
            raise StateError(
                f"the processes are not at the same call ({calls}); each must make the same ones, "
                "as often as the others and in the same mode. One without examples gives a share "
                "without rows, features[:0]"
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
        found = self.tensors(padded)
        same = self._steps == 1 and all(torch.equal(found[0], other) for other in found[1:])
        whole = torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])
        features, targets = shares.unpack(whole, made_as)
        start = sum(sizes[: self.rank])
        whose = slice(start, start + sizes[self.rank])
        kept, given = (None, None) if mine is None else (mine.kept, mine.given)
        return Group(features, targets, whose, kept, given), same
