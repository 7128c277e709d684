"""A CUDA graph played on the CPU: kernels on fixed addresses, without the Python between them.

While a function is captured every operation below autograd is written down with the tensors it
read and wrote. A replay runs the same operations on the same tensors and puts each result where
the first one lay. Whatever a step does in Python only (a new tensor bound to a name, a learning
rate read from a group, a branch) stays as it was at the capture, as it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Reads on the host that the CPU's own checks make; what they decided is kept.
_READS = ("aten._local_scalar_dense.default", "aten.is_nonzero.default")


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if str(func) not in _READS:
            self.calls.append((func, args, kwargs or {}, out))
        return out


class TapeGraph:
    """What was captured; the capture ran it once already, which stands for the first replay."""

    def __init__(self, calls: list[tuple[Any, Any, Any, Any]]) -> None:
        self._calls, self._ran = calls, True
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        if self._ran:
            self._ran = False
            return
        with torch.no_grad():
            for func, args, kwargs, before in self._calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        assert old.shape == new.shape, f"{func}: the shape depends on values"
                        old.copy_(new)


class TapeBackend:
    """A backend for :class:`experiments.training.stepping.Stepper`."""

    warm_up = 2

    def __init__(self) -> None:
        self.graphs: list[TapeGraph] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        with _Tape() as tape:
            function()
        self.graphs.append(TapeGraph(tape.calls))
        return self.graphs[-1].replay
