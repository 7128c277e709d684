"""Write the page on what goes with what; about two minutes on one core.

    python -m tests.swap

Ends with status 1 where a result is wrong.
"""

from __future__ import annotations

import sys

from tests.swap.page import PAGE, render, run

if __name__ == "__main__":
    found = run()
    PAGE.write_text(render(found), encoding="utf-8")
    for cell in found.faults():
        print(f"{' × '.join(cell.names)}: {cell.fault}", file=sys.stderr)
    cells = [*found.inference.values(), *found.directions.values()]
    print(f"{sum(c.why is None for c in cells)} of {len(cells)} combinations run; see {PAGE}")
    sys.exit(bool(found.faults()))
