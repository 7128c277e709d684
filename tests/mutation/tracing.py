"""Which test runs which line, and what each costs: as `make coverage` has found."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import coverage

__all__ = ["Coverage", "digest", "recorded"]


@dataclass
class Coverage:
    """The passing tests, what each costs, and what it runs.

    Attributes:
        seconds: {test: seconds}.
        data: what coverage.py wrote, with the test as the context of each line.
        paths: {file relative to the root: file as `data` names it}.
    """

    seconds: dict[str, float]
    data: coverage.CoverageData
    paths: Mapping[str, str]
    _lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def of(self, path: str, lines: Sequence[int]) -> list[str]:
        """Tests that run one of the lines of a file, or any of it where none is given."""
        if path not in self._lines:
            self._lines[path] = self._read(path)
        known = self._lines[path]
        found = {test for line in lines or known for test in known.get(line, ())}
        return [test for test in self.seconds if test in found]

    def _read(self, path: str) -> dict[int, set[str]]:
        """{line: tests}; what a fixture runs is for all tests of the file that it was made in."""
        together: dict[str, set[str]] = {}
        for test in self.seconds:
            together.setdefault(test.partition("::")[0], set()).add(test)
        found: dict[int, set[str]] = {}
        for line, contexts in self.data.contexts_by_lineno(self.paths.get(path, path)).items():
            tests = found.setdefault(line, set())
            for context in contexts:
                test, _, phase = context.rpartition("|")
                made = phase == "setup"
                tests |= together.get(test.partition("::")[0], set()) if made else {test}
        return found


def recorded(root: Path, folder: Path, sources: Sequence[Path]) -> Coverage:
    """Read what `make coverage` wrote.

    Args:
        root: of the tree.
        folder: with its files.
        sources: that must not have changed since.

    Raises:
        SystemExit: There is none, or it is of other code.
    """
    lines, reports = folder / "lines", sorted(folder.glob("*.xml"))
    if not lines.exists() or not reports:
        raise SystemExit(f"{folder} holds no record of the tests' lines: call make coverage")
    for path in sources:
        if path.stat().st_mtime > lines.stat().st_mtime:
            raise SystemExit(f"{path.relative_to(root)} is newer than {lines}: make coverage again")
    data = coverage.CoverageData(str(lines))
    data.read()
    start = re.compile(rf"^{re.escape(str(root))}/")
    paths = {start.sub("", name): name for name in data.measured_files()}
    seconds = {name: cost for report in reports for name, cost in _passed(report).items()}
    return Coverage(seconds, data, paths)


def digest(paths: Sequence[Path]) -> str:
    """A digest of files' contents."""
    found = hashlib.blake2b(digest_size=8)
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


def _passed(report: Path) -> dict[str, float]:
    """{test: seconds} of those that passed, from a report in JUnit's format."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(
            case.get("time", 0)
        )
        for case in ElementTree.parse(report).iter("testcase")
        if not len([part for part in case if part.tag in ("failure", "error", "skipped")])
    }
