"""The tasks of one host: start them, see them end, and tear them down until nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gridtf.host import processes, procfs
from gridtf.run.recordtypes import COMPLETED, FAILED, PENDING, RUNNING, STOPPED
from gridtf.run.rundir import Record, cannot, open_log

_TOGETHER = 1.0  # seconds: what ends all processes of a job has reached them within this


@dataclass
class TaskProcess:
    """One task's process.

    exit: its exit code. signal: the name of the signal that ended it. oom: whether the kernel killed for want of memory
    on this host since the task before it ended. error: why it never ran. restarts: how many times it was started again.
    """

    name: str
    state: str = PENDING
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit: int | None = None
    signal: str | None = None
    oom: bool = False
    error: str | None = None
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    again: Callable[[], None] = field(default=lambda: None, repr=False)  # starts it once more
    most: int = 0  # how often that may be done

    @property
    def due(self) -> bool:
        """Whether it was killed and is to be started again."""
        return self.state == PENDING and self.ended is not None

    def record(self) -> Record:
        names = ("state", "pid", "started", "ended", "exit", "signal", "oom", "error", "restarts")
        return {name: getattr(self, name) for name in names}


class Supervisor:
    """Owns every process below this one. Single-threaded: parent-death signals are bound to the starting thread.

    now: the clock for the records (seconds since the epoch).
    """

    def __init__(self, task_names: Sequence[str], now: Callable[[], float] = time.time) -> None:
        self.tasks = {name: TaskProcess(name) for name in task_names}
        self._now = now
        self._stopping = False
        self._oom_kills = procfs.out_of_memory_kills()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        keep: Sequence[int] = (),
        ignored: Iterable[int] = (),
        restarts: int = 0,
    ) -> None:
        """Start one task in a session of its own, with its own log; it dies with us. keep: descriptors it inherits.
        ignored: signals that do not end it, unless it says otherwise. restarts: how many times it may be started again,
        by restart(), when a signal has ended it.

        A command that cannot be started makes the task FAILED with exit code 127 or 126, as a shell says it. Raises
        RunDirError when the log cannot be written.
        """
        task = self.tasks[name]
        task.most = restarts
        task.again = lambda: self._run(task, argv, env, cwd, log, keep, ignored)
        task.again()

    def _run(
        self,
        task: TaskProcess,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        keep: Sequence[int],
        ignored: Iterable[int],
    ) -> None:
        parent = os.getpid()

        def child() -> None:
            processes.die_with_parent(parent, signal.SIGKILL)
            processes.ignore_signals(ignored)
            processes.unblock_signals()

        task.started = self._now()
        with _opened(log) as output:
            if task.restarts:
                output.write(
                    f"gridtf: killed, and started again: {task.restarts} of at most {task.most} times\n".encode()
                )
                output.flush()
            try:
                task.process = subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=tuple(keep),
                    preexec_fn=child,  # safe: this process has one thread
                )
            except OSError as error:
                task.error = _why_not(error, argv[0], cwd, env)
                task.exit = 127 if isinstance(error, FileNotFoundError) else 126
                task.state, task.ended = FAILED, self._now()
                output.write(f"gridtf: {task.error}\n".encode())
                return
        task.pid, task.state = task.process.pid, RUNNING

    def collect(self) -> bool:
        """Note which tasks have ended; orphans that came to us are reaped too. True when a task's state changed."""
        ended, now = processes.reap(), self._now()
        changed = False
        for task in self.tasks.values():
            if task.state != RUNNING or task.pid not in ended:
                continue
            code = ended[task.pid]
            if task.process is not None:
                task.process.returncode = code  # reaped here, not by Popen
            task.ended, changed = now, True  # who of them was first nobody knows
            if code < 0:
                task.signal = processes.signal_name(-code)
            else:
                task.exit = code
            # a shell above the program gives 137 for it
            task.oom = code in (-signal.SIGKILL, 128 + signal.SIGKILL) and self._new_oom_kill()
            task.state = STOPPED if self._stopping else COMPLETED if code == 0 else FAILED
            if task.state == FAILED and code < 0 and task.restarts < task.most:
                task.state = PENDING
        return changed

    def restart(self) -> bool:
        """Start again what collect() has found killed, once nobody is left of it who may still hold its port. True when
        a task was started."""
        due = [task for task in self.tasks.values() if task.due]
        if not due:
            return False
        below = {pid: procfs.session(pid) for pid in procfs.descendants(os.getpid())}
        started = False
        for task in due:
            left = [pid for pid, session in below.items() if session == task.pid]
            if left:
                processes.signal_all(left, signal.SIGKILL)
                continue  # until they are reaped
            task.restarts += 1
            task.ended = task.exit = task.signal = None
            task.oom = False
            task.again()
            started = True
        return started

    def _new_oom_kill(self) -> bool:
        before, self._oom_kills = self._oom_kills, procfs.out_of_memory_kills()
        return self._oom_kills > before

    def maybe_told(self) -> list[TaskProcess]:
        """Those that have failed just now, and maybe because somebody has sent TERM to all processes of the job."""
        since = self._now() - _TOGETHER
        failed = [task for task in self.tasks.values() if task.due or task.state == FAILED]
        failed = [task for task in failed if (task.ended or 0.0) > since]
        return [task for task in failed if task.error is None and task.signal in (None, "SIGTERM")]

    def excuse(self, since: float = 0.0) -> None:
        """Somebody has: those that end from now on have not failed, nor have those of them that ended since then."""
        self._stop_restarting()
        for task in self.maybe_told():
            if (task.ended or 0.0) > since:
                task.state = STOPPED

    def running(self) -> list[TaskProcess]:
        return [task for task in self.tasks.values() if task.state == RUNNING]

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to every task that runs: to the program itself, as srun does, not to what it has started."""
        processes.signal_all([task.pid for task in self.running() if task.pid], number)

    def tear_down(self, grace: float, beat: Callable[[], None]) -> list[int]:
        """TERM to everything below us, grace seconds, then KILL until nothing is left. Gives what could not be killed.

        beat: called about every tenth of a second, to tell the world that we live.
        """
        self._stop_restarting()
        self._signal_everything(signal.SIGTERM)
        if not self._gone_within(grace, beat):
            deadline = time.monotonic() + 10.0
            while time.monotonic() < deadline:
                self._signal_everything(signal.SIGKILL)
                # a family that keeps forking is faster than that long look, but what it leaves comes to us
                processes.signal_all(procfs.children(os.getpid()), signal.SIGKILL)
                if self._gone_within(0.02, beat):
                    break
        self.collect()
        return [] if processes.childless() else procfs.descendants(os.getpid())

    def _stop_restarting(self) -> None:
        self.collect()
        self._stopping = True
        for task in self.tasks.values():
            if task.due:
                task.state = STOPPED

    def _signal_everything(self, number: signal.Signals) -> None:
        # Descendants and not only groups: a grandchild that called setsid has left its group, but not our tree.
        processes.signal_all(procfs.descendants(os.getpid()), number)

    def _gone_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            self.collect()
            if processes.childless():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.1)
            beat()


def _opened(log: Path) -> BinaryIO:
    try:
        return open_log(log)
    except OSError as error:
        raise cannot("write", log, error) from None


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.readline(200).decode(errors="replace").strip()
    except OSError:
        return ""


def _why_not(error: OSError, program: str, cwd: Path, env: Mapping[str, str]) -> str:
    if not cwd.is_dir():
        return f"the working folder {cwd} is not there on this host"
    if isinstance(error, FileNotFoundError):
        if (cwd / program).exists() and "/" in program:
            return f"cannot run {program}: its interpreter is not there: {_first_line(cwd / program)}"
        if "/" in program:
            return f"command not found: {program}"
        return f"command not found: {program} (PATH={env.get('PATH', '')})"
    return f"cannot run {program}: {error.strerror}"
