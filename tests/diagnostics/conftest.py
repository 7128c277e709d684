from __future__ import annotations

from tests.figure_fixtures import undrawn
from tests.torch_fixtures import one_thread, rng, same_draws

__all__ = ["one_thread", "rng", "same_draws", "undrawn"]
