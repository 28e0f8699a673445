"""The records of a running attempt and the launcher's log: each written by a forked process.

A file system that hangs, is full or is gone then costs records, and nothing else.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from gridtf.bootstrap.system import System
from gridtf.errors import RunDirError
from gridtf.host import processes
from gridtf.run.rundir import append_text, cannot, write_text

_RETRY_PAUSE = 2.0  # seconds until a record that could not be written is tried again
_WRITE_LIMIT = 5.0  # seconds after which a write hangs
_SETTLE_PAUSE = 0.002  # seconds between two looks of a caller that waits
_LOG = Path("/dev/stderr")  # of the launcher
_APPENDED = -1  # in place of a mode: the text is added to the file, and no text replaces another
_KEPT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})  # after these, lines of the log are written later


class Recorder:
    """Writes the newest text of each file, one file at a time.

    Args:
        system: This host.

    Attributes:
        errors: File -> why it could not be written when that was last tried.
        failed: When writing began to fail or to hang, in seconds since the epoch; None while all is well.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._waiting: dict[Path, tuple[str, int]] = {}
        self._pid: int | None = None  # of the process that writes
        self._path = Path()  # the file that it writes
        self._text = "", 0
        self._begun = 0.0  # when it began, by the monotonic clock
        self._due = float("-inf")  # when files that could not be written are tried again
        self.errors: dict[Path, RunDirError] = {}
        self.failed: float | None = None

    def write(self, path: Path, text: str, *, mode: int = 0o666) -> None:
        """Have a file written, as rundir.write_text does, as soon as the file system allows it.

        Args:
            path: The file.
            text: Its new content.
            mode: As in write_text.
        """
        self._waiting[path] = (text, mode)
        self.look()

    def log(self, text: str) -> None:
        """Have lines written to the log of this process, which is on the same file system as the records.

        Args:
            text: One or more lines.
        """
        self.append(_LOG, f"{text}\n")

    def append(self, path: Path, text: str) -> None:
        """Have lines added to a file that only this recorder writes; it is made if it does not exist.

        Args:
            path: The file.
            text: Whole lines.
        """
        before, _ = self._waiting.get(path, ("", 0))
        self.write(path, before + text, mode=_APPENDED)

    def look(self) -> None:
        """Learn how the last write ended, and begin the next one."""
        now = self._system.monotonic()
        if self._pid is not None:
            code = self._ended(self._pid)
            if code is None:
                if now - self._begun > _WRITE_LIMIT:
                    self._note(f"the file system has not responded for {_WRITE_LIMIT:g} s")
                return
            self._pid = None
            self._finish(code, now)
        ready = (path for path in self._waiting if now >= self._due or path not in self.errors)
        if self._pid is None and (path := next(ready, None)) is not None:
            self._path = path
            self._text = self._waiting.pop(self._path)
            self._begun = now
            try:
                self._pid = self._begin(self._path, *self._text)
            except OSError as error:  # no more processes: another record that cannot be written
                self._finish(error.errno or 1, now)

    def _finish(self, code: int, now: float) -> None:
        if code == 0:
            self.errors.pop(self._path, None)
            if self.failed is not None and not self.errors:
                self._system.log(f"records can be written again, after {self._system.time() - self.failed:.0f} s")
                self.failed = None
            return
        self.errors[self._path] = error = cannot("write", self._path, OSError(code, os.strerror(code)))
        text, mode = self._text
        if mode == _APPENDED:
            self._waiting[self._path] = (text + self._waiting.pop(self._path, ("", 0))[0], mode)
        else:
            self._waiting.setdefault(self._path, self._text)
        self._due = now + _RETRY_PAUSE
        self._note(error.what)

    def _note(self, what: str) -> None:
        if self.failed is None:
            self.failed = self._system.time() - (self._system.monotonic() - self._begun)
            self._system.log(f"{what}; the job goes on, and its records are written when that is possible again")

    def settle(self, seconds: float) -> bool:
        """Wait until everything is written.

        Args:
            seconds: The longest time to wait.

        Returns:
            Whether it is.
        """
        deadline = self._system.monotonic() + seconds
        while True:
            self.look()
            if self._pid is None and not self._waiting:
                return True
            if self._system.monotonic() >= deadline:
                return False
            self._system.sleep(_SETTLE_PAUSE)

    def _begin(self, path: Path, text: str, mode: int) -> int:
        """Fork the process that writes a file. Returns its id."""
        parent = self._system.pid
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                processes.die_with_parent(parent, signal.SIGKILL)
                processes.unblock_signals()
                if path == _LOG:
                    code = _write_log(text)
                else:
                    put(path, text, mode)
                    code = 0
            except RunDirError as error:
                code = error.number or 1
            finally:
                os._exit(code)  # whatever happens, this copy of the launcher goes no further
        return pid

    def _ended(self, pid: int) -> int | None:
        """How a process that writes has ended: 0, or an errno; None while it runs."""
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # something else has reaped it
            return 0
        if not ended:
            return None
        return max(1, os.waitstatus_to_exitcode(status)) if status else 0


def put(path: Path, text: str, mode: int) -> None:
    """Write a file, or add lines to it.

    Args:
        path: The file.
        text: The text.
        mode: As in write_text; negative: as append_text.

    Raises:
        RunDirError: When it cannot be written.
    """
    if mode == _APPENDED:
        append_text(path, text)
    else:
        write_text(path, text, mode=mode)


def _write_log(text: str) -> int:
    """Write lines to the log of this process. Returns 0, also if nobody reads it any more, or an errno of _KEPT."""
    try:
        processes.write_log(text)
    except OSError as error:
        return error.errno if error.errno in _KEPT else 0
    return 0
