"""``python -m experiments.methods [PAGE]``: print the capability table, or refresh a page's."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.methods import METHODS
from experiments.methods.capabilities import levels_table, update


def main(arguments: list[str]) -> None:
    """Print the table, or write those of the pages that are named."""
    if not arguments:
        print(levels_table(METHODS.values()))
    for argument in arguments:
        print(f"{argument}: {'changed' if update(Path(argument)) else 'up to date'}")


if __name__ == "__main__":
    main(sys.argv[1:])
