"""Global states of torch: modes that callers may be in, generators that are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

#: Decorates calls that torch.compile makes as they are, between the graphs of what is around them.
#: `torch.compiler.disable` does the same, and imports the compiler (seconds) with this package.
uncompiled = _disable_dynamo


@contextmanager
def plain() -> Iterator[None]:
    """No gradients, no inference mode, no autocast.

    Tensors made under inference mode can never be part of a gradient again, and those made under
    autocast have lost digits.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def seeded(
    generator: torch.Generator | None, device: torch.device, below: int = 2**62
) -> Iterator[None]:
    """Code that draws from torch's global generators, on a seed from `generator`.

    Args:
        generator: gives the seed; the CPU's global one if None.
        device: on which is drawn. Its generator and the CPU's are put back afterwards.
        below: of which number the seed is.
    """
    source = None if generator is None else generator.device
    seed = int(torch.randint(below, (), generator=generator, device=source))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def batched_gradients(
    outputs: Tensor, inputs: Tensor, directions: Tensor, *, retain_graph: bool = False
) -> Tensor:
    """Gradients of outputs along many directions [n, *outputs] at once, [n, *inputs].

    In anomaly mode torch looks for NaN in every gradient, and cannot in a batch of them.
    """
    with torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled(), check_nan=False):
        (found,) = torch.autograd.grad(
            outputs, inputs, directions, is_grads_batched=True, retain_graph=retain_graph
        )
    return found


if TYPE_CHECKING:
    lasting_property = cached_property
else:

    class lasting_property(cached_property):
        """As `functools.cached_property`, of tensors that serve in every mode of torch later on."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value, made outside of inference mode."""
            if instance is None or not torch.is_inference_mode_enabled():
                return super().__get__(instance, owner)
            with torch.inference_mode(False), torch.no_grad():
                return super().__get__(instance, owner)
