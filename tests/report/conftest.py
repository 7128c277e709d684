from __future__ import annotations

from tests.figure_fixtures import plain_fonts, undrawn

__all__ = ["plain_fonts", "undrawn"]
