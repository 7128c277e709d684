from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _same_draws() -> Iterator[None]:
    """Heads start from torch's global generator; Pyro's store is global too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    assert not dict(pyro.get_param_store().items())
    torch.set_num_threads(threads)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1234)
