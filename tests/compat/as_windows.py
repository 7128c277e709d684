"""A plugin of pytest: what Windows does otherwise, as far as another system can do it.

A process is spawned unless it is asked for otherwise; text that is written or read without a stated
encoding is an error in this repository's own code; and so is a file whose name Windows refuses.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import sys
from typing import Any, Final

import pytest

_REFUSED: Final = re.compile(r'[<>:"|?*\\]|[. ]$|^(con|prn|aux|nul|(com|lpt)[0-9])(\.|$)', re.I)
_OWN: Final = ("bayesagg_pyro", "experiments", "models")


def refused(name: str) -> bool:
    """Whether Windows takes no file of that name."""
    return bool(_REFUSED.search(name))


def pytest_configure(config: pytest.Config) -> None:
    """Set all of it for this process."""
    multiprocessing.set_start_method("spawn", force=True)
    if not refused("a:b") or not refused("nul.txt") or refused("weights_a-b.png"):
        raise AssertionError("the names that Windows refuses are not told apart")
    sys.addaudithook(_looked_at)
    own = f"({'|'.join(_OWN)})(\\..*)?"
    for rule in ("ignore::EncodingWarning", f"error::EncodingWarning:{own}"):
        config.addinivalue_line("filterwarnings", rule)


def _looked_at(event: str, given: tuple[Any, ...]) -> None:
    made = event == "open" and given[2] & os.O_CREAT and not isinstance(given[0], int)
    if made or event == "os.mkdir":
        _checked(given[0])
    elif event == "os.rename":
        _checked(given[1])


def _checked(path: Any) -> None:
    name = os.path.basename(os.fspath(path).rstrip("/"))
    if isinstance(name, str) and refused(name):
        caller: Any = sys._getframe(2)
        while caller is not None:
            if caller.f_globals.get("__name__", "").split(".")[0] in _OWN:
                raise io.UnsupportedOperation(f"no file of Windows is called {name!r}")
            caller = caller.f_back
