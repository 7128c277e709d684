"""Modes of torch that callers may be in, and that what outlives a call must not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["plain"]


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
