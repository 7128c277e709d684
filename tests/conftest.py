"""Settings for the whole suite."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, no deadline on a busy one, and no database on disk. For a
# longer search with new examples each time: HYPOTHESIS_PROFILE=search pytest ...
_COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=300, derandomize=False, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A million objects of imported packages and collected tests stay to the end; the garbage collector
# need not go through them time and again.
gc.disable()

#: Files that take longest come first (with xdist's --no-loadscope-reorder), so that at the end no
#: worker is left with one of them while the others have nothing to do.
LONG = [
    "experiments/test_runs_in_processes.py",
    "swap/test_swap_matrix.py",
    "methods/test_every_method.py",
    "runner/test_execute.py",
    "library/test_process_calls.py",
    "library/test_lost_processes.py",
    "library/test_processes.py",
    "library/test_recipes.py",
    "studies/test_studies.py",
    "library/test_documentation.py",
    "fuzz/test_fuzz.py",
    "library/test_all_or_nothing.py",
    "experiments/test_cli.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    first = {root / name: -len(LONG) + place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.path, 0))


def pytest_runtestloop() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
