"""Try the library with other releases of Python and of its packages.

    python -m tests.compat --list
    python -m tests.compat lowest python3.12
    python -m tests.compat python3.11 --with torch==2.13.0

Each part makes a virtual environment (minutes, and up to 6 GB where a wheel of torch brings CUDA),
installs the wheel into it, runs some of the tests there, writes a row of results, and removes the
environment unless it is to be kept. Ends with status 1 where a test failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compat import page
from tests.compat.environment import MissingPythonError, run
from tests.compat.parts import PARTS


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m tests.compat", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="NAME", choices=[[], *PARTS], help="which")
    parser.add_argument("--list", action="store_true", help="name the parts, and stop")
    parser.add_argument(
        "--with",
        dest="pins",
        action="append",
        default=[],
        metavar="PACKAGE==X",
        help="a release that is to be installed in place of the newest",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="a folder in which environments stay, and are used again",
    )
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{name:12s} {part.about}" for name, part in PARTS.items()))
        return 0
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep.resolve() if given.keep else Path(temporary)
        for name in given.parts or PARTS:
            try:
                row = run(name, folder, given.pins)
            except (MissingPythonError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            page.write({**page.read(), name: row})
            if row["failed"]:
                failed.append(name)
            if not given.keep:
                shutil.rmtree(folder / PARTS[name].environment)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
