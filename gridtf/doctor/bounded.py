"""Runs work in a process of its own, so that a scheduler or a file server that does not answer holds nothing up."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from gridtf.host.processes import die_with_parent

T = TypeVar("T")

_DYING = 0.2  # seconds; a process that waits for a file server may not die


class Aside(Generic[T]):
    """Work that has been started in a forked process.

    Args:
        work: Returns the result, which must be picklable; it has no result if it raises an error.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run(work, writing, parent)
        os.close(writing)

    def result(self, deadline: float) -> T | None:
        """Wait for the result.

        Args:
            deadline: On the clock of time.monotonic.

        Returns:
            The result; None when there is none at the deadline, or when the process has ended without one.
        """
        data = b""
        while select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(self._pipe, 1 << 16)
            data += piece
            if not piece:
                with contextlib.suppress(EOFError, pickle.UnpicklingError):  # it was killed while it wrote
                    return cast(T, pickle.loads(data))  # noqa: S301 - of a process of our own
                return None
        return None

    def end(self) -> None:
        """End the process with all that it has started."""
        os.close(self._pipe)
        for kill in (os.killpg, os.kill):  # the group may not have begun, or may have ended
            with contextlib.suppress(ProcessLookupError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            end = time.monotonic() + _DYING
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.001)


def _run(work: Callable[[], object], pipe: int, parent: int) -> None:
    code = 1
    try:
        os.setsid()  # one group for all that it starts
        die_with_parent(parent, signal.SIGKILL)
        data = pickle.dumps(work())
        with os.fdopen(pipe, "wb") as file:
            file.write(data)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)
