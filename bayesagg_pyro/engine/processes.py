"""Several processes with a share of the batch each: the head stages see the whole batch in each.

Features (B × d numbers) and targets are gathered, so every process computes the same posteriors,
moments, directions and gradients of heads, and every scheme works as in one process. Each hands its
own rows of the direction to its backbone, times the number of processes, because whatever averages
the backbone's gradients (DistributedDataParallel) divides by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesagg_pyro.engine.batch import Batch, Group
from bayesagg_pyro.errors import BayesAggError, StateError, UnsupportedError
from bayesagg_pyro.targets import Targets

__all__ = ["Processes"]

#: What features and targets can be of.
_DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
_DTYPES += [torch.int16, torch.int8, torch.uint8, torch.bool]


class Processes:
    """The processes of torch's default group, where there is one.

    Args:
        wanted: False keeps each process to itself.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.joined = False

    @property
    def count(self) -> int:
        """How many share each batch."""
        there = self._wanted and dist.is_available() and dist.is_initialized()
        return dist.get_world_size() if there else 1

    def join(self, heads: nn.Module, streams: list[torch.Generator | None]) -> int:
        """Give every process the first one's weights and random states; one number from it."""
        self.joined = True
        device = next(heads.parameters()).device
        with torch.no_grad():
            for tensor in [*heads.parameters(), *heads.buffers()]:
                dist.broadcast(tensor.data, 0)
        for stream in streams:
            if stream is not None:
                state = stream.get_state().to(device)
                dist.broadcast(state, 0)
                stream.set_state(state.cpu())
        number = torch.randint(2**62, (1,)).to(device)
        dist.broadcast(number, 0)
        return int(number)

    def whole(self, device: torch.device, parse: Callable[[], Batch]) -> Batch:
        """The batch of all processes, in the order of their ranks.

        Args:
            device: of the heads.
            parse: checks this process's share.

        Raises:
            BayesAggError: what `parse` raises.
            StateError: if another process refused its share, or shares do not fit each other.
        """
        if self.count == 1:
            return parse()
        try:
            mine: Batch | BayesAggError = parse()
        except BayesAggError as error:
            mine = error
        if isinstance(mine, Batch) and len(mine.groups) > 1:
            mine = UnsupportedError(
                "in several processes all heads must read the same features; pass one tensor, or "
                "make the engine with distributed=False"
            )
        table = _told(device, mine, self.count)
        if not isinstance(mine, Batch):
            raise mine
        refused = [rank for rank, row in enumerate(table) if not row[0]]
        if refused:
            raise StateError(
                f"process {refused[0]} refused its share of the batch (its own error says why); "
                "no process has taken the step"
            )
        if len({row[0] for row in table}) > 1:
            found = [str(_DTYPES[row[0] - 1]) for row in table]
            raise StateError(f"the processes' features are of different dtypes, {found}")
        sizes, rank = [row[1] for row in table], dist.get_rank()
        mine.validity.agree(_all)
        start = sum(sizes[:rank])
        rows = slice(start, start + sizes[rank])
        (own,) = mine.groups
        whole = _gather(own.features, sizes)
        targets = _gather_targets(own.targets, table, sizes)
        return Batch((Group(whole, targets, rows),), mine.validity, self.count)


def _told(device: torch.device, mine: Batch | BayesAggError, count: int) -> list[list[int]]:
    """What each process has: dtype and number of examples, and what comes with each target."""
    if isinstance(mine, Batch):
        (group,) = mine.groups
        row = [1 + _DTYPES.index(group.features.dtype), len(group.features)]
        for values, mask, weight in group.targets.values():
            row += [mask is not None, weight is not None, _DTYPES.index(values.dtype)]
    else:
        row = [0, 0]
    # The length is not known to a process whose targets were refused: two rounds.
    short = [torch.empty(2, dtype=torch.int64, device=device) for _ in range(count)]
    dist.all_gather(short, torch.tensor(row[:2], dtype=torch.int64, device=device))
    table: list[list[int]] = torch.stack(short).tolist()
    if not all(first for first, _ in table):
        return table
    own = torch.tensor(row, dtype=torch.int64, device=device)
    full = [torch.empty_like(own) for _ in range(count)]
    dist.all_gather(full, own)
    found: list[list[int]] = torch.stack(full).tolist()
    return found


def _all(flag: Tensor) -> Tensor:
    """Whether a flag is set in all processes."""
    number = flag.to(torch.int32)
    dist.all_reduce(number, dist.ReduceOp.MIN)
    return number.bool()


def _gather_targets(
    targets: Mapping[str, Targets], table: list[list[int]], sizes: list[int]
) -> dict[str, Targets]:
    found = {}
    for index, (name, own) in enumerate(targets.items()):
        at = 2 + 3 * index
        values, mask, weight = own
        for row in table:
            values = values.to(torch.promote_types(values.dtype, _DTYPES[row[at + 2]]))
        if any(row[at] for row in table) and mask is None:
            mask = torch.ones_like(values, dtype=torch.bool)
        if any(row[at + 1] for row in table):
            one = torch.ones_like(values, dtype=torch.float64)
            weight = one if weight is None else weight.double()
        found[name] = own._replace(
            values=_gather(values, sizes),
            mask=None if mask is None else _gather(mask, sizes),
            weight=None if weight is None else _gather(weight, sizes),
        )
    return found


def _gather(tensor: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all processes one after the other; shares may be of different sizes."""
    sent = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    padded = sent.new_zeros((max(sizes), *sent.shape[1:]))
    padded[: len(sent)] = sent
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    whole = torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])
    return whole.to(tensor.dtype)
