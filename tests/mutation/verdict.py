"""Whether the tests see a mutant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Mutant, planted
from tests.mutation.process import plant, pytest_in

__all__ = ["chosen", "verdict"]


def chosen(
    tests: Sequence[str], seconds: dict[str, float], kills: dict[str, int], limit: float
) -> list[str]:
    """The tests to run within a limit: those that have killed before, then the cheap ones.

    Args:
        tests: that can see the mutant.
        seconds: what each costs.
        kills: mutants of the same file that each has killed.
        limit: seconds for all of them.
    """
    found, left = [], limit
    for test in sorted(tests, key=lambda one: (-kills.get(one, 0), seconds[one])):
        if found and seconds[test] > left:
            continue
        left -= seconds[test]
        found.append(test)
    return found


def verdict(root: Path, mutant: Mutant | None, tests: Sequence[str]) -> dict[str, Any]:
    """Run tests until one fails; in a process that ends afterwards.

    Args:
        root: of the snapshot.
        mutant: to plant; None for the code as it is.
        tests: in their order.

    Returns:
        The status, "survived" or "killed", and by which test.
    """
    if mutant is not None:
        path = root / mutant.path
        module = mutant.path.removesuffix(".py").replace("/", ".")
        plant(path, module, planted(path.read_text(encoding="utf-8"), mutant.number))
    only = _Only(tests)
    code = pytest_in(root, only.files, only, "-x")
    if code == pytest.ExitCode.OK:
        return {"status": "survived", "tests": only.passed}
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"no tests of {tests[:3]} ... were found")
    return {"status": "killed", "by": only.failed or "import"}


class _Only:
    """A plugin of pytest that runs some tests, in their order, and notes which failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: at for at, test in enumerate(tests)}
        self.files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        self.failed = ""
        self.passed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(wanted, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed and not self.failed:
            self.failed = report.nodeid
