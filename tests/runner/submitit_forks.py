"""Submitit's processes, forked."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
from types import SimpleNamespace
from typing import IO, Any

from tests.forked import FORKED

__all__ = ["submitit_forks"]


class _Popen:
    """`subprocess.Popen` of `python -m MODULE FOLDER`, as far as submitit uses it."""

    def __init__(
        self,
        command: list[str],
        *,
        env: dict[str, str],
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        **_: Any,
    ) -> None:
        said = [stream and stream.name for stream in (stdout, stderr)]
        # What is forked has no server, and forks itself.
        inner = multiprocessing.parent_process() is not None
        context: Any = multiprocessing.get_context("fork") if inner else FORKED
        self._process = context.Process(target=_main, args=(*command[-2:], env, *said))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def submitit_forks() -> None:
    """Let submitit start its launcher, and that its job, by a fork."""
    from submitit.local import local

    local.subprocess = SimpleNamespace(Popen=_Popen)


def _main(module: str, folder: str, env: dict[str, str], out: str | None, err: str | None) -> None:
    submitit_forks()
    os.environ.update(env)
    sys.argv = [module, folder]
    with contextlib.ExitStack() as opened:
        for name, redirect in (
            (out, contextlib.redirect_stdout),
            (err, contextlib.redirect_stderr),
        ):
            if name is not None:
                opened.enter_context(redirect(opened.enter_context(open(name, "a"))))
        runpy.run_module(module, run_name="__main__")
