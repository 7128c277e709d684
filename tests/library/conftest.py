from __future__ import annotations

from collections.abc import Iterator

import pytest

from bayesagg_pyro.gradients import _registry
from tests.figure_fixtures import undrawn
from tests.torch_fixtures import one_thread, rng, same_draws

__all__ = ["one_thread", "registry", "rng", "same_draws", "undrawn"]


@pytest.fixture
def registry() -> Iterator[None]:
    """Forget formulas that a test registers."""
    before = dict(_registry._formulas)
    yield
    _registry._formulas.clear()
    _registry._formulas.update(before)
