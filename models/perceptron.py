"""Linear layers with what comes after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from torch import nn


def layers(widths: Sequence[int], after: Callable[[], Iterable[nn.Module]]) -> nn.Sequential:
    """Newly initialised layers from the first width to the last.

    Args:
        widths: Of inputs, hidden layers and outputs.
        after: Makes what follows each of them, such as an activation and dropout.
    """
    pairs = pairwise(widths)
    return nn.Sequential(*(part for pair in pairs for part in (nn.Linear(*pair), *after())))
