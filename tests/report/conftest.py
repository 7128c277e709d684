from __future__ import annotations

from tests.figure_fixtures import undrawn

__all__ = ["undrawn"]
