"""docs/compatibility.md, from the rows that were run."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.compat.parts import PARTS, ROOT, SHOWN, wanted

__all__ = ["PAGE", "RESULTS", "read", "render", "write"]

PAGE: Final = ROOT / "docs" / "compatibility.md"
RESULTS: Final = ROOT / "tests" / "compat" / "results.json"

_TOP: Final = """# Tested with

With which releases of Python and of other packages this version has been run. For a row, the
wheel was installed into a new environment and a part of the test suite run there, on Linux and a
CPU, with warnings as errors. Nothing is in the table that was not run.
"""

_NEXT: Final = """
`python -m tests.compat NAME` makes a row again and writes this page; `--list` names the parts,
which take some minutes and up to 6 GB each.

Next: [what is guaranteed](guarantees.md); `python -m experiments doctor` tells what is installed
and what is missing.
"""


def read() -> dict[str, dict[str, Any]]:
    """Rows by name of the part."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return _sorted(found)


def write(rows: dict[str, dict[str, Any]]) -> None:
    """Keep the rows, and write the page."""
    rows = _sorted(rows)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(rows), encoding="utf-8")


def _sorted(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: rows[name] for name in PARTS if name in rows}


def render(rows: dict[str, dict[str, Any]]) -> str:
    """The page."""
    lines = [_TOP, "| part | Python | " + " | ".join(SHOWN) + " | tests |"]
    lines.append("| --- " * (len(SHOWN) + 3) + "|")
    for name, row in rows.items():
        releases = [row["packages"].get(package, "–") for package in SHOWN]
        lines.append(f"| {name} | " + " | ".join([row["python"], *releases, _told(row)]) + " |")
    lines += ["", "| part | what it is |", "| --- | --- |"]
    lines += [f"| {name} | {_about(name, row)} |" for name, row in rows.items()]
    bounds = ", ".join(f"`{one}`" for one in wanted(()))
    lines += ["", f"Of the library itself are stated: {bounds}."]
    return "\n".join(lines) + "\n" + _NEXT


def _about(name: str, row: dict[str, Any]) -> str:
    more = [f"{package} {row['packages'][package]}" for package in PARTS[name].more]
    return f"{PARTS[name].about}{': ' if more else ''}{', '.join(more)}"


def _told(row: dict[str, Any]) -> str:
    words = [f"{row['passed']} passed"]
    words += [f"{row[name]} {name}" for name in ("failed", "skipped") if row[name]]
    return ", ".join(words)
