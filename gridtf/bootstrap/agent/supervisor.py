"""The tasks of one host: start them, notice their end, and tear them down until no process is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gridtf import files, wrappers
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.system import System
from gridtf.host.processes import signal_name
from gridtf.run.rundir import Record
from gridtf.states import NOT_RUN, TaskState, of_exit
from gridtf.values import Fields, Value

_TOGETHER = 2.0  # seconds within which a signal to all processes of a job has reached all of them
_PORT_LIMIT = 60.0  # seconds within which the port of a task that has failed is free again
_KILL_LIMIT = 10.0  # seconds after which processes that survive SIGKILL are left alone


class InPlace(Value):
    """Whether a task that has failed is started again while the others go on.

    Attributes:
        most: How many times.
        port: Its port, which stays reserved, and on which no earlier process of it may listen any more.
        by_signal_only: Only if a signal has ended it: a program that ends with an exit code would do so again.
    """

    most: int = 0
    port: int = 0
    by_signal_only: bool = True


_NEVER = InPlace()


class Program(Value):
    """What a task runs.

    Attributes:
        argv: Its command line.
        env: Its environment.
        cwd: Its working folder.
        log: The file for its stdout and stderr.
        keep: Descriptors that it inherits.
        ignored: Signals that it starts with ignored.
        in_place: Whether restart() may start it again.
        entrance: What stands before a command that is to run where the task does, as in a container; mostly nothing.
        own: Returns the names of the variables that gridtf and the job set.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    keep: Sequence[int] = ()
    ignored: Collection[int] = ()
    in_place: InPlace = _NEVER
    entrance: Sequence[str] = ()
    own: Callable[[], Collection[str]] = frozenset


class TaskProcess(Fields):
    """One task's process.

    Attributes:
        name: The task, such as ``worker:0``.
        state: A TaskState.
        pid: The id of its process; None before it was started.
        started: When, in seconds since the epoch.
        ended: When, in seconds since the epoch.
        exit: Its exit code.
        signal: The name of the signal that ended it.
        oom: Whether SIGKILL ended it after the kernel's out-of-memory killer had been active on this host.
        error: Why it could not be started.
        restarts: How many times it was restarted.
        progress: How far it has come, as it last reported; None before.
        ranges: Name of a value -> the smallest and the largest that it has reported since the last sample.
        exception: What the hook has noted of an exception that ends its program; None before.
        notes: What features have noted of it, for its record.
        abandoned: Whether it is a rank of MPI that has ended after what had started it was gone.
        program: What it runs; None before it was started.
        printed: Returns how many bytes its log has received; None: it writes its log itself.
    """

    name: str
    state: str = TaskState.PENDING
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit: int | None = None
    signal: str | None = None
    oom: bool = False
    error: str | None = None
    restarts: int = 0
    progress: Record | None = None
    ranges: Mapping[str, Sequence[float]] = {}
    exception: Record | None = None
    notes: Mapping[str, object] = {}
    abandoned: bool = False
    program: Program | None = None
    printed: Callable[[], int] | None = None

    @property
    def due(self) -> bool:
        """Whether it has failed and is to be started again."""
        return self.state == TaskState.PENDING and self.ended is not None

    @property
    def in_place(self) -> InPlace:
        """Whether it may be started again."""
        return self.program.in_place if self.program else _NEVER

    def record(self) -> Record:
        """The entry of the task in the record of its host."""
        names = ("state", "pid", "started", "ended", "exit", "signal", "oom", "error", "restarts")
        record = {name: getattr(self, name) for name in names}
        more = {
            "progress": self.progress,
            "ranges": self.ranges,
            "exception": self.exception,
            "abandoned": self.abandoned,
            **self.notes,
        }
        return {**record, **{name: value for name, value in more.items() if value}}


class Supervisor:
    """Owns every process below this one. Single-threaded: parent-death signals are bound to the starting thread.

    Args:
        task_names: The names of the tasks of this host.
        system: This host.

    Attributes:
        tasks: Task name -> its process.
        folder: The folder in which the hook notes exceptions of tasks; None where there is none.
        output: What takes the output of the tasks, to be set before they start.
        spared: Processes of gridtf itself that are no survivors of a tear-down: a driver may block them for ever.
        kept: Processes of gridtf itself that no tear-down ends, nor what they have started.
        abandoned: Whether something that all tasks need has ended: those that fail from now on are abandoned.
        others: Further children -> their exit code, as of reap; None while they run.
        gates: Inodes of sockets that listen on ports of tasks, and belong to no task.
    """

    def __init__(self, task_names: Sequence[str], system: System) -> None:
        self.tasks = {name: TaskProcess(name) for name in task_names}
        self._system = system
        self._stopping = False
        self._oom_kills = system.out_of_memory_kills()
        self.folder: Path | None = None
        self.output = wrappers.Output()
        self.spared: Collection[int] = ()
        self.kept: Collection[int] = ()
        self.gates: Collection[int] = ()
        self.others: dict[int, int | None] = {}
        self.abandoned = False

    def start(self, name: str, program: Program) -> None:
        """Start one task in a session of its own, with its own log; it dies with this process.

        If the command cannot be started, the task is FAILED with exit code 127 or 126, as in a shell.

        Args:
            name: The name of the task.
            program: What it runs.

        Raises:
            RunDirError: The log cannot be written.
        """
        self.tasks[name].program = program
        self.tasks[name].printed = self.output.counter(name)
        self._start(self.tasks[name], program)

    def _start(self, task: TaskProcess, program: Program) -> None:
        """Start or restart a task."""
        task.started = self._system.time()
        argv, env, cwd = program.argv, program.env, program.cwd
        with self.output.opened(task.name, program.log) as output:
            if task.restarts:
                how = "was killed" if program.in_place.by_signal_only else "has failed"
                note = f"gridtf: the task {how}: restart {task.restarts} of at most {program.in_place.most}\n"
                output.write(note.encode())
                output.flush()
            try:
                task.pid = self._system.start(
                    argv, env, cwd=cwd, output=output, keep=program.keep, ignored=program.ignored
                )
                task.state = TaskState.RUNNING
            except OSError as error:
                task.error = explain(error, argv[0], cwd, env)
                task.exit = 127 if isinstance(error, FileNotFoundError) else 126
                task.state, task.ended = TaskState.FAILED, self._system.time()
                output.write(f"gridtf: {task.error}\n".encode())
        self._settle()

    def collect(self) -> bool:
        """Note which tasks have ended, and reap orphans.

        Returns:
            Whether the state of a task has changed.
        """
        ended, now = self._system.reap(), self._system.time()
        self.others.update({pid: code for pid, code in ended.items() if pid in self.others})
        changed = False
        for task in self.tasks.values():
            if task.state != TaskState.RUNNING or task.pid not in ended:
                continue
            code = ended[task.pid]
            task.ended, changed = now, True  # the same time for all of them: which ended first is unknown
            if code < 0:
                task.signal = signal_name(-code)
            else:
                task.exit = code
            # a shell exits with 137 when SIGKILL has ended its program
            task.oom = code in (-signal.SIGKILL, 128 + signal.SIGKILL) and self._new_oom_kill()
            task.state = TaskState.STOPPED if self._stopping else of_exit(code)
            task.abandoned = self.abandoned
            may_heal = code < 0 if task.in_place.by_signal_only else code not in NOT_RUN
            if task.state == TaskState.FAILED and may_heal and task.restarts < task.in_place.most:
                task.state = TaskState.PENDING
        if changed:
            self._settle()
        if not self._stopping:
            self.output.look()
        return changed

    def _settle(self) -> None:
        """Have all that tasks which have ended have printed in their logs, before their end is told."""
        over = [name for name, task in self.tasks.items() if task.ended is not None]
        if over and not self._stopping:
            self.output.settle(over)

    def restart(self) -> bool:
        """Start tasks again that have failed, once none of their processes is left that may hold the port.

        Returns:
            Whether the state of a task has changed.
        """
        due = [task for task in self.tasks.values() if task.due]
        if not due:
            return False
        sessions = {pid: self._system.session(pid) for pid in self._system.descendants()}
        started = False
        for task in due:
            orphans = [pid for pid, session in sessions.items() if session == task.pid]
            if orphans:
                self._system.signal(orphans, signal.SIGKILL)
                continue  # until they are reaped
            port = task.in_place.port
            if port and self._system.listening([port], self.gates):
                # two sockets that share a port would share its connections
                if self._system.time() - (task.ended or 0.0) > _PORT_LIMIT:
                    task.error = f"a process that it has started still listens on its port {port}"
                    task.state, started = TaskState.FAILED, True
                continue
            task.restarts += 1
            if self.folder:
                local_dir.forget_exception(self.folder, task.name)
            task.exception = None
            task.ended = task.exit = task.signal = None
            task.oom = False
            if task.program:
                self._start(task, task.program)
            started = True
        return started

    def _new_oom_kill(self) -> bool:
        before, self._oom_kills = self._oom_kills, self._system.out_of_memory_kills()
        return self._oom_kills > before

    def possibly_terminated(self) -> list[TaskProcess]:
        """Tasks that failed within the last seconds, perhaps because SIGTERM was sent to all processes of the job."""
        since = self._system.time() - _TOGETHER
        failed = [task for task in self.tasks.values() if task.due or task.state == TaskState.FAILED]
        failed = [task for task in failed if (task.ended or 0.0) > since]
        return [task for task in failed if task.error is None and task.signal in (None, "SIGTERM")]

    def mark_stopped(self, since: float = 0.0) -> None:
        """Record tasks that end from now on, or were possibly terminated, as STOPPED instead of FAILED.

        Args:
            since: Tasks that ended before this time, in seconds since the epoch, stay FAILED.
        """
        self._stop_restarting()
        for task in self.possibly_terminated():
            if (task.ended or 0.0) > since:
                task.state = TaskState.STOPPED

    def running(self) -> list[TaskProcess]:
        """The tasks that run."""
        return [task for task in self.tasks.values() if task.state == TaskState.RUNNING]

    def note(self, found: Mapping[str, Record]) -> bool:
        """Note what a feature has found out of tasks.

        Args:
            found: Task -> entries of its record; empty ones go.

        Returns:
            Whether that is news.
        """
        before = [self.tasks[name].notes for name in found]
        for name, entries in found.items():
            notes = {**self.tasks[name].notes, **entries}
            self.tasks[name].notes = {entry: value for entry, value in notes.items() if value}
        return before != [self.tasks[name].notes for name in found]

    def end_failed(self, after: float, waits: Callable[[TaskProcess], bool] = lambda task: True) -> None:
        """End programs that an exception has ended and that run on: some libraries wait for the other tasks then.

        Args:
            after: Seconds for what else a program does at its end.
            waits: Whether a task has such a library.
        """
        for task in self.running():
            noted, pid = task.exception, task.pid
            if noted and pid and noted["pid"] == pid and self._system.time() - noted["time"] > after and waits(task):
                self._system.signal([pid], signal.SIGKILL)

    def forward(self, number: signal.Signals) -> None:
        """Send a signal to every running task: to the program itself, as srun does, not to its child processes."""
        self._system.signal([task.pid for task in self.running() if task.pid], number)

    def tear_down(self, grace: float, beat: Callable[[], None]) -> list[int]:
        """Send SIGTERM to every process below this one, then SIGKILL until none is left.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.
            beat: Called about every tenth of a second, to write heartbeats.

        Returns:
            The ids of processes that survived SIGKILL.
        """
        self._stop_restarting()
        self.output.finish()
        running = [pid for pid, code in self.others.items() if code is None]
        apart = frozenset(pid for one in running for pid in (one, *self._system.descendants(one)))
        # while ranks save, what has started them must not notice an end, even on another host: it would end them
        self._system.signal(apart, signal.SIGSTOP)
        self._signal_everything(signal.SIGTERM)
        if not self._gone_within(grace, beat, apart) or apart:
            for _ in self._system.within(_KILL_LIMIT):
                self._signal_everything(signal.SIGKILL)
                # processes that keep forking are faster than this walk through /proc, but their orphans become children
                self._system.signal(self._tasks_of(self._system.children()), signal.SIGKILL)
                if self._gone_within(0.02, beat):
                    break
        self.collect()
        if self._system.childless():
            return []
        self._system.signal(self.output.pids, signal.SIGKILL)  # they cannot write what they have
        return [pid for pid in self._tasks_of(self._system.descendants()) if pid not in self.spared]

    def _stop_restarting(self) -> None:
        self.collect()
        self._stopping = True
        for task in self.tasks.values():
            if task.due:
                task.state = TaskState.STOPPED

    def _signal_everything(self, number: signal.Signals) -> None:
        # Not process groups: a descendant that called setsid has left its group, but not the process tree.
        self._system.signal(self._tasks_of(self._system.descendants()), number)

    def _tasks_of(self, pids: Iterable[int]) -> list[int]:
        """These processes but those that end when no task can print any more, and kept ones with what those have
        started."""
        kept = {pid for one in self.kept for pid in (one, *self._system.descendants(one))}
        return [pid for pid in pids if pid not in kept and pid not in self.output.pids]

    def _gone_within(self, seconds: float, beat: Callable[[], None], apart: frozenset[int] = frozenset()) -> bool:
        deadline = self._system.monotonic() + seconds
        pause = 0.005
        while True:
            self.collect()
            some_stay = apart or self.kept
            if self._system.childless() or (some_stay and apart.issuperset(self._tasks_of(self._system.children()))):
                return True
            remaining = deadline - self._system.monotonic()
            if remaining <= 0:
                return False
            self._system.sleep(min(pause, remaining))
            pause = min(pause * 1.5, 0.1)
            beat()


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.readline(200).decode(errors="replace").strip()
    except OSError:
        return ""


def explain(error: OSError, program: str, cwd: Path, env: Mapping[str, str]) -> str:
    """Why a program could not be started, in one line."""
    if not files.exists(cwd):
        return f"the working folder {cwd} does not exist on this host"
    if isinstance(error, FileNotFoundError):
        if files.exists(cwd / program) and "/" in program:
            return f"cannot run {program}: its interpreter does not exist: {_first_line(cwd / program)}"
        if "/" in program:
            return f"command not found: {program}"
        return f"command not found: {program} (PATH={env.get('PATH', '')})"
    return f"cannot run {program}: {error.strerror}"
