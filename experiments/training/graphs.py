"""Capturing a step once and replaying it: CUDA graphs, their twin without capture, and a compiler.

A captured step is a fixed list of kernels on fixed addresses: everything it reads must lie where it
lay at the capture, nothing may be looked at on the host, and no shape may depend on a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

Call = Callable[[], None]


class TwinBackend:
    """A way to capture; this one goes it on any device, with every replay run from Python."""

    warm_up = 2
    """How often a function runs from Python before it is captured."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context around everything that is captured, replayed, or run to warm up."""
        yield

    def capture(self, function: Call) -> Call:
        """What runs ``function`` again on what its buffers hold then; it is not run here."""
        return function


class CudaBackend(TwinBackend):
    """CUDA graphs on a stream of their own.

    Warm-up and capture share the stream, since autograd runs a gradient on the stream of the
    forward pass and a capture must not wait for another one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Work on the stream, ordered with what comes before and after."""
        outer = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def capture(self, function: Call) -> Call:
        """Record the kernels that ``function`` launches."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            function()
        return graph.replay


class CompileBackend(TwinBackend):
    """The twin with the backbone compiled for its few shapes; outside of training it stays as is.

    Args:
        backbone: The module; it needs a compiler for the device (on a CPU a C++ compiler).
    """

    def __init__(self, backbone: nn.Module) -> None:
        self._backbone = backbone
        self._compiled = torch.compile(backbone.forward, dynamic=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Put the compiled forward pass in place of the module's own."""
        self._backbone.forward = self._compiled
        try:
            yield
        finally:
            del self._backbone.forward
