"""The embedded scheduler: this machine. The same script as elsewhere, in the background, with GPUs claimed by locks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import PlacementError, RunDirError, SchedulerError, SpecError
from gridtf.host import gpus, procfs
from gridtf.host.gpus import GpuGrant
from gridtf.host.processes import killed_by, signal_all
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, open_log, read_record
from gridtf.schedulers.agents import RUNNER_PID, fork_agent
from gridtf.schedulers.api import (
    LOOPBACK,
    AgentCall,
    AgentHandle,
    Allocation,
    GpuNeed,
    Host,
    JobIdentity,
    JobStatus,
    Parent,
    Plan,
    Scheduler,
    SubmitResult,
    Wait,
)
from gridtf.states import JobState
from gridtf.text import counted

if TYPE_CHECKING:
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# A job that waits for GPUs longer than this gives up; on a machine without a real queue nobody will miss it.
_LONGEST_WAIT = 24 * 3600.0

# gridtf and the standard library are all that it needs; what a user's folder calls signal.py must not become ours.
_RUNNER = """\
import sys
sys.path[:] = [*filter(None, sys.path), {root!r}]
from gridtf.bootstrap.node import run_job
sys.exit(run_job(sys.argv[1:]))"""


class LocalScheduler(Scheduler):
    """Jobs on this machine. A job's id is ``PID.HOST`` of the job runner that runs its script (bootstrap/node.py), or
    of the launcher of a job that was not submitted."""

    name = "local"
    title = "the local scheduler"
    requests_memory = False
    takes_native = False

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return True

    def is_current(self, environ: Mapping[str, str]) -> bool:
        return True

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        # this machine has no partitions to choose from
        tasks = {name: replace(table, partition=None) for name, table in spec.tasks.items()}
        request = super().resolve(replace(spec, partition=None, tasks=tasks), in_job=in_job)
        if request.nodes[0] > 1 and not in_job:
            hint = "raise --gpus-per-node" if request.gpus_per_task else "raise --tasks-per-node"
            raise SpecError(
                "nodes",
                f"{request.nodes[0]} hosts are needed, but the local scheduler has one",
                hint=f"{hint}, or ask for fewer nodes or workers",
            )
        return request

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return ()

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("bash", str(RunDir(plan.run_dir).script))

    def check(self, plan: Plan) -> Sequence[str]:
        request, environ = plan.request, {**os.environ, **plan.spec.env}
        if plan.spec.setup:  # which may say which GPUs and CPUs there are
            return ()
        present = gpus.present(environ)
        if wanted := _gpus_wanted(request, len(present)):
            _candidates(wanted, present, environ)
        elif (training := request.training or 0) > (slots := _slots(request)):
            raise PlacementError(
                f"{training} training tasks do not fit into the {slots} CPU slots of {os.uname().nodename}",
                hint="ask for fewer workers, or let tasks share cores with --tasks-per-node",
            )
        return ()

    def submit(self, plan: Plan) -> SubmitResult:
        import subprocess

        run, spec = RunDir(plan.run_dir), plan.spec
        code = _RUNNER.format(root=str(Path(__file__).parents[2]))
        words = [str(run.path), str(spec.kill_grace), str(spec.walltime or 0), *self.submit_command(plan)]
        try:
            with open_log(run.log) as log:
                runner = subprocess.Popen(
                    [plan.python, "-S", "-c", code, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # outlives the shell that submits it
                )
        except OSError as error:
            raise SchedulerError(f"cannot start {plan.python}: {error.strerror}") from None
        runner.returncode = 0  # it is to outlive this process, which does not wait for it
        return SubmitResult(_identity(runner.pid, ended=str(run.ended)))

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        return {job.job_id: _status(job) for job in jobs}

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        """TERM to the job runner, which tears everything down, or to the launcher of a job that was not submitted.
        force: KILL to all below the job runner, which ends then."""
        if not job.host:  # an id alone may be another process's by now
            pid_text, _, host = job.job_id.partition(".")
            hint = f"see whose it is, and end it yourself on host {host}: ps {pid_text}, kill {pid_text}"
            raise SchedulerError(f"local job {job.job_id} can only be cancelled through its run directory", hint=hint)
        if job.host != os.uname().nodename:
            raise SchedulerError(f"job {job.job_id} runs on {job.host}", hint="cancel a local job on its own host")
        pid = job.details.get("pid", 0)
        if pid <= 1 or not procfs.lives(_process(job)):
            return
        try:
            if force:
                signal_all([*procfs.descendants(pid), *([] if "ended" in job.details else [pid])], signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:  # it has just ended
            return
        except PermissionError:
            raise SchedulerError(f"job {job.job_id} is not yours", hint=f"{job.user} can cancel it") from None

    # --- inside a job

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        parent = os.getppid()  # a job that this one is a task of has left its own job runner's pid in the environment
        return _identity(parent if environ.get(RUNNER_PID) == str(parent) else os.getpid())

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        present = gpus.present(environ)
        wanted = _gpus_wanted(request, len(present))
        none = GpuGrant((), variables={gpus.VISIBLE: ""})
        grant = self._claim(wanted, present, environ, request, wait) if wanted else none
        _set_walltime(request)
        host, cpus = os.uname().nodename, len(os.sched_getaffinity(0))
        hosts = (Host(host, _slots(request), gpus=len(grant.gpus), cpus=cpus, address=LOOPBACK),)
        return Allocation(hosts, grant)

    def _claim(
        self, wanted: int, present: Sequence[str], environ: Mapping[str, str], request: Request, wait: Wait
    ) -> GpuGrant:
        """Claim GPUs, waiting for other jobs to let theirs go. The walltime does not run meanwhile."""
        import random

        candidates = _candidates(wanted, present, environ)
        owner = f"{request.name}, job {self.identity(environ).job_id}"
        deadline = time.monotonic() + _LONGEST_WAIT
        left = 0  # of the walltime, in seconds
        while True:
            claim = gpus.claim(wanted, candidates, owner, environ)
            if isinstance(claim, GpuGrant):
                if left:
                    signal.alarm(left)
                return claim
            left = signal.alarm(0) or left
            why = f"waiting for {counted(wanted, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
            if time.monotonic() > deadline:
                raise PlacementError(f"gave up after {_LONGEST_WAIT / 3600:g} h of {why}")
            wait(why, 0.5 + random.random() / 2)

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        return [fork_agent(host.name, call.arguments, call.main, allocation.gpus) for host in allocation.hosts]

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        """For processes that join: they share what the driver shows. An agent has the launcher's claim."""
        return GpuGrant(gpus.granted(environ) if gpus.VISIBLE in environ else gpus.present(environ))

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        if environ.get(RUNNER_PID) == str(parent.pid) and os.getppid() != parent.pid:
            return JobStatus(JobState.FAILED, f"the job runner, process {parent.pid}, was killed")
        return None

    def suspended(self, environ: Mapping[str, str]) -> bool:
        # the launcher, by Ctrl-Z in its terminal; a job that was submitted has none
        launcher = os.getppid()
        return environ.get(RUNNER_PID) != str(next(procfs.ancestors(launcher), 0)) and procfs.stopped(launcher)


def _gpus_wanted(request: Request, present: int) -> int:
    """GPUs of the job on this host. present: how many it has."""
    if (per_node := request.chosen("gpus_per_node")) is not None:
        return int(per_node)
    default = 1 if present else 0
    wanted, per_task = request.gpus_in_all(default), request.most_gpus(default)
    if wanted is None:  # as many workers as there is room for
        return present - present % per_task if per_task else 0
    return wanted


def _candidates(wanted: int, present: Sequence[str], environ: Mapping[str, str]) -> Sequence[str]:
    """The GPUs to claim some of. Raises PlacementError when they are too few."""
    found = present or gpus.declared(wanted, environ)
    if wanted > len(found):
        host, visible = os.uname().nodename, environ.get(gpus.VISIBLE)
        raise PlacementError(
            f"{wanted} GPUs are asked for, but {host} has {len(found)}",
            why="" if visible is None else f"{gpus.VISIBLE} is {visible!r}",
            hint="ask for fewer with --gpus-per-node or --workers",
        )
    return found


def _slots(request: Request) -> int:
    """Training tasks that this machine has room for where GPUs do not say."""
    per_task = next((role.cpus for role in reversed(request.roles) if role.takes_gpu), None) or 1
    return int(request.chosen("tasks_per_node") or max(1, len(os.sched_getaffinity(0)) // per_task))


def _set_walltime(request: Request) -> None:
    """Unless it runs already, since the script began."""
    if request.walltime and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.alarm(request.walltime)


def _identity(pid: int, **more: str) -> JobIdentity:
    found = procfs.identity(pid)
    host = str(found.pop("host"))
    return JobIdentity(f"{pid}.{host}", {**found, **more}, host=host)


def _process(job: JobIdentity) -> Record:
    """What names the process of a job, as procfs.identity has it."""
    return {**job.details, "host": job.host}


def _status(job: JobIdentity) -> JobStatus:
    try:
        return _status_here(job)
    except RunDirError as error:  # of this job alone
        return JobStatus(JobState.UNKNOWN, error.what)


def _status_here(job: JobIdentity) -> JobStatus:
    pid, ended = job.details.get("pid", 0), job.details.get("ended")
    if job.host != os.uname().nodename:
        return JobStatus(JobState.UNKNOWN, f"it runs on {job.host}; ask there")
    if pid > 0:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # a child of this process, when the one that submitted the job asks
    if procfs.lives(_process(job)):
        return JobStatus(JobState.RUNNING)
    if job.details.get("boot") == procfs.boot_id() and ended:
        end = read_record(Path(ended), recordtypes.Ended)
        if end is not None:
            return _ended(end)
        if _launcher_lives(Path(ended).parent):
            return JobStatus(JobState.RUNNING, "its job runner was killed; it is ending")
    return JobStatus(JobState.UNKNOWN, "its process is gone", purged=True)


def _launcher_lives(run_dir: Path) -> bool:
    latest = RunDir(run_dir).latest()
    launcher = (read_record(latest.launcher, recordtypes.Launcher) if latest else None) or {}
    return procfs.lives(launcher)


def _ended(end: Record) -> JobStatus:
    """From the job runner's record of how the script has ended. Pure."""
    if end.get("error"):
        return JobStatus(JobState.FAILED, str(end["error"]))
    if end.get("told"):
        return JobStatus(JobState.CANCELLED, f"told to end by {end['told']}")
    if end.get("signal") == "SIGALRM":
        return JobStatus(JobState.TIMEOUT, "the walltime is over")
    if end.get("signal"):
        number = getattr(signal, str(end["signal"]), None)
        how = killed_by(number) if number else f"killed by {end['signal']}"
        return JobStatus(JobState.FAILED, f"the job script was {how}")
    state = JobState.COMPLETED if end.get("exit") == 0 else JobState.FAILED
    return JobStatus(state, f"the job script ended with exit code {end['exit']}")


scheduler = LocalScheduler()
