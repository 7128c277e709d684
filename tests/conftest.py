"""Settings for the whole suite."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, no deadline on a busy one, and no database on disk. For a
# longer search with new examples each time: HYPOTHESIS_PROFILE=search pytest ...
_COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=300, derandomize=False, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# CUDA is looked for without being started, after which no fork could use it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# A million objects of imported packages and collected tests stay to the end; the garbage collector
# need not go through them time and again.
gc.disable()

#: What takes longest comes first (with xdist's --no-loadscope-reorder), so that at the end no
#: worker is left with one of these files while the others have nothing to do.
LONG = [
    "tests/experiments/test_runs_in_processes.py",
    "tests/library/test_recipes.py",
    "tests/swap/test_swap_matrix.py",
    "tests/methods/test_every_method.py",
    "tests/library/test_documentation.py",
    "tests/studies/test_studies.py",
    "tests/fuzz/test_fuzz.py",
    "tests/library/test_all_or_nothing.py",
    "tests/qm9_scale/test_capture.py",
    "tests/library/test_state_of_tensors.py",
    "tests/classification/test_conditional_errors.py",
    "tests/qm9/test_qm9_whole_set.py",
    "tests/library/test_processes.py",
    "tests/library/test_lost_processes.py",
    "tests/runner/test_execute.py",
    "tests/experiments/test_cli.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.nodeid.partition("::")[0], len(first)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """In every process that runs tests; in xdist's, `pytest_runtestloop` would not be called."""
    import torch

    gc.freeze()
    gc.set_threshold(50_000)  # not at every 700 objects that a test makes
    gc.enable()
    # Without an accelerator `torch.manual_seed` formats the stack for each kind of them, to tell
    # where it was seeded should one ever appear: a millisecond each time.
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        kind.traceback = SimpleNamespace(format_stack=list)
    # Nobody cuts the power: a file that is flushed to the disk waits for it, ten milliseconds each.
    os.fsync = lambda descriptor: None
    if "tests.forked" in sys.modules:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        capture.resume_global_capture()  # what processes print is shown with a test that fails
        sys.modules["tests.forked"].serve()
        capture.suspend_global_capture()
