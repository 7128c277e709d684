from __future__ import annotations

import pytest
import torch

from tests.torch_fixtures import seed_all


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    seed_all(0)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)
