"""Fixtures that several areas' tests share; a folder's conftest imports those that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch

__all__ = ["one_thread", "rng", "same_draws"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Matrices here are tiny: threads only get into each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def same_draws() -> Iterator[None]:
    """Heads start from torch's global generator; Pyro's store is global too."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1234)
