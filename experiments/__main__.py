"""``python -m experiments``."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C during imports: at once, as some libraries turn it into errors of their own there."""
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(130)


def _main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that cannot show Δ shows ? in its place
            stream.reconfigure(errors="replace")
    # A job in the background of a script ignores Ctrl-C, and has to go on doing so.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    try:
        from experiments.cli import PROGRAM, app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("rich", "typer"):
            raise
        sys.exit(
            f"error: {error.name} is not installed: pip install -e . --group experiments "
            "(with pip 25.1 or newer)"
        )

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name=PROGRAM)
    except KeyboardInterrupt:  # before a command could begin
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    _main()
