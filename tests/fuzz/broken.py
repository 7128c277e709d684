"""What a check raises."""

from __future__ import annotations

import re
import traceback

__all__ = ["Broken", "untyped"]


class Broken(Exception):
    """An invariant does not hold.

    Attributes:
        kind: what failures are grouped by: no numbers of the case.
        detail: the numbers.
        call: index of the call in its case.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail
        self.call = -1


def untyped(what: str, error: Exception) -> Broken:
    """An error that is none of the library's, with the place that let it out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "bayesagg_pyro/" in f.filename] or frames
    place = f"{own[-1].filename.rpartition('bayesagg_pyro/')[2]}:{own[-1].name}"
    brief = re.sub(r"[\d.e+-]*\d", "#", str(error).splitlines()[0] if str(error) else "")[:90]
    return Broken(f"untyped {type(error).__name__} at {place}", f"{what}: {brief}")
