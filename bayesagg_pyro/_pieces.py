"""Work in pieces, so that what is made on the way fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

#: Entries of the largest temporary: that should stay near a cache (8 MiB of doubles), of a step
#: (32 MiB), and of many draws at once (64 MiB).
CACHE, BLOCK, LARGE = 2**20, 2**22, 2**23


def fitting(each: int, entries: int) -> int:
    """How many things of `each` entries fit into so many; at least 1."""
    return max(1, entries // max(1, each))


def slices(length: int, size: int) -> Iterator[slice]:
    """Cover 0 … length in pieces of at most `size`."""
    return (slice(i, min(i + size, length)) for i in range(0, length, max(1, size)))
