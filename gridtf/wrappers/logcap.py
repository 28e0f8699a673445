"""What keeps the logs of a host's tasks below log_limit: one process takes their output from pipes, and appends it.

A log has two parts of half the limit (run/logparts.py). The agent has all ends of the pipes open: tasks do not notice
when that process is killed, and it is started again; where it cannot write because a file system does not respond, the
agent discards what it does not take. The process ends with the tasks, or a little after an agent that was killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import api
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import RunDirError
from gridtf.host import processes
from gridtf.run.logparts import begins_of, note_begins, older
from gridtf.run.rundir import open_log
from gridtf.wrappers import Output

if TYPE_CHECKING:
    from typing import BinaryIO

    from gridtf.bootstrap.system import System

FILES = 2  # that an agent has open for each task
_OTHERS = 5  # beside those of the tasks
_PIPE = 1 << 20  # bytes that a pipe holds, where the system allows it
_PIPES = 64  # times that a pipe may be filled while the agent discards what is in it
_SETTLE_LIMIT = 2.0  # seconds within which the last output of a task is in its log
_WRITE_LIMIT = 5.0  # seconds after which a write hangs
_LONGEST_LOOK = 2.0  # seconds that count between two looks of the agent: it may have been suspended, as the process was
_ORPHAN_LIMIT = 5.0  # seconds for what an agent that was killed has left
_RESTART_PAUSE = 1.0  # seconds between two starts of the process
_SETTLE_PAUSE = 0.002  # seconds between two looks of the agent while it waits


class Wrapper(api.Wrapper):
    """Has the process started before the tasks."""

    def output(self) -> LogPump:
        plan, mine = self.view.plan, self.view.mine
        processes.need_open_files((1 + FILES) * len(mine) + _OTHERS)
        logs = {task.name: plan.attempt.task_log(task.type, task.index) for task in mine}
        return LogPump(logs, plan.spec.log_bytes or 0, self.view.system)


class LogPump(Output):
    """The agent's side.

    Args:
        logs: Task -> its log.
        limit: Bytes that the log of a task may have.
        system: This host.
    """

    def __init__(self, logs: Mapping[str, Path], limit: int, system: System) -> None:
        self._index = {name: number for number, name in enumerate(logs)}
        self._paths, self._limit, self._system = list(logs.values()), limit, system
        pipes = [os.pipe() for _ in logs]
        self._reads, self._writes = [read for read, _ in pipes], [write for _, write in pipes]
        for read, write in pipes:
            os.set_blocking(read, False)
            with suppress(OSError):  # a limit of the user's pipes
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE)
        self._shared = _Shared(len(logs))
        self._seen, self._looked = 0, system.monotonic()  # the state of the process, and when it was last looked at
        self._stuck = 0.0  # seconds for which it has not taken what there is
        self._helper = Helper(_RESTART_PAUSE, system)
        self._helper.start(self._write)

    @property
    def pids(self) -> Collection[int]:
        return () if self._helper.pid is None else (self._helper.pid,)

    def _write(self, agent: socket.socket) -> None:
        _Writer(self._paths, self._reads, self._limit, self._shared).run(agent)

    def opened(self, name: str, log: Path) -> BinaryIO:
        return os.fdopen(os.dup(self._writes[self._index[name]]), "ab", buffering=0)

    def counter(self, name: str) -> Callable[[], int]:
        printed, number = self._shared.printed, self._index[name]
        return lambda: printed[number]

    def look(self) -> None:
        """Start the process again if it was killed, and discard output that it has not taken for too long."""
        now = self._system.monotonic()
        self._helper.hear()
        if self._helper.due and self._helper.start(self._write):
            self._system.log(
                "what writes the logs of tasks was killed, and is started again: some lines may be missing"
            )
        state, elapsed, self._looked = self._shared.state, now - self._looked, now
        if state != self._seen or not any(map(_waiting, self._reads)):
            self._seen, self._stuck = state, 0.0
            return
        before, self._stuck = self._stuck, self._stuck + min(elapsed, _LONGEST_LOOK)
        if self._stuck >= _WRITE_LIMIT:
            if before < _WRITE_LIMIT:
                self._system.log(f"the file system has taken nothing for {_WRITE_LIMIT:g} s: what tasks print is lost")
            for number, read in enumerate(self._reads):
                self._discard(number, read)

    def _discard(self, number: int, read: int) -> None:
        with suppress(BlockingIOError):  # nothing is left
            for _ in range(_PIPES):
                self._shared.discarded[number] += len(os.read(read, _PIPE))

    def settle(self, names: Iterable[str]) -> None:
        """Wait until the logs of tasks that have ended have all that they have printed, at most two seconds."""
        deadline = self._system.monotonic() + _SETTLE_LIMIT
        reads = [self._reads[self._index[name]] for name in names]
        while any(map(_waiting, reads)) and self._system.monotonic() < deadline:
            self.look()
            self._system.sleep(_SETTLE_PAUSE)
        state = self._shared.state
        while _works(state) and self._shared.state == state and self._system.monotonic() < deadline:
            self._system.sleep(_SETTLE_PAUSE)

    def finish(self) -> None:
        """Have the process end as soon as no task can print any more."""
        while self._writes:
            os.close(self._writes.pop())


def _waiting(read: int) -> int:
    """How many bytes are in a pipe (ioctl_tty(2), FIONREAD)."""
    return int(struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0])


def _works(state: int) -> bool:
    return state % 2 == 1


class _Shared:
    """Memory that the agent, the process that writes and others that are forked later share.

    Attributes:
        printed: For each task, how many bytes its log has received; set by the process.
        discarded: For each task, how many the agent has discarded.
    """

    def __init__(self, tasks: int) -> None:
        numbers = memoryview(mmap.mmap(-1, 8 * (2 * tasks + 1))).cast("Q")
        self.printed, self.discarded, self._state = numbers[:tasks], numbers[tasks : 2 * tasks], numbers[2 * tasks :]

    @property
    def state(self) -> int:
        """Changes whenever the process begins and ends to write; odd while it writes."""
        return self._state[0]

    def turn(self) -> None:
        """Note that the process begins or ends to write."""
        self._state[0] += 1


class _Writer:
    """The process that writes."""

    def __init__(self, paths: Sequence[Path], reads: Sequence[int], limit: int, shared: _Shared) -> None:
        self._logs = {reads[number]: _Log(path, limit // 2, shared, number) for number, path in enumerate(paths)}
        self._shared = shared

    def run(self, line: socket.socket) -> None:
        """Write until no task can print any more, or for some seconds after the agent was killed.

        Args:
            line: Its other end is the agent's, and closed when the agent has ended.
        """
        processes.keep_only([*self._logs, line.fileno()])
        poller = select.poll()
        for descriptor in (*self._logs, line.fileno()):
            poller.register(descriptor, select.POLLIN)
        if _works(self._shared.state):  # another process was killed while it wrote
            self._shared.turn()
        for log in self._logs.values():
            log.append(b"")
        left, until = {*self._logs}, float("inf")
        while left and time.monotonic() < until:
            ready = poller.poll(None if until == float("inf") else _ORPHAN_LIMIT * 100)
            self._shared.turn()
            for descriptor, _ in ready:
                if descriptor == line.fileno():
                    poller.unregister(descriptor)
                    until = time.monotonic() + _ORPHAN_LIMIT
                elif not self._take(descriptor):
                    poller.unregister(descriptor)
                    left.discard(descriptor)
            self._shared.turn()

    def _take(self, read: int) -> bool:
        """Write what is in a pipe. Returns whether more can come."""
        with suppress(BlockingIOError):  # the agent has discarded it
            data = os.read(read, _PIPE)
            self._logs[read].append(data)
            return bool(data)
        return True


class _Log:
    """Appends to a log, and begins a new part when one is full."""

    def __init__(self, path: Path, most: int, shared: _Shared, number: int) -> None:
        self._path, self._most, self._shared, self._number = path, most, shared, number
        self._file: BinaryIO | None = None
        self._begin = self._size = 0  # of the newer part
        self._line_ends = True  # whether the last byte was a newline
        self._discarded = shared.discarded[number]  # by the agent, as far as the log tells of it
        self._lost, self._why = 0, ""

    def append(self, data: bytes) -> None:
        """Append output. What cannot be written is lost, and a line in the log says so when it can be written again."""
        discarded = self._shared.discarded[self._number]
        if discarded > self._discarded:
            self._lost += discarded - self._discarded
            self._discarded, self._why = discarded, "the file system did not respond"
        try:
            file = self._file or self._open()
            if self._lost:
                note = f"gridtf: {self._lost} bytes of output are missing here: {self._why}\n"
                file = self._write(file, (b"" if self._line_ends else b"\n") + note.encode())
                self._lost = 0
        except (OSError, RunDirError) as error:
            self._lose(len(data), error)
            return
        before = self._shared.printed[self._number]
        try:
            self._write(file, data)
        except (OSError, RunDirError) as error:
            self._lose(len(data) - (self._shared.printed[self._number] - before), error)

    def _lose(self, count: int, error: OSError | RunDirError) -> None:
        self._lost += count
        self._why = str((isinstance(error, OSError) and error.strerror) or error).splitlines()[0]
        if self._file is not None:  # it may not be the log any more
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        self._file = file = open_log(self._path)
        status = os.fstat(file.fileno())
        begins = begins_of(self._path)
        self._size, self._begin = status.st_size, 0
        if begins is not None:
            # another process was killed while it began this part
            self._begin = begins.get(status.st_ino, max(begins.values(), default=0))
            if status.st_ino not in begins:
                note_begins(self._path, {**begins, status.st_ino: self._begin})
        self._line_ends = not self._size
        self._shared.printed[self._number] = self._begin + self._size
        return file

    def _write(self, file: BinaryIO, data: bytes) -> BinaryIO:
        """Append to the log. Returns the file of its newer part."""
        while data:
            room = max(0, self._most - self._size)
            piece = data if len(data) <= room else data[: data.rfind(b"\n", 0, room) + 1 or room]
            if not piece:
                file = self._begin_part(file)
                continue
            written = os.write(file.fileno(), piece)
            self._size += written
            self._shared.printed[self._number] = self._begin + self._size
            self._line_ends = data[written - 1 : written] == b"\n"
            full = written == len(piece) < len(data)
            data = data[written:]
            if full:
                file = self._begin_part(file)
        return file

    def _begin_part(self, file: BinaryIO) -> BinaryIO:
        path = self._path.with_name(f".{self._path.name}.new")
        new = open_log(path)
        end = self._begin + self._size
        note_begins(self._path, {os.fstat(file.fileno()).st_ino: self._begin, os.fstat(new.fileno()).st_ino: end})
        with suppress(FileNotFoundError):  # another program has removed it
            self._path.replace(older(self._path))
        path.replace(self._path)
        file.close()
        self._file, self._begin, self._size = new, end, 0
        return new
