"""The commands that a job runs when something has happened (`on`): what they are told, and how they are run.

A process of its own runs those of one event, one after the other, so that the launcher waits for none of them; nothing
that they do changes the verdict. Their record is described in docs/experiments.md: names in it are never given up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import localtime, strftime

from gridtf import contract, files, schedulers
from gridtf.bootstrap.judge.progress import output_dir
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher import api
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.jobspec.limits import HOOKS
from gridtf.run import registry
from gridtf.run.rundir import Record, read_record
from gridtf.states import JobState

START, FIRST_STEP, FAILURE, END = "start", "first_step", "failure", "end"
LIMIT = 60.0  # seconds for a command, and for all that are left when the job has ended, unless the site has others
HURRIED = 10.0  # seconds for all that are left when a signal or the walltime has ended the job, or it goes on
_VERSION = 1  # of the record; names are only added to it
_LOOK = 0.5  # seconds between two looks for the start of the tasks and their first step
_GRACE = 2.0  # seconds from SIGTERM to SIGKILL
_STUCK = 5.0  # seconds in which the process has ended what it runs, unless a file system blocks it
_MOST_EVENTS = 32  # that wait; then the oldest is left out
_MOST_HOSTS = 1000  # in the record
_MOST_OUTPUT = 1 << 16  # bytes of a command's output that are kept
_READS = 16  # of that many bytes, between two looks at the time
_MOST_LOG = 1 << 20  # bytes of the log, from which on it is begun anew


class InLauncher(api.Feature):
    """Notices the events of an attempt.

    Attributes:
        runner: What runs the commands of the job.
    """

    vital = False

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        # commands of the attempt before may still run
        self.runner: Runner = before.runner if isinstance(before, InLauncher) else Runner(view.job)
        view.processes.own(self.runner.helper, outlives=True)
        self._next = [START, FIRST_STEP]  # what is looked for
        self._looked = float("-inf")
        self._remark = ""  # what a command has failed to do last

    def look(self) -> None:
        """Notice what has happened to the tasks, and start what waits."""
        clock = self.view.job.system.monotonic()
        if self._next and clock - self._looked >= _LOOK:
            self._looked = clock
            self._notice()
        self.runner.serve(self._tell)

    def status(self) -> str:
        return self._remark

    def concluded(self, end: Verdict) -> None:
        """Run what is left, for a limited time, unless another attempt follows, and leave no process."""
        self._notice()
        self._next = []
        if end.state not in (JobState.COMPLETED, JobState.SAVED, JobState.CANCELLED):
            self._add(FAILURE, end)
        if end.next:
            return
        if not end.again:
            self._add(END, end)
        ends, now = self.view.reporter.ends, self.view.job.system.time()
        left = float("inf") if ends is None else max(HURRIED, ends - now)
        hurried = end.again or end.state in (JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED)
        self.runner.finish(min(left, HURRIED) if hurried else left, self._tell)
        self.view.reporter.journal.end()
        self.view.reporter.settle()

    def _notice(self) -> None:
        records, tasks = self.view.hosts.reports.tasks, self.view.tasks
        if not tasks or not self._next:
            return
        if self._next[0] == START and all(records.get(task.name, {}).get("pid") for task in tasks):
            self._add(self._next.pop(0))
        if self._next == [FIRST_STEP] and any(record.get("progress") for record in records.values()):
            self._add(self._next.pop(0))

    def _add(self, event: str, end: Verdict | None = None) -> None:
        """Have the commands run for an event, after those of earlier ones.

        Args:
            event: START, FIRST_STEP, FAILURE or END.
            end: How the attempt has ended.
        """
        view, job, records = self.view, self.view.job, self.view.hosts.reports.tasks
        names = [task.name for task in view.tasks]
        steps = ({"task": name, **records[name]["progress"]} for name in names if records.get(name, {}).get("progress"))
        latest = max(steps, key=lambda each: (each["step"], bool(each["values"])), default=None)
        record = {
            "version": _VERSION,
            "event": event,
            "time": job.system.time(),
            "name": job.spec.title,
            "job_id": job.job_id,
            "scheduler": job.request.scheduler,
            "run_dir": str(job.run.path),
            "output_dir": str(output_dir(job.run, job.spec)),
            "attempt": view.attempt.number,
            "params": dict(job.spec.params),
            "hosts": list(view.hosts.hosts[:_MOST_HOSTS]),
            "tasks": dict(Counter(task.type for task in view.tasks)),
            "progress": latest and {name: latest[name] for name in ("task", "step", "values", "time")},
        }
        if end is not None:
            known = end.record("", view.reporter.started, job.system.time())
            about = ("state", "reason", "hint", "cause", "exit_code", "started", "ended", "again")
            record |= {**{name: known[name] for name in about}, "next": end.next}
        self.runner.add(record, self._tell)

    def _tell(self, what: str) -> None:
        self._remark = what
        self.view.reporter.notice(what)


class Runner:
    """Runs the commands of a job, for one event after the other.

    Args:
        job: The job.

    Attributes:
        helper: The process that does so.
    """

    def __init__(self, job: LaunchedJob) -> None:
        self._job = job
        self._limit, self._why = _limit(job.system.environ)
        self.helper = Helper(0.0, job.system)
        self._waiting: list[Record] = []
        self._running = ""  # the event whose commands run
        self._heard = b""
        self._until = self._deadline = float("inf")  # when what runs, and all that waits, is ended

    def add(self, record: Record, tell: Callable[[str], None]) -> None:
        """Have the commands run for an event.

        Args:
            record: What they are told.
            tell: Tells users what has gone wrong.
        """
        if len(self._waiting) == _MOST_EVENTS:
            tell(f"the hooks are late: {self._waiting.pop(0)['event']} was left out")
        self._waiting.append(record)

    def finish(self, limit: float, tell: Callable[[str], None]) -> None:
        """Run what is left, and leave no process.

        Args:
            limit: Seconds for it, if the site has no shorter limit.
            tell: As for add.
        """
        system = self._job.system
        begin, limit = system.monotonic(), min(limit, self._limit)
        self._deadline = begin + limit
        self._until = min(self._until, begin + limit / (1 + len(self._waiting)))
        while self._waiting or self.helper.pid is not None:
            self.serve(tell)
            if processes.is_end(system.wait(0.2)):
                self._deadline = min(self._deadline, system.monotonic() + HURRIED)
            if system.monotonic() >= self._deadline:
                for late in self._waiting:
                    tell(f"no time is left for the hooks at {late['event']}{self._why}")
                self._waiting.clear()
                self._until = min(self._until, self._deadline)
        from gridtf.bootstrap.agent.supervisor import Supervisor

        Supervisor([], system).tear_down(0.0, lambda: None)  # of a process that was killed

    def serve(self, tell: Callable[[str], None]) -> None:
        """Learn how the commands of an event have ended, end those that take too long, and start those of the next.

        Args:
            tell: As for add.
        """
        system, helper, commands = self._job.system, self.helper, self._job.spec.on
        self._heard += helper.hear()
        if helper.pid is not None:
            late = system.monotonic() - self._until
            if late >= _STUCK + _GRACE:
                helper.end(signal.SIGKILL)
            elif late >= 0:
                system.signal([helper.pid], signal.SIGTERM)
        if helper.pid is None and self._running:
            said = [json.loads(line) for line in self._heard.splitlines()]
            if not said or said[-1]["how"]:
                said.append({"how": "what ran the hooks was killed"})
            for how in [*filter(None, (one["how"] for one in said))]:
                tell(f"{how}, at {self._running}: see {self._job.run.hooks_log}")
            self._running, self._heard = "", b""
        if helper.pid is None and self._waiting:
            left = self._deadline - system.monotonic()
            limit = min(self._limit * len(commands), left / len(self._waiting))
            record = self._waiting.pop(0)
            self._running, self._until = record["event"], system.monotonic() + limit + _GRACE
            each = limit / len(commands)
            if not helper.start(lambda line: self._run(line, record, each)):
                self._running = ""
                tell(f"no process can be started for the hooks at {record['event']}")

    # --- in the process that runs them

    def _run(self, launcher: socket.socket, record: Record, limit: float) -> None:
        processes.keep_only([launcher.fileno()])
        processes.become_subreaper()
        processes.die_with_parent(self._job.system.pid, signal.SIGTERM)
        run, event = self._job.run, record["event"]
        with contextlib.suppress(GridtfError):
            code = read_record(registry.whole(run).code, {"commit?": (str, None)}, own=True)
            record["commit"] = (code or {}).get("commit")
        variables = {name: text for name, text in self._job.spec.env.items() if "{" not in text}
        env = {
            **schedulers.without_place(self._job.system.environ, self._job.scheduler),
            contract.OUTPUT_DIR: record["output_dir"],
            **variables,
            contract.RUN_DIR: record["run_dir"],
            contract.JOB_ID: record["job_id"],
            contract.JOB_NAME: record["name"],
            contract.ATTEMPT: str(record["attempt"]),
            contract.EVENT: event,
        }
        for number, command in enumerate(self._job.spec.on, 1):
            head = f"{strftime('%F %T', localtime())} {event}, attempt {record['attempt']}, hook {number}"
            how, over = _run_one(command, f"{json.dumps(record)}\n", env, run.hooks_log, head, limit, self._why)
            if how:  # without the command, which may contain a key
                launcher.sendall(json.dumps({"how": f"hook {number} {how}"}).encode() + b"\n")
            if over:
                break
        launcher.sendall(json.dumps({"how": ""}).encode() + b"\n")


def _limit(environ: Mapping[str, str]) -> tuple[float, str]:
    """(seconds for a command, and for all that are left when the job has ended; where the site's file says so)."""
    from gridtf.jobspec.config import limit_of_site

    with contextlib.suppress(GridtfError):  # a file that cannot be read on this host is no reason to fail
        if site := limit_of_site(HOOKS, environ):
            return float(site.value), f" ({site.source}: {HOOKS} = {site.value})"
    return LIMIT, ""


def _run_one(
    command: str, given: str, env: Mapping[str, str], log: Path, head: str, limit: float, why: str
) -> tuple[str, bool]:
    """Run a command to its end, with no process left.

    Returns:
        What has gone wrong, which may be nothing; and whether this process is to end.
    """
    from gridtf.bootstrap.agent.supervisor import Supervisor

    system = System()
    supervisor = Supervisor([], system)
    writer, (reader, output) = _opened(log, head), os.pipe()
    processes.signal_at_end_of(reader)
    try:
        with files.unnamed(given) as stdin:
            pid = system.start(["/bin/sh", "-c", command], env, output=output, given=stdin.fileno())
    except OSError as error:
        return f"was not run: {error.strerror}", False
    os.close(output)
    supervisor.others[pid] = None
    deadline, told, how, number = system.monotonic() + limit, 0, "", None
    while supervisor.others[pid] is None and not how:
        number = system.wait(min(1.0, max(0.0, deadline - system.monotonic())))
        told = _copy(reader, writer, told)
        supervisor.collect()
        if processes.is_end(number):
            how = f"was ended, since the job waits for it no longer{why}"
        elif system.monotonic() >= deadline:
            how = f"was ended after {limit:.0f} s{why}"
    code = supervisor.others.pop(pid)
    supervisor.tear_down(_GRACE, lambda: None)
    told = _copy(reader, writer, told)
    if told > _MOST_OUTPUT:
        with contextlib.suppress(OSError):
            os.write(writer, f"\n({told - _MOST_OUTPUT} more bytes were left out)\n".encode())
    for descriptor in (reader, writer):
        os.close(descriptor)
    if code and not how:
        how = f"failed with exit code {code}" if code > 0 else f"was killed by {processes.signal_name(-code)}"
    return how, processes.is_end(number)


def _opened(log: Path, head: str) -> int:
    """The log, with this line; /dev/null where it cannot be written: a hook may have to tell of a full disk."""
    try:
        writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(writer).st_size > _MOST_LOG:
            os.ftruncate(writer, 0)
        os.write(writer, f"--- {head}\n".encode())
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return writer


def _copy(reader: int, writer: int, told: int) -> int:
    """Copy what a command has printed to the log, as far as that is kept. Returns how much it has printed in all."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(_READS):
            data = os.read(reader, 1 << 16)
            with contextlib.suppress(OSError):  # a full disk
                os.write(writer, data[: max(0, _MOST_OUTPUT - told)])
            told += len(data)
    return told
