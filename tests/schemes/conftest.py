from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Heads start from torch's global generator; nothing may touch Pyro's global store."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    left = dict(pyro.get_param_store())
    pyro.clear_param_store()
    assert not left


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1234)
