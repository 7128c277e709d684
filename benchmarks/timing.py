"""Interleaved timings: ratios that survive a busy machine.

Absolute times drift with whatever else runs. Here every round times each candidate once, in an
order of its own, so that none always follows the same other one (whose traces in caches and heap
it would pay for), and a ratio is formed within its round; the result is the median over rounds with
a bootstrap interval.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile


class Ratio(NamedTuple):
    """A median over rounds and its bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Timings:
    """Seconds of every candidate, one number a round.

    Attributes:
        seconds: Name to [rounds]; numbers at the same place were measured one after the other.
    """

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Median seconds of one candidate."""
        return float(np.median(self._of(name)))

    def ratio(self, a: str, b: str) -> Ratio:
        """How many times as long ``a`` takes as ``b``, with an interval of 95 %.

        Raises:
            ValueError: An unknown name.
        """
        ratios = self._of(a) / self._of(b)
        rounds = len(ratios)
        draws = np.random.default_rng(0).integers(rounds, size=(10_000, rounds))
        medians = np.median(ratios[draws], axis=1)
        low, high = np.quantile(medians, [0.025, 0.975])
        return Ratio(float(np.median(ratios)), float(low), float(high))

    def _of(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        if name not in self.seconds:
            raise ValueError(f"nothing called {name!r} was timed; there are {list(self.seconds)}")
        return np.asarray(self.seconds[name], dtype=np.float64)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 20,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time callables in turns.

    Args:
        candidates: Name to callable; what a call returns is dropped.
        rounds: Measurements of each.
        warmup: Calls of each before the first measurement.
        clock: Gives seconds. `time.process_time` leaves out what other work on the machine takes,
            and adds up threads.

    Raises:
        ValueError: No candidates, fewer than 2 rounds, or a negative warm-up.
    """
    if not candidates or rounds < 2 or warmup < 0:
        raise ValueError(
            f"interleave needs candidates, rounds of at least 2 and warmup of at least 0, got "
            f"{len(candidates)} candidates, rounds={rounds}, warmup={warmup}"
        )
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    synchronize: Callable[[], object] = torch.cuda.synchronize if in_use else lambda: None
    for call in candidates.values():
        for _ in range(warmup):
            call()
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for k in range(rounds):
            for name in random.Random(k).sample(names, len(names)):
                synchronize()
                start = clock()
                candidates[name]()
                synchronize()
                seconds[name].append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return Timings(seconds)


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Most bytes of tensors that ``call`` holds at a time, beyond those alive before it.

    Counted in torch's allocator, on either kind of device, so libraries' own workspaces and the
    interpreter are not in it.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    events = trace.profiler.kineto_results.events()  # the only place with every (de)allocation
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = np.cumsum([0] + [nbytes for _, nbytes in changes])
    return int(held.max())
