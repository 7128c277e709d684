"""The page of survivors: the tool writes the place, a person the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant

__all__ = ["reasons", "write"]

_HEAD = """# Mutants that no test kills

Written by `python -m tests.mutation`; only the reasons are by hand. A reason says why no test can
tell the mutant from the code. A survivor without one is work to do.
"""
_ROW = re.compile(r"^- `(?P<key>.*)`: (?P<reason>.*)$")


def reasons(text: str) -> dict[str, str]:
    """{mutant: reason} of a page, "" where none is given."""
    rows = [_ROW.match(line) for line in text.splitlines()]
    return {row["key"]: row["reason"] for row in rows if row}


def write(page: Path, found: Sequence[Mutant], results: dict[str, Any]) -> None:
    """Write the page anew: survivors of this sample, and earlier ones that have a reason."""
    known = reasons(page.read_text(encoding="utf-8")) if page.exists() else {}
    statuses = {one.key: results[one.key]["status"] for one in found if one.key in results}
    alive = {_code(key) for key, status in statuses.items() if status == "survived"}
    gone = {_code(key) for key, status in statuses.items() if status != "survived"}
    rows = {key: known.get(key, "") for key in alive}
    rows |= {key: why for key, why in known.items() if why and key not in gone}
    counts = Counter(statuses.values())
    summary = (
        f"\nThe last sample: {len(statuses)} mutants, {counts['killed']} killed by a test, "
        f"{counts['timeout']} that no longer end, {counts['survived']} that survive.\n\n"
    )
    lines = [f"- `{key}`: {rows[key]}" for key in sorted(rows)]
    page.write_text(_HEAD + summary + "\n".join(lines) + "\n", encoding="utf-8")


def _code(key: str) -> str:
    return key.replace("`", "'")
