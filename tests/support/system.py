"""A simulated host: its clock, its signals and its processes are under the control of the test."""

from __future__ import annotations

import heapq
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.run.rundir import Record

_LONGEST = 100_000.0  # simulated seconds after which a test fails, because it waits for something that never happens


class FakeSystem(System):
    """A host whose time passes only while the program under test waits, running the actions of at() and every().

    Attributes:
        clock: The monotonic clock, in seconds.
        wall: Seconds since the epoch.
        received: Signals that wait() has yet to return.
        logged: Lines of the log.
        started: pid -> argv, environment and other arguments of start().
        alive: Ids of the descendants of this process.
        stubborn: Ids of descendants that ignore TERM.
        immortal: Ids of descendants that ignore KILL as well.
        sent: (pid, signal) of every signal that was sent.
        missing: Programs that cannot be started.
        files: pid -> text of its memory maps.
        names: pid -> the names of its open files.
        own: Folders that other hosts have for themselves.
        started_with: pid -> its environment variables, such as ``PMI_RANK=0``.
        tensorflow: Program -> the version that it has.
        installed: Program -> what is installed for its Python.
        catches: Signal -> ids of processes that have a handler for it.
        opened: Ports on which a process listens.
        closed: Ports with a connection that was closed.
        memory: Path -> bytes of files in shared memory, which no process uses.
        gpus_in_use: GPU -> MiB of its memory in use.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, host: str = "h0") -> None:
        self.environ = dict(environ or {})
        self.host = host
        self.pid = 4000
        self.ppid = 3999
        self.clock, self.wall = 1000.0, 5000.0
        self.received: list[int] = []
        self.logged: list[str] = []
        self.started: dict[int, dict[str, Any]] = {}
        self.alive: set[int] = set()
        self.sessions: dict[int, int] = {}
        self.stubborn: set[int] = set()
        self.immortal: set[int] = set()
        self.sent: list[tuple[int, int]] = []
        self.missing: set[str] = set()
        self.known: set[int] = set()  # ids of processes for which is_alive() is true
        self.stopped: set[int] = set()
        self.oom_kills = 0
        self.files: dict[int, str] = {}
        self.started_with: dict[int, list[str]] = {}
        self.names: dict[int, list[str]] = {}
        self.own: list[Path] = []
        self.tensorflow: dict[str, str] = {}
        self.installed: dict[str, Mapping[str, object]] = {}
        self.catches: dict[int, list[int]] = {}
        self.opened: set[int] = set()
        self.closed: set[int] = set()
        self.own_ports: dict[int, list[int]] = {}
        self.connections: dict[int, list[int]] = {}  # to a port, of processes
        self.memory: dict[str, int] = {}
        self.gpus_in_use: dict[str, int] = {}
        self.ticks: dict[int, tuple[int, int]] = {}  # pid -> parent, CPU time
        self.lines: dict[int, int] = {}  # pid -> lines that it has written
        self._ended: dict[int, int] = {}
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._limit = self.clock + _LONGEST

    # --- called by the test

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Call a function this many seconds from now."""
        self._number += 1
        heapq.heappush(self._planned, (self.clock + seconds, self._number, action))

    def every(self, seconds: float, action: Callable[[], object]) -> None:
        """Call a function now, and again after every ``seconds``."""

        def again() -> None:
            action()
            self.at(seconds, again)

        self.at(0.0, again)

    def receive(self, number: int) -> None:
        self.received.append(number)

    def exit(self, pid: int, code: int) -> None:
        """End a process. code: its exit code, or minus the number of the signal that ended it."""
        if pid in self.alive:
            self.alive.remove(pid)
            self._ended[pid] = code
            self.receive(signal.SIGCHLD)

    def pid_of(self, word: str) -> int:
        """The id of the last started process with this word in its command line."""
        return max(pid for pid, how in self.started.items() if word in how["argv"])

    # --- called by the program under test

    def collect_garbage(self) -> None:
        """Does nothing: the garbage collector belongs to the test run."""

    def monotonic(self) -> float:
        return self.clock

    def time(self) -> float:
        return self.wall

    def age(self) -> float:
        return self.clock - 1000.0

    def _advance(self, to: float) -> None:
        if to > self.clock:
            self.wall += to - self.clock
            self.clock = to
        assert self.clock < self._limit, "waits forever"

    def sleep(self, seconds: float) -> None:
        self._pass(self.clock + seconds, lambda: True)

    def wait(self, seconds: float) -> int | None:
        self._pass(self.clock + max(0.0, seconds), lambda: not self.received)
        return self.received.pop(0) if self.received else None

    def _pass(self, end: float, goes_on: Callable[[], bool]) -> None:
        while goes_on() and self._planned and self._planned[0][0] <= end:
            when, _, action = heapq.heappop(self._planned)
            self._advance(when)
            action()
        if goes_on():
            self._advance(end)

    def log(self, text: str) -> None:
        self.logged.append(text)

    def parent(self) -> int:
        return self.ppid

    def identity(self) -> Record:
        return {"host": self.host, "pid": self.pid, "start": 1, "boot": "b"}

    def start(self, argv: Sequence[str], env: Mapping[str, str], **how: Any) -> int:
        if argv[0] in self.missing:
            raise FileNotFoundError(2, "No such file or directory")
        pid = 5000 + len(self.started)
        self.started[pid] = {"argv": list(argv), "env": dict(env), **how}
        self.alive.add(pid)
        return pid

    def reap(self) -> dict[int, int]:
        ended, self._ended = self._ended, {}
        return ended

    def childless(self) -> bool:
        return not self.alive and not self._ended

    def descendants(self, pid: int = 0) -> list[int]:
        return sorted(self.alive)

    children = descendants

    def signal(self, pids: Iterable[int], number: int) -> None:
        for pid in list(pids):
            self.sent.append((pid, number))
            ends = number == signal.SIGKILL or (number == signal.SIGTERM and pid not in self.stubborn)
            if ends and pid not in self.immortal:
                self.exit(pid, -number)

    def session(self, pid: int) -> int | None:
        return self.sessions.get(pid, pid)

    def catching(self, pid: int, number: int) -> list[int]:
        return [one for one in self.catches.get(number, ()) if one == pid or self.sessions.get(one) == pid]

    def cpu_ticks(self) -> dict[int, tuple[int, int]]:
        return dict(self.ticks)

    def written(self, pid: int) -> tuple[str, ...]:
        return (str(self.lines.get(pid, 0)),)

    def fork(self, work: Callable[[], None]) -> int:
        return 1 << 30  # no process has this id

    def is_alive(self, identity: Record) -> bool:
        return identity["pid"] in self.known

    def is_stopped(self, pid: int) -> bool:
        return pid in self.stopped

    def tensorflow_version(self, program: str, environ: Mapping[str, str], folder: Path) -> str | None:
        return self.tensorflow.get(program)

    def packages(self, program: str, environ: Mapping[str, str], folder: Path) -> Mapping[str, object] | None:
        return self.installed.get(program)

    def mapped_files(self, pid: int, most: int) -> str:
        return self.files.get(pid, "")

    def open_files(self, pid: int, most: int) -> list[str]:
        return self.names.get(pid, [])

    def own_folder(self, folder: Path, shared: Path) -> bool:
        return any(folder.is_relative_to(own) for own in self.own)

    def variables(self, pid: int, most: int) -> list[str]:
        return self.started_with.get(pid, [])

    def shared_memory(self) -> dict[str, int]:
        return dict(self.memory)

    def unused(self, paths: Collection[str]) -> set[str]:
        return set(paths)

    def gpu_memory(self, gpus: Collection[str]) -> dict[str, int]:
        return {gpu: self.gpus_in_use[gpu] for gpu in gpus if gpu in self.gpus_in_use}

    def ports_of(self, pids: Collection[int], most: int) -> dict[int, list[int]]:
        return {pid: self.own_ports.get(pid, []) for pid in pids}

    def connects(self, pid: int, port: int) -> bool:
        return pid in self.connections.get(port, ())

    def listening(self, ports: Collection[int], but: Collection[int] = ()) -> set[int]:
        return self.opened & set(ports)

    def connected(self, ports: Collection[int]) -> set[int]:
        return self.closed & set(ports)

    def out_of_memory_kills(self) -> int:
        return self.oom_kills


class InlineHelper(Helper):
    """Has the answer of a process at once, from this one: that of EndOfJob."""

    def start(self, work: Any) -> bool:
        self._line, theirs = socket.socketpair()
        theirs.sendall(work.__self__.answer())
        theirs.close()
        self._line.setblocking(False)
        self.pid = 1 << 30
        return True
