"""What a check raises."""

from __future__ import annotations

__all__ = ["Broken"]


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
