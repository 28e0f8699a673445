"""The host as launcher, agents and their supervisors see it: its clocks, signals and processes.

All of them receive a System as an argument; tests pass one with a simulated clock and without processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import BinaryIO

from gridtf.host import processes, procfs
from gridtf.run.rundir import Record


class System:
    """This host, as one single-threaded process sees it.

    Attributes:
        environ: The environment of this process.
        host: The name of this host.
        pid: The id of this process.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        self.environ = os.environ if environ is None else environ
        self.host = os.uname().nodename
        self.pid = os.getpid()
        self._log: Callable[[str], None] = processes.tell

    def collect_garbage(self) -> None:
        """Turn Python's garbage collector on. It is off at the start of these processes, since modules load faster."""
        gc.freeze()  # the modules loaded by now stay, and need not be examined again
        gc.enable()

    def monotonic(self) -> float:
        """Seconds on a clock that is never set, as time.monotonic."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def age(self) -> float:
        """Seconds since this process started: of a launcher, since the job script did."""
        return procfs.age(self.pid) or 0.0

    def sleep(self, seconds: float) -> None:
        """Pause this process."""
        time.sleep(seconds)

    def within(self, seconds: float) -> Iterator[float]:
        """The seconds that are left of a time, anew for each round of a loop, which ends when it is over."""
        end = self.monotonic() + seconds
        while (left := end - self.monotonic()) > 0:
            yield left

    def log(self, text: str) -> None:
        """Write lines to the log of this process."""
        self._log(text)

    def log_with(self, write: Callable[[str], None]) -> None:
        """Have another function write the log from now on."""
        self._log = write

    def shared_memory(self) -> dict[str, int]:
        """Path -> bytes of this user's files in shared memory."""
        from gridtf.host import leftovers

        return leftovers.shared_memory()

    def unused(self, paths: Collection[str]) -> set[str]:
        """Those of these files that no process of this user has open or mapped."""
        from gridtf.host import leftovers

        return leftovers.unused(paths)

    def gpu_memory(self, gpus: Collection[str]) -> dict[str, int]:
        """As memory_in_use of gridtf.host.gpus."""
        from gridtf.host.gpus import memory_in_use

        return memory_in_use(gpus)

    def identity(self) -> Record:
        """The record that identifies this process, also after its id has been used again."""
        return procfs.identity(self.pid)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        output: BinaryIO | int | None = None,
        given: int = subprocess.DEVNULL,
        keep: Sequence[int] = (),
        ignored: Iterable[int] = (),
        death: signal.Signals = signal.SIGKILL,
        alarm: int = 0,
    ) -> int:
        """Start a program in a session of its own.

        Args:
            argv: Its command line.
            env: Its environment.
            cwd: Its working folder; None: this process's.
            output: The file for its stdout and stderr; None: this process's.
            given: The descriptor of its stdin.
            keep: Descriptors that it inherits.
            ignored: Signals that it starts with ignored.
            death: The signal that it receives when this process dies.
            alarm: Seconds after which it receives SIGALRM, also when it has called exec; 0: never.

        Returns:
            The id of its process; reap reports how it ends.

        Raises:
            OSError: It cannot be started.
        """

        def child() -> None:
            processes.die_with_parent(self.pid, death)
            processes.ignore_signals(ignored)
            signal.alarm(alarm)
            processes.unblock_signals()

        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            pass_fds=tuple(keep),
            preexec_fn=child,  # safe: this process has one thread
        )
        process.returncode = 0  # reaped here, not by Popen
        return process.pid

    def fork(self, work: Callable[[], None]) -> int:
        """Run a function in a child process, which ends with it.

        Args:
            work: The function.

        Returns:
            The id of the process.
        """
        pid = os.fork()
        if pid:
            return pid
        try:
            work()
        finally:
            os._exit(0)  # nothing of the parent's is cleaned up here

    def reap(self) -> dict[int, int]:
        """Collect all children that have ended.

        Returns:
            Process id -> exit code, or minus the number of the signal that ended it.
        """
        return processes.reap()

    def collect(self, pid: int | None) -> None:
        """Wait for a child process that is about to end."""
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def children(self) -> list[int]:
        """The direct children, read quickly; some may be missing."""
        return procfs.children(self.pid)

    def descendants(self, pid: int = 0) -> list[int]:
        """Every living process below a process; 0: this one."""
        return procfs.descendants(pid or self.pid)

    def catching(self, pid: int, number: int) -> list[int]:
        """Those of a process and its descendants that have a handler for a signal."""
        return [one for one in (pid, *procfs.descendants(pid)) if procfs.catches(one, number)]

    def is_alive(self, identity: Record) -> bool:
        """Whether the process that such a record identifies runs on this host."""
        return procfs.lives(identity)

    def tensorflow_version(self, program: str, environ: Mapping[str, str], folder: Path) -> str | None:
        """The version of TensorFlow that a program would import; empty: none; None: not known."""
        from gridtf.host import pythons  # loaded when it is needed, like the next ones

        return pythons.tensorflow_version(program, environ, folder)

    def packages(self, program: str, environ: Mapping[str, str], folder: Path) -> Mapping[str, object] | None:
        """What is installed for the Python of a program; None: not known."""
        from gridtf.host import pythons

        return pythons.packages(program, environ, folder)

    def own_folder(self, folder: Path, shared: Path) -> bool:
        """Whether each host has a folder of this name for itself, unlike a folder that all hosts are known to see."""
        from gridtf.host import mounts

        why = mounts.of_one_host(folder)
        return bool(why) and why != mounts.of_one_host(shared)

    def listening(self, ports: Collection[int], but: Collection[int] = ()) -> set[int]:
        """Those of these TCP ports on which a process of this host listens, without the sockets of these inodes."""
        from gridtf.host import sockets

        return sockets.listening(ports, but)

    def ports_of(self, pids: Collection[int], most: int) -> dict[int, list[int]]:
        """The TCP ports on which processes and their descendants listen; most: how many are looked at for each."""
        from gridtf.host import sockets

        return sockets.ports_of(pids, most)

    def connects(self, pid: int, port: int) -> bool:
        """Whether a process has a TCP connection to this port, of any host."""
        from gridtf.host import sockets

        return sockets.connects(pid, port)

    def connected(self, ports: Collection[int]) -> set[int]:
        """Those of these TCP ports with a connection on this host, or with one that was closed within a minute."""
        from gridtf.host import sockets

        return sockets.connected(ports)

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel's out-of-memory killer has ended: of this job, where cgroups count them."""
        from gridtf.host import usage

        return usage.out_of_memory_kills()

    # functions of gridtf.host, which tests replace
    wait = staticmethod(processes.wait_for_signal)
    childless = staticmethod(processes.childless)
    signal = staticmethod(processes.signal_all)
    parent = staticmethod(os.getppid)  # changes when the parent dies
    name = staticmethod(procfs.name)
    session = staticmethod(procfs.session)
    cpu_ticks = staticmethod(procfs.cpu_ticks)
    written = staticmethod(procfs.written)
    is_stopped = staticmethod(procfs.stopped)
    is_exiting = staticmethod(procfs.exiting)
    mapped_files = staticmethod(procfs.mapped_files)
    variables = staticmethod(procfs.variables)
    open_files = staticmethod(procfs.open_files)
