from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)
