from __future__ import annotations

from tests.torch_fixtures import one_thread, rng, same_draws

__all__ = ["one_thread", "rng", "same_draws"]
