"""Faults of hosts, schedulers and gridtf's own processes, each with the first line that `gridtf status` must have.

All of them befall jobs that were submitted, of two tasks on two hosts (on one with the local scheduler), many at once:
tests/local/test_host_faults.py and tests/cluster/test_host_faults.py. docs/reference.md shows them. Faults of
programs: programs.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from gridtf.run.rundir import read_record
from gridtf.states import ENDED
from gridtf.values import Fields
from tests.faults.firstlines import fits
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import FAMILY, admin, late_agents, mounted, no_process_left, parent
from tests.support.clusterjobs import ClusterJob

SCHEDULERS = ("local", "slurm", "sge")
SHORT = "6"  # heartbeat_timeout, in seconds, where a fault is noticed only by its silence
LATE = "15"  # start_timeout, in seconds, where an agent does not report
TASKS = ("worker:0", "worker:1")
_LIMIT = 900.0  # seconds for all jobs of one round; on a quiet machine they take a small part of it

Act = Callable[[ClusterJob], None]
Before = Callable[[Bed, str], AbstractContextManager[None]]


class HostFault(Fields):
    """One fault.

    Attributes:
        name: Of the fault, and of its jobs.
        what: What happens.
        lines: Scheduler -> the expected first line (firstlines.py); a scheduler that cannot have the fault is absent.
        act: Brings it about; None: the job itself does.
        noticed: Who notices it, and how the rest is ended.
        after: When that is noticed.
        state: The final state of the job.
        words: Options of the job.
        set_up: Whether it happens while the set-up lines run, which have printed "begun" then.
        before: Prepares a host before the job is submitted.
    """

    name: str
    what: str
    lines: Mapping[str, str]
    act: Act | None
    noticed: str
    after: str = "at once"
    state: str = "FAILED"
    words: Sequence[str] = ()
    set_up: bool = False
    before: Before | None = None


# --- what befalls a job


def agent(job: ClusterJob, task: str = TASKS[1]) -> tuple[str, int]:
    """Host and process id of the agent of a task."""
    record = job.tasks()[task]
    return record["host"], record["agent"]


def launcher(job: ClusterJob) -> tuple[str, int]:
    """Host and process id of the launcher."""
    record = read_record(job.attempt.launcher) or {}
    return record["host"], record["pid"]


def send(job: ClusterJob, number: signal.Signals, process: tuple[str, int]) -> None:
    admin(job.bed, "kill", f"-{number.value}", str(process[1]), host=process[0])


def to_task(number: signal.Signals) -> Act:
    def act(job: ClusterJob) -> None:
        record = job.tasks()[TASKS[1]]
        send(job, number, (record["host"], record["pid"]))

    return act


def to_agent(number: signal.Signals, task: str = TASKS[1]) -> Act:
    return lambda job: send(job, number, agent(job, task))


def to_launcher(number: signal.Signals) -> Act:
    return lambda job: send(job, number, launcher(job))


def kill_above_agent(generations: int) -> Act:
    """Kill an ancestor of the second host's agent: 1 is the agent supervisor."""

    def act(job: ClusterJob) -> None:
        host, pid = agent(job)
        for _ in range(generations):
            pid = parent(job.bed, host, pid)
        send(job, signal.SIGKILL, (host, pid))

    return act


def kill_starter(job: ClusterJob) -> None:
    """Kill what has started the second host's agent and waits for it: the launcher's child srun or qrsh."""
    host, pid = launcher(job)
    name, words = ("srun", "") if job.bed.kind == "slurm" else ("qrsh", f"-inherit .* {agent(job)[0]} ")
    listed = admin(job.bed, "pgrep", "-P", str(pid), "-f", f"{name} {words}".strip(), host=host)
    for found in listed.split():
        send(job, signal.SIGKILL, (host, int(found)))


def kill_runner(job: ClusterJob) -> None:
    """Kill what has started the job script."""
    host, pid = launcher(job)
    send(job, signal.SIGKILL, (host, parent(job.bed, host, pid)))


def cancel(job: ClusterJob) -> None:
    job.gridtf("cancel")


def delete(job: ClusterJob) -> None:
    """Cancel the job by its scheduler's own command."""
    job.bed.run("login", job.bed.delete, job.id, user=job.user)


def end_soon(job: ClusterJob) -> None:
    """Slurm's walltimes are whole minutes: shorten this one. The other schedulers' are seconds in the job's options."""
    if job.bed.kind == "slurm":
        admin(job.bed, "scontrol", "update", f"JobId={job.id}", "EndTime=now+1second")


def remove_step(job: ClusterJob) -> None:
    """Its second request to the controller may find that the step has ended."""
    job.bed.run("login", "scancel", f"{job.id}.0", check=False)


def hosts_of(job: ClusterJob) -> tuple[str, str]:
    """The launcher's host, and the other one."""
    first, second = (job.tasks()[task]["host"] for task in TASKS)
    return first, second


def cut(job: ClusterJob) -> None:
    """Cut the link of the second host until nobody is left on either side."""
    _, second = hosts_of(job)
    job.bed.cut(second)
    job.verdict()
    no_process_left(job.bed, hosts_of(job), 60)
    job.bed.mend(second)


def power_off(job: ClusterJob) -> None:
    first, second = hosts_of(job)
    job.bed.kill(second)
    job.verdict()
    no_process_left(job.bed, [first], 60)
    job.bed.mend(second)


def tasks_end(job: ClusterJob, *names: str) -> None:
    """Wait until these tasks have ended, as their hosts see it."""
    tasks = job.tasks()
    for name in names:
        look = ("test", "-d", f"/proc/{tasks[name]['pid']}")
        host = tasks[name]["host"]
        job.until(lambda: job.bed.run(host, *look, user="root", check=False, cwd="/").returncode, "the tasks' end")  # noqa: B023


def cut_first(job: ClusterJob) -> None:
    """Cut the link of the launcher's host, which has the run directory behind it, until all tasks have ended."""
    first, second = hosts_of(job)
    job.bed.cut(first)
    no_process_left(job.bed, [second], 60)
    tasks_end(job, TASKS[0])
    job.bed.mend(first)


def power_off_first(job: ClusterJob) -> None:
    first, second = hosts_of(job)
    job.bed.kill(first)
    no_process_left(job.bed, [second], 60)
    if job.bed.kind == "slurm":  # Grid Engine waits for the host, and knows what became of the job when it is back
        job.until(lambda: job.status()["state"] != "RUNNING", "Slurm to give the host up", 120)
    job.bed.mend(first)


def kill_while(state: str) -> Act:
    """Kill a task while the shared folder is in this state on both hosts."""

    def act(job: ClusterJob) -> None:
        hosts = set(hosts_of(job))
        for host in hosts:
            job.bed.spoil(host, state)
        to_task(signal.SIGKILL)(job)
        tasks_end(job, *TASKS)
        for host in hosts:
            job.bed.spoil(host, "well")

    return act


def without_gridtf(bed: Bed, host: str) -> AbstractContextManager[None]:
    return mounted(bed, host, "-t", "tmpfs", "none", str(CHECKOUT / "gridtf/bootstrap"))


def without_python(bed: Bed, host: str) -> AbstractContextManager[None]:
    return mounted(bed, host, "--bind", "/dev/null", os.path.realpath(sys.executable))


@contextmanager
def full_tmp(bed: Bed, host: str) -> Iterator[None]:
    # the host's own file system: another one in its place might hide the checkout
    fill = "mount -o remount,size=1m /tmp && cat /dev/zero >/tmp/full; test -s /tmp/full"
    admin(bed, "sh", "-c", fill, host=host)
    try:
        yield
    finally:
        admin(bed, "sh", "-c", "rm /tmp/full && mount -o remount,size=50% /tmp", host=host)


_KILLED = "killed by SIGKILL"
_SILENT = f"no heartbeat from host HOST for {SHORT} s"
_SOON = ("--heartbeat-timeout", SHORT)
_NO_VERDICT = "ended without a verdict: the launcher on HOST was killed by SIGKILL"
_GRIDTF_CANCELLED = "cancelled by … on HOST"
_HANG = "echo begun; sleep 300"
_WALLTIME = ("--time", "60s")
_TASKS_DIE = "the launcher, which has the other agents end their tasks"
_AGENT_DIES = "its supervisor, or the launcher, which has the other agents end their tasks; its own die with it"
_LAUNCHER = "its agent tells the launcher, which has all agents end their tasks"


def everywhere(line: str) -> Mapping[str, str]:
    """The same line with each scheduler."""
    return dict.fromkeys(SCHEDULERS, line)


def remote(slurm: str, sge: str = "") -> Mapping[str, str]:
    """The lines of schedulers with several hosts."""
    return {"slurm": slurm, "sge": sge or slurm}


OF_JOBS: tuple[HostFault, ...] = (
    HostFault(
        "task-killed",
        "a task is killed",
        everywhere(f"worker:1 on HOST: {_KILLED}"),
        to_task(signal.SIGKILL),
        _LAUNCHER,
    ),
    HostFault(
        "task-ended",
        "a task gets SIGTERM",
        everywhere("worker:1 on HOST: killed by SIGTERM"),
        to_task(signal.SIGTERM),
        _LAUNCHER,
    ),
    HostFault(
        "agent-killed",
        "an agent is killed",
        everywhere(f"the agent on host HOST was {_KILLED}"),
        to_agent(signal.SIGKILL),
        _AGENT_DIES,
    ),
    HostFault(
        "first-agent-killed",
        "the agent of the launcher's host is killed",
        remote(f"the agent on host HOST was {_KILLED}"),
        to_agent(signal.SIGKILL, TASKS[0]),
        _AGENT_DIES,
    ),
    HostFault(
        "agent-ended",
        "an agent gets SIGTERM",
        everywhere("the agent on host HOST received SIGTERM (the scheduler gives no reason)"),
        to_agent(signal.SIGTERM),
        "it ends its tasks and tells the launcher, which ends the others",
    ),
    HostFault(
        "agent-stopped",
        "an agent is stopped (SIGSTOP)",
        everywhere(_SILENT),
        to_agent(signal.SIGSTOP),
        "the launcher misses its signs of life",
        "after `heartbeat_timeout`",
        "NODE_FAIL",
        _SOON,
    ),
    HostFault(
        "supervisor-killed",
        "the supervisor of an agent is killed",
        remote("the process that started the agent on host HOST was killed…"),
        kill_above_agent(1),
        f"its agent, which ends its tasks, and {_TASKS_DIE}",
    ),
    HostFault(
        "starter-killed",
        "srun or qrsh is killed",
        remote(
            f"srun, which had started the agents, was {_KILLED}", f"qrsh, the connection to host HOST, was {_KILLED}"
        ),
        kill_starter,
        _TASKS_DIE,
    ),
    HostFault(
        "step-cancelled",
        "the job step of the agents is cancelled",
        {"slurm": "the agents' job step N.N was cancelled…"},
        remove_step,
        _TASKS_DIE,
    ),
    HostFault(
        "launcher-killed",
        "the launcher is killed",
        {
            **everywhere(f"{_NO_VERDICT}: by a user, or by the kernel because memory ran out"),
            "sge": f"{_NO_VERDICT}: by qdel, for a limit of its queue, or by a user on its host",
        },
        to_launcher(signal.SIGKILL),
        "the agents lose their connection and end their tasks; the scheduler says how the script ended",
    ),
    HostFault(
        "launcher-ended",
        "the launcher gets SIGTERM",
        everywhere("the launcher received SIGTERM"),
        to_launcher(signal.SIGTERM),
        "it has all agents end their tasks",
        state="CANCELLED",
    ),
    HostFault(
        "launcher-stopped",
        "the launcher is stopped (SIGSTOP)",
        everywhere("the launcher on host HOST was stalled for N s…"),
        to_launcher(signal.SIGSTOP),
        "the agents miss its signs of life and end their tasks; that of its host lets it go on",
        "after `heartbeat_timeout`",
        words=_SOON,
    ),
    HostFault(
        "runner-killed",
        "what has started the job script is killed",
        {
            "local": "the job runner, process N, was killed",
            "sge": "the job script on host HOST, or the sge_shepherd that had started it, was killed",
        },
        kill_runner,
        "the launcher misses its parent, and has all agents end their tasks",
    ),
    HostFault(
        "cancelled",
        "`gridtf cancel`",
        everywhere(_GRIDTF_CANCELLED),
        cancel,
        "the scheduler signals the launcher",
        state="CANCELLED",
    ),
    HostFault(
        "deleted",
        "`scancel` or `qdel`",
        remote("cancelled with scancel", "deleted with qdel"),
        delete,
        "the scheduler signals the launcher, or the agents, which tell it",
        state="CANCELLED",
    ),
    HostFault(
        "cancelled-early",
        "`gridtf cancel` during the set-up",
        everywhere(_GRIDTF_CANCELLED),
        cancel,
        "the scheduler ends the script",
        state="CANCELLED",
        words=("--setup", _HANG),
        set_up=True,
    ),
    HostFault(
        "deleted-early",
        "`scancel` or `qdel` during the set-up",
        remote("CANCELLED during the set-up", "deleted with qdel during the set-up"),
        delete,
        "the scheduler ends the script",
        state="CANCELLED",
        words=("--setup", _HANG),
        set_up=True,
    ),
    HostFault(
        "walltime",
        "the walltime is over",
        {"local": "the walltime is over", "slurm": "the walltime is over", "sge": "the walltime is over (h_rt)"},
        end_soon,
        "the scheduler signals the launcher, which has all agents end their tasks",
        "at its end",
        "TIMEOUT",
        _WALLTIME,
    ),
    HostFault(
        "set-up-hangs",
        "a set-up line hangs until the walltime is over",
        everywhere("the walltime is over… during the set-up"),
        end_soon,
        "the scheduler ends the script",
        "at its end",
        "TIMEOUT",
        (*_WALLTIME, "--setup", _HANG),
        set_up=True,
    ),
    HostFault(
        "set-up-fails",
        "a set-up line fails",
        everywhere("set-up line N (--setup) failed with exit code 2 on HOST; last output: ls: cannot access …"),
        None,
        "the script, before there is a launcher",
        words=("--setup", "LC_ALL=C ls /nowhere"),
    ),
    HostFault(
        "set-up-killed",
        "the job script is killed in a set-up line",
        everywhere("ended without a verdict: the job script ended before the launcher started; …killed by SIGKILL…"),
        None,
        "the scheduler",
        words=("--setup", "kill -9 $$"),
    ),
    HostFault(
        "open-files",
        "the limit on open files is too low",
        everywhere("about N open files are needed on host HOST, but the limit is 16"),
        None,
        "the launcher, before it starts an agent",
        words=("--setup", "ulimit -n 16"),
    ),
)

# Faults of a whole host: each job has two hosts for itself.
OF_HOSTS: tuple[HostFault, ...] = (
    HostFault(
        "link-cut",
        "the link of a host is cut",
        remote(_SILENT),
        cut,
        "the launcher misses its signs of life; the host ends its own tasks likewise",
        "after `heartbeat_timeout`",
        "NODE_FAIL",
        _SOON,
    ),
    HostFault(
        "power-cut",
        "the power of a host is cut",
        remote(_SILENT, "the connection to host HOST is lost…"),
        power_off,
        "the launcher misses its signs of life",
        "after `heartbeat_timeout`",
        "NODE_FAIL",
        _SOON,
    ),
    HostFault(
        "first-link-cut",
        "the link of the launcher's host is cut, and mended later",
        remote(_SILENT),
        cut_first,
        "both sides miss each other and end their tasks; the launcher writes why when it reaches the run directory",
        "after `heartbeat_timeout`",
        "NODE_FAIL",
        _SOON,
    ),
    HostFault(
        "first-power-cut",
        "the power of the launcher's host is cut",
        remote("ended without a verdict: the launcher on HOST ended; the scheduler reports NODE_FAIL…"),
        power_off_first,
        "the agents miss the launcher and end their tasks; the scheduler says what became of the host",
        "after `heartbeat_timeout`",
        "NODE_FAIL",
        _SOON,
    ),
    HostFault(
        "folder-full",
        "a task is killed while the disk of the run directory is full",
        {"local": f"worker:1 on HOST: {_KILLED}"},
        kill_while("full"),
        f"{_LAUNCHER}; the verdict has its space reserved",
    ),
    HostFault(
        "folder-hangs",
        "a task is killed while the shared folder hangs",
        remote(f"worker:1 on HOST: {_KILLED}"),
        kill_while("hang"),
        f"{_LAUNCHER}; the verdict is written when the folder is back",
    ),
    HostFault(
        "folder-read-only",
        "a task is killed while the shared folder is read-only",
        remote(f"worker:1 on HOST: {_KILLED}"),
        kill_while("read-only"),
        f"{_LAUNCHER}; the verdict is written when that is possible again, within a minute",
    ),
    HostFault(
        "tmp-full",
        "a task is killed on a host whose `/tmp` is full",
        remote(f"worker:1 on HOST: {_KILLED}"),
        to_task(signal.SIGKILL),
        _LAUNCHER,
        before=full_tmp,
    ),
    HostFault(
        "agent-hangs",
        "the agent of a host does not report",
        remote(f"no report from 1 host after {LATE} s: HOST (their tasks: worker:1)"),
        None,
        "the launcher",
        "after `start_timeout`",
        words=("--start-timeout", LATE, "--env", "AGENT_DELAY=120"),
        before=late_agents,
    ),
    HostFault(
        "no-gridtf",
        "gridtf is missing on a host",
        remote("the agent on host HOST ended with exit code 1 (ModuleNotFoundError: No module named 'gridtf…')"),
        None,
        "the launcher; the reason has the last line that the agent printed",
        before=without_gridtf,
    ),
    HostFault(
        "no-python",
        "the Python that runs gridtf is missing on a host",
        remote("the agent on host HOST ended with exit code N (… Permission denied…)"),
        None,
        "the launcher; the reason has the last line that srun or qrsh printed",
        before=without_python,
    ),
)


# --- jobs that have them

_PAIRS = (("n1", "n2"), ("n3", "n4"))
# The scheduler is not to start a job again that has lost its host, or what had started its script there.
NOT_AGAIN = {"local": (), "slurm": ("--native=--no-requeue",), "sge": ("--native=-r n",)}


def start(fault: HostFault, bed: Bed, *words: str) -> ClusterJob:
    """Submit a job that is to have a fault."""
    one, two = ("--workers", "2", "--tasks-per-node", "2"), ("--nodes", "2", "--tasks-per-node", "1")
    given = [*bed.options, "--name", fault.name, *(one if bed.kind == "local" else two), "--kill-grace", "1"]
    given += [*NOT_AGAIN[bed.kind], *fault.words, *words]
    if bed.kind == "slurm" and "--time" in given:
        given[given.index("--time") + 1] = "1"
    return ClusterJob(bed, *given, "--", "bash", "-c", FAMILY)


def ready(fault: HostFault, job: ClusterJob) -> bool:
    """Whether the fault can befall a job now, or something else has befallen it."""
    if _has_verdict(job):
        return True
    if fault.set_up:
        return "begun" in job.output
    states = [task["state"] for task in job.tasks().values()] if job.run.latest() else []
    return states == ["RUNNING"] * len(TASKS)


def of_scheduler(scheduler: str, faults: Sequence[HostFault]) -> list[HostFault]:
    """Those of some faults that jobs of a scheduler can have."""
    return [fault for fault in faults if scheduler in fault.lines]


def wrong_lines(faults: Sequence[HostFault], bed: Bed, *words: str) -> dict[str, str]:
    """Have each of these faults befall a job of its own, all at once.

    Args:
        faults: The faults.
        bed: Where the jobs run.
        words: Further options of the jobs.

    Returns:
        Fault -> what is wrong with the end of its job, where that is not as expected.
    """
    return _followed({fault: start(fault, bed, *words) for fault in faults})


def wrong_lines_of_hosts(faults: Sequence[HostFault], bed: Bed) -> dict[str, str]:
    """The same for faults of whole hosts, two at once; nobody is left on any host after each."""
    wrong = {}
    for number in range(0, len(faults), len(_PAIRS)):
        with ExitStack() as prepared:
            jobs = {}
            for fault, pair, other in zip(faults[number : number + 2], _PAIRS, reversed(_PAIRS), strict=False):
                if fault.before is not None:
                    prepared.enter_context(fault.before(bed, pair[1]))
                jobs[fault] = start(fault, bed, "--exclude", ",".join(other))
            wrong.update(_followed(jobs))
        no_process_left(bed)
        bed.tidy()
    return wrong


def _followed(jobs: Mapping[HostFault, ClusterJob]) -> dict[str, str]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = pool.map(_wrong, jobs, jobs.values())
        return {fault.name: wrong for fault, wrong in zip(jobs, found, strict=True) if wrong}


def _wrong(fault: HostFault, job: ClusterJob) -> str:
    """Have a fault befall a job; returns what is wrong with its end."""
    end = time.monotonic() + _LIMIT
    try:
        if fault.act is not None:
            job.until(lambda: ready(fault, job), "the job to be ready", _LIMIT)
            fault.act(job)
        view, pause = job.status(), 1.0
        while not _right(fault, job.bed.kind, view) and not _final(job, view) and time.monotonic() < end:
            # A question takes a Python and a command of the scheduler's, and twenty jobs ask at once.
            had, until = _has_verdict(job), time.monotonic() + pause
            while time.monotonic() < until and _has_verdict(job) == had:
                time.sleep(0.2)
            view, pause = job.status(), min(2 * pause, 16.0)
    except AssertionError as error:
        return f"{error}\n{job.output}"
    return "" if _right(fault, job.bed.kind, view) else f"{view['state']}: {view['reason']}\n{job.output}"


def _right(fault: HostFault, scheduler: str, view: Mapping[str, Any]) -> bool:
    return view["state"] == fault.state and fits(fault.lines[scheduler], view["reason"])


def _final(job: ClusterJob, view: Mapping[str, Any]) -> bool:
    """Whether the first line stays: without a verdict the scheduler may still add how the script has ended."""
    return view["state"] in ENDED and _has_verdict(job)


def _has_verdict(job: ClusterJob) -> bool:
    return job.run.latest() is not None and job.attempt.verdict.exists()
