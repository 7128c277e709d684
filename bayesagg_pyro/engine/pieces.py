"""A big batch in pieces: features of all without a graph, then one piece after the other with one.

The heads see the whole batch, the backbone keeps the graph of one piece. What is cached in between
is the gradient of the features, as for contrastive losses in https://arxiv.org/abs/2101.06983.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesagg_pyro.engine.reading import (
    Features,
    GivenTargets,
    Pair,
    check_grad_mode,
    check_graph,
    check_pair,
)
from bayesagg_pyro.engine.transaction import Undo, of_generators
from bayesagg_pyro.errors import DtypeError, SettingError, StateError
from bayesagg_pyro.validity import Validity

#: How far features may be apart in the two passes, relative to their size: kernels in half
#: precision may add in another order, but another draw of a dropout is further away.
_TOLERANCE = 0.05
#: Entries of buffers that are put back whether torch has counted that they changed or not: of those
#: of batch norm it does not.
_SMALL = 2**16


class _Buffer(NamedTuple):
    """A buffer of a module, and what it was; a pass may write to it or put another in its place."""

    owner: dict[str, Tensor | None]
    name: str
    tensor: Tensor
    value: Tensor
    version: int

    @property
    def changed(self) -> bool:
        """Whether it may be another now."""
        same = self.owner.get(self.name) is self.tensor and self.tensor._version == self.version
        return not same or self.tensor.numel() <= _SMALL

    def put_back(self) -> None:
        self.owner[self.name] = self.tensor
        self.tensor.copy_(self.value)


@dataclass(frozen=True)
class _Passed:
    """What the first pass over a piece leaves for the second.

    Attributes:
        inputs: of the backbone.
        leaves: each tensor of the features, off the graph.
        drawn: puts back the random states.
        changed: buffers that the pass may have changed, as they were before.
    """

    inputs: Any
    leaves: list[Tensor]
    drawn: Undo
    changed: list[_Buffer]

    def undo(self) -> None:
        """Put back what the backbone was before that pass."""
        self.drawn()
        with torch.no_grad():
            for buffer in self.changed:
                buffer.put_back()


class Pieces:
    """The pieces of a batch on their way through a backbone, twice.

    Args:
        backbone: gives features of inputs.

    Attributes:
        parameters: of the backbone that learn, if it is a module.
    """

    def __init__(self, backbone: Callable[..., Features]) -> None:
        self._backbone = backbone
        owner = getattr(backbone, "__self__", backbone)  # of a method
        module = owner if isinstance(owner, nn.Module) else nn.Module()
        self._owners = [part._buffers for part in module.modules()]
        self.parameters = [weight for weight in module.parameters() if weight.requires_grad]
        self._autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]
        self._passed: list[_Passed] = []

    def first(self, pieces: Iterable[tuple[Any, GivenTargets]]) -> list[Pair]:
        """The features of each piece, as leaves that take a gradient, and its targets.

        Args:
            pieces: pairs of inputs and {name: targets}.

        Raises:
            DtypeError: for what is no pair, and features that are no tensors.
            SettingError: if there is none.
            StateError: where torch takes no gradients.
        """
        check_grad_mode()
        found: list[Pair] = []
        for piece in pieces:
            inputs, targets = check_pair(piece)
            before = self._buffers()
            passed, alone = _Passed(inputs, [], of_generators([None]), before), bool(self._passed)
            self._passed.append(passed)
            with torch.no_grad(), self._pass(alone=alone):
                features = self._features(inputs)
            leaves = {id(t): t.detach().requires_grad_() for t in _tensors(features)}
            passed.leaves.extend(leaves.values())
            passed.changed[:] = [one for one in before if one.changed]
            if isinstance(features, Mapping):
                found.append(({name: leaves[id(t)] for name, t in features.items()}, targets))
            else:
                found.append((leaves[id(features)], targets))
        if not found:
            raise SettingError("there are no pieces; give at least one pair (inputs, targets)")
        return found

    def second(self, validity: Validity) -> None:
        """Propagate the gradients of the leaves through passes like the first.

        Buffers and random states are for each piece what they were then, and afterwards what they
        were before this call.

        Args:
            validity: of the batch, which is bad if features are others than before.

        Raises:
            StateError: if they are, or need no gradient.
        """
        written = {(id(one.owner), one.name) for piece in self._passed for one in piece.changed}
        now = [one for one in self._buffers() if (id(one.owner), one.name) in written]
        after = _Passed(None, [], of_generators([None]), now)
        try:
            for piece in self._passed:
                piece.undo()
                with torch.enable_grad(), self._pass(alone=piece is not self._passed[-1]):
                    features = _tensors(self._features(piece.inputs))
                    _require_same(features, piece.leaves, validity)
                    pairs = [
                        (tensor, validity.keep(leaf.grad, 0.0))
                        for tensor, leaf in zip(features, piece.leaves, strict=True)
                        if tensor.requires_grad and leaf.grad is not None
                    ]
                    torch.autograd.backward([t for t, _ in pairs], [grad for _, grad in pairs])
        finally:
            after.undo()

    def undo(self) -> None:
        """Put buffers and random states back to what they were before the first pass."""
        for piece in reversed(self._passed):
            piece.undo()

    def _buffers(self) -> list[_Buffer]:
        return [
            _Buffer(owner, name, buffer, buffer.clone(), buffer._version)
            for owner in self._owners
            for name, buffer in owner.items()
            if buffer is not None
        ]

    def _features(self, inputs: Any) -> Features:
        if type(inputs) in (tuple, list):  # and no packed sequence, which is a tuple too
            return self._backbone(*inputs)
        if isinstance(inputs, Mapping):
            return self._backbone(**inputs)
        return self._backbone(inputs)

    @contextmanager
    def _pass(self, *, alone: bool) -> Iterator[None]:
        """A pass in the caller's precision; `alone` if processes are not to meet in it.

        Autocast does not keep what it has cast from one pass for the next: weights cast without
        gradients would never get any.
        """
        with ExitStack() as stack:
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
            if alone:
                stack.enter_context(getattr(self._backbone, "no_sync", nullcontext)())
            yield


def _tensors(features: Features) -> list[Tensor]:
    """Each tensor of features once.

    Raises:
        DtypeError: for what is no tensor.
    """
    values = list(features.values()) if isinstance(features, Mapping) else [features]
    for value in values:
        if not isinstance(value, Tensor):
            raise DtypeError(f"the backbone must give features, not {type(value).__name__}")
    return list({id(value): value for value in values}.values())


def _require_same(now: Sequence[Tensor], then: Sequence[Tensor], validity: Validity) -> None:
    """Hold features to those of the first pass; of padding there may be no number."""
    if not any(tensor.requires_grad for tensor in now):
        check_graph(now[0])
    found = []
    for a, b in zip(now, then, strict=True):
        wide = torch.promote_types(a.dtype, torch.float32)
        a, b = a.detach().to(wide), b.detach().to(wide)
        found.append((a - b).nan_to_num().norm() <= _TOLERANCE * b.nan_to_num().norm())
    same = torch.stack(found).all()
    if not validity.now:
        validity.require(lambda: same)
        validity.note()
    elif not same:
        raise StateError(
            "the backbone gives other features in the second pass over a piece than in the first: "
            "it draws from a generator other than torch's global ones, or changes something that "
            "is no buffer of the module given as backbone"
        )
