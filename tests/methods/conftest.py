"""Methods draw from generators of their own; tests leave the global one as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _isolated_random() -> Iterator[None]:
    with torch.random.fork_rng():
        yield
