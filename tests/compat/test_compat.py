"""The table of releases says what was run, and what was run is what is stated."""

from __future__ import annotations

import pytest

from experiments.doctor import stated as packages
from experiments.doctor import supports
from tests.compat import page
from tests.compat.parts import PARTS, ROOT, lowest


def test_the_page_is_made_of_the_rows() -> None:
    rows = page.read()
    assert page.PAGE.read_text(encoding="utf-8") == page.render(rows)
    assert rows
    # A test is skipped where an optional package does not import, and all are to be installed.
    assert not any(row["failed"] or row["skipped"] for row in rows.values())


def test_only_releases_that_are_stated_were_run() -> None:
    """Bounds that are raised make older rows a lie; so do oldest releases that were not run."""
    stated = {one.name: one.bounds for one in packages()}
    for name, row in page.read().items():
        for package, release in row["packages"].items():
            assert supports(stated.get(package, ""), release), (name, package)
            if PARTS[name].lowest and package in stated:
                oldest = lowest(f"{package}{stated[package]}").split("==")[1]
                assert supports(f"=={oldest}", release), (name, package)


def test_every_test_of_a_part_is_there() -> None:
    for part in PARTS.values():
        for test in part.tests:
            assert (ROOT / test.split("::")[0]).is_file()


def test_an_oldest_release_has_to_be_stated() -> None:
    assert lowest("a[b,c]>=1.2,<2") == "a[b,c]==1.2"
    with pytest.raises(ValueError, match="no oldest release"):
        lowest("a<2")
