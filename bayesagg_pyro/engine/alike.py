"""Whether processes hold what they must hold alike: engine, state, backbone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.engine import saving
from bayesagg_pyro.engine.peers import Peers
from bayesagg_pyro.engine.streams import streams
from bayesagg_pyro.errors import StateError

if TYPE_CHECKING:
    from bayesagg_pyro.engine.calls import Calls

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def join(engine: Calls, peers: Peers) -> None:
    """Begin from one state: the first process's weights, and streams that are alike in all.

    Raises:
        StateError: naming what the engines differ in.
    """
    _check_made_alike(engine, peers)
    device = next(engine.heads.parameters()).device
    number = torch.randint(2**62, (1,)).to(device)
    peers.broadcast([number])
    own = streams(torch.Generator(device).manual_seed(int(number)), list(engine._slots))
    for name, slot in engine._slots.items():
        if slot.generator is None:
            slot.draw_from(own[name])
    state = {k: v for k, v in saving.state(engine).items() if k != "generator"}
    check_states(state, peers, device)
    peers.broadcast([*engine.heads.parameters(), *engine.heads.buffers()])


def _check_made_alike(engine: Calls, peers: Peers) -> None:
    each = engine._slots.values()
    parts: dict[str, Any] = {
        "heads": [(one.name, one.head, _tensors(one.head)) for one in each],
        "inference": [one.scheme for one in each],
        "estimator": [one.estimators[one.name] for one in each],
        "prior": [one.policy for one in each],
        "aggregation": engine.aggregation,
        "reduction": engine.reduction,
        "working_memory": engine.working_memory,
        "feature_axis": engine.feature_axis,
    }
    words = {what: re.sub(r" at 0x\w+", "", repr(part)) for what, part in parts.items()}
    found = peers.objects(words)
    for what in words:
        told = [one.get(what) for one in found]
        if len(set(told)) > 1:
            raise StateError(
                f"the processes' engines differ in {what}: "
                + "; ".join(f"process {rank}: {one}" for rank, one in enumerate(told))
                + ". Make the same engine in all of them"
            )


def _tensors(head: nn.Module) -> list[tuple[list[int], torch.dtype]]:
    return [(list(one.shape), one.dtype) for one in (*head.parameters(), *head.buffers())]


def check_states(state: Mapping[str, Tensor], peers: Peers, device: torch.device) -> None:
    """Hold all processes to the same tensors.

    Args:
        state: {name: tensor}.
        peers: who compares.
        device: where the group exchanges.

    Raises:
        StateError: naming an entry that differs.
    """
    found = [(k, tuple(v.shape), int(_checksum(v))) for k, v in sorted(state.items())]
    if len({row[0] for row in peers.numbers([digest(found)], device)}) == 1:
        return
    others = [set(one) for one in peers.objects(found)]
    (name, *_), *_ = sorted(set.union(*others) - set.intersection(*others))
    raise StateError(
        f"the processes begin from different states, for one in {name!r}: load the same "
        "checkpoint in all of them, and give them generators of the same seed"
    )


def check_backbones(
    sums: Sequence[Tensor], counts: Sequence[int], peers: Peers, device: torch.device
) -> None:
    """Refuse backbones that have gone their own ways.

    Args:
        sums: `checksums` of this process; empty where nothing is to be compared.
        counts: how many each process has.
        peers: who compares.
        device: where the group exchanges.

    Raises:
        StateError: with the remedies.
    """
    if not sums or len(set(counts)) > 1:
        return  # branches that one batch takes and another does not
    found = peers.numbers([int(one) for one in sums], device)
    differing = sum(len(set(values)) > 1 for values in zip(*found, strict=True))
    if 2 * differing > len(sums):  # a few may be each process's own by design
        raise StateError(
            f"{differing} of {len(sums)} parameters of the backbone differ between the "
            "processes: its gradients are not averaged. Wrap it in DistributedDataParallel or "
            "fully_shard before it makes features, or make the engine with distributed=False"
        )


def checksums(attached: Sequence[Tensor]) -> list[Tensor]:
    """One number for each parameter among these, and those that their graph leads to, [] int64.

    They are sums of the bits, which come out the same in any order. What is sharded, or has been
    freed since the forward pass, is left out: processes hold different parts of that.
    """
    return [
        _checksum(leaf)
        for leaf in _leaves(attached)
        if type(leaf) is nn.Parameter and leaf.untyped_storage().size()
    ]


def _checksum(tensor: Tensor) -> Tensor:
    """Sum of the bits, [] int64."""
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.view(_INTEGERS.get(tensor.element_size(), torch.uint8)).sum(dtype=torch.int64)


def _leaves(attached: Sequence[Tensor]) -> list[Tensor]:
    """Tensors at the ends of the graph, in an order that the graph alone decides."""
    found = [one for one in attached if one.grad_fn is None]
    waiting: list[Any] = [one.grad_fn for one in attached]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(one for one, _ in node.next_functions)
    return found


def digest(value: Any) -> int:
    """A number of 56 bits that stands for a value's description."""
    found = hashlib.blake2b(repr(value).encode(), digest_size=7)
    return int.from_bytes(found.digest(), "little")
