"""Modes of torch that callers may be in, and that what outlives a call must not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

__all__ = ["lasting_property", "plain"]


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
