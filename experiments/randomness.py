"""Seeds of their own for every purpose, and generators given back as they were found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, well apart from those of other purposes and other seeds.

    Every epoch has seeds of its own, so a resumed run needs no generator's state to go on exactly.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


@contextmanager
def isolated_random(device: torch.device) -> Iterator[None]:
    """Give torch's global generators back as they were found."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
