"""Which test runs which line: traced once, so that a mutant meets only tests that can see it."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.process import pytest_in, run

__all__ = ["Coverage", "digest", "traced"]

#: Seconds of processor time that the tests of one file may take while they are traced.
_LIMIT = 900.0


@dataclass
class Coverage:
    """The passing tests, what each costs, and what it runs.

    Attributes:
        seconds: {test: processor time}, traced.
        lines: {test: {file: lines}}.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def of(self, path: str, lines: Sequence[int]) -> list[str]:
        """Tests that run one of the lines of a file, or any of it where none is given."""
        wanted = set(lines)
        return [
            test
            for test, files in self.lines.items()
            if path in files and (not wanted or not wanted.isdisjoint(files[path]))
        ]


def traced(
    root: Path, files: Sequence[str], sources: Sequence[Path], store: Path, jobs: int
) -> Coverage:
    """Trace the tests of some files in a snapshot, as far as `store` does not know them.

    Args:
        root: of the snapshot.
        files: test files, relative to it.
        sources: files whose lines are noted.
        store: folder with what earlier calls found.
        jobs: processes at once.
    """
    product = digest(sources)
    kept = {}
    for name in files:
        folder = (root / name).parent
        helpers = [one for one in folder.glob("*.py") if not one.name.startswith("test_")]
        mark = digest([root / name, *sorted(helpers)], product)
        kept[name] = store / f"{Path(name).stem}-{mark}.json"
    store.mkdir(parents=True, exist_ok=True)
    new = [name for name, path in kept.items() if not path.exists()]
    calls = [lambda name=name: _trace(root, name, sources, kept[name]) for name in new]
    run(calls, [_LIMIT] * len(new), jobs)
    missing = [name for name in new if not kept[name].exists()]
    if missing:
        raise RuntimeError(f"the tests of {missing} could not be traced")
    found = Coverage()
    for path in kept.values():
        one = json.loads(path.read_text(encoding="utf-8"))
        found.seconds.update(one["seconds"])
        found.lines.update(one["lines"])
    return found


def digest(paths: Sequence[Path], start: str = "") -> str:
    """A digest of files' contents."""
    found = hashlib.blake2b(start.encode(), digest_size=8)
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


def _trace(root: Path, name: str, sources: Sequence[Path], kept: Path) -> None:
    tracer = _Tracer({str(path) for path in sources}, str(root))
    pytest_in(root, [name], tracer)
    seconds = {test: round(took + tracer.setup, 3) for test, took in tracer.seconds.items()}
    found = {"seconds": seconds, "lines": tracer.found()}
    kept.write_text(json.dumps(found), encoding="utf-8")


class _Tracer:
    """A plugin of pytest that notes which lines of some files a test runs."""

    def __init__(self, sources: set[str], root: str) -> None:
        self.sources, self.root = sources, root
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[str, set[int]]] = {}
        self.shared: dict[str, set[int]] = {}  # by fixtures that several tests use
        self.setup = 0.0  # seconds that these take
        self.current: dict[str, set[int]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.current = self.lines[item.nodeid] = {}
        start = time.process_time()
        self._watch(self._call)
        try:
            return (yield)
        finally:
            self._watch(None)
            self.seconds[item.nodeid] = time.process_time() - start

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, self.current, start = self.current, self.shared, time.process_time()
        try:
            return (yield)
        finally:
            self.current = before
            self.setup += time.process_time() - start

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.lines.pop(report.nodeid, None)

    def found(self) -> dict[str, dict[str, list[int]]]:
        """{test: {file relative to the root: lines}}, of tests that passed."""
        return {
            test: {
                file[len(self.root) + 1 :]: sorted(
                    files.get(file, set()) | self.shared.get(file, set())
                )
                for file in files.keys() | self.shared.keys()
            }
            for test, files in self.lines.items()
        }

    @staticmethod
    def _watch(call: Any) -> None:
        threading.settrace(call)
        sys.settrace(call)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.sources:
            return None
        lines = self.current.setdefault(frame.f_code.co_filename, set())

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return line

        return line
