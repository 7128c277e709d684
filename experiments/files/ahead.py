"""Reading ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_A = TypeVar("_A")
_B = TypeVar("_B")


def ahead(read: Callable[[_A], _B], chosen: Iterable[_A], count: int = 1) -> Iterator[_B]:
    """What ``read`` makes of each, in order; so many are made by a thread before they are used.

    An error there is raised where its turn comes. Nothing more is read once nobody asks on.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming: deque[Future[_B]] = deque()
        try:
            for one in chosen:
                coming.append(pool.submit(read, one))
                if len(coming) > count:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for left in coming:
                left.cancel()
