"""The embedded scheduler: this machine. The same script as elsewhere, in the background, with GPUs claimed by locks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import PlacementError, RunDirError, SchedulerError, SpecError
from gridtf.files import unnamed
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
from gridtf.states import AGAIN_CODE, JobState
from gridtf.text import counted, some

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# Seconds after which a job gives up waiting for GPUs.
_LONGEST_WAIT = 24 * 3600.0

# It needs only gridtf and the standard library; a signal.py in the user's folder must not be imported in its place.
_RUNNER = """\
import sys
sys.path[:] = [*filter(None, sys.path), {root!r}]
from gridtf.bootstrap.agent.node import run_job
sys.exit(run_job(sys.argv[1:]))"""


class LocalScheduler(Scheduler):
    """Jobs on this machine.

    A job's id is ``PID.HOST`` of the job runner that runs its script (bootstrap/agent/node.py), or of the launcher of a job
    that was not submitted.
    """

    name = "local"
    title = "the local scheduler"
    requests_memory = False
    takes_native = False

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return True

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.findings import Examination, Finding, Level

        host, present = os.uname().nodename, gpus.present(environ)
        cores = counted(len(os.sched_getaffinity(0)), "core")
        has = f"{counted(len(present), 'GPU')} ({some([*present])})" if present else "no GPU that the driver reports"
        jobs = Finding(Level.OK, "scheduler", f"jobs run on this machine, {host}: {cores}, {has}")
        return Examination((jobs,))

    def is_current(self, environ: Mapping[str, str]) -> bool:
        return True

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        from gridtf.jobspec.spec import need_walltime

        if spec.spare_nodes:
            hint = "leave spare_nodes out: restarts work without it"
            raise SpecError("spare_nodes", "the local scheduler has one host, and none to spare", hint=hint)
        # this machine has no partitions to choose from
        need_walltime(spec)
        tasks = {name: table.replace(partition=None) for name, table in spec.tasks.items()}
        request = super().resolve(spec.replace(partition=None, tasks=tasks), in_job=in_job)
        if request.nodes[0] > 1 and not in_job:
            hint = "raise --gpus-per-node" if request.gpus_per_task else "raise --tasks-per-node"
            raise SpecError(
                "nodes",
                f"{request.nodes[0]} hosts are needed, but the local scheduler has one",
                hint=f"{hint}, or request fewer nodes or workers",
            )
        return request

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return ()

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("bash",)

    def check(self, plan: Plan) -> Sequence[str]:
        request, environ = plan.request, {**os.environ, **plan.spec.env}
        if plan.spec.setup:  # these lines may set which GPUs and CPUs the job has
            return ()
        present = gpus.present(environ)
        host = os.uname().nodename
        if count := _gpu_count(request, len(present)):
            try:
                names = ",".join(_candidates(count, present, environ)[:count])
            except PlacementError as error:
                key = "tasks.worker.count" if plan.spec.gpus_per_node is None else "gpus_per_node"
                raise SpecError(key, error.what, why=error.why, hint=error.hint) from None
            if present or gpus.VISIBLE in environ:
                return ()
            unseen = f"{host} has no GPU that the NVIDIA driver reports; tasks get CUDA_VISIBLE_DEVICES from {names}"
            return (f"{unseen} as declared, and train on the CPU where these do not exist",)
        if (training := request.training or 0) > (slots := _slots(request)):
            raise SpecError(
                "tasks.worker.count",
                f"{training} training tasks do not fit into the {slots} CPU slots of {host}",
                hint="request fewer workers, or let tasks share cores with --tasks-per-node",
            )
        cores = len(os.sched_getaffinity(0))
        if _one_worker(request) and cores > 1:
            return (f"one worker, since {host} has no GPU: --workers N starts N, up to one for each of {cores} cores",)
        return ()

    def submit(self, plan: Plan) -> SubmitResult:
        import subprocess

        run, spec = RunDir(plan.run_dir), plan.spec
        code = _RUNNER.format(root=str(Path(__file__).parents[2]))
        words = [str(run.path), str(spec.kill_grace), str(spec.walltime or 0)]
        try:
            script = unnamed(plan.script)
        except OSError as error:
            raise SchedulerError(f"cannot write a temporary file: {error.strerror}") from None
        try:
            with script, open_log(run.log) as log:
                runner = subprocess.Popen(
                    [plan.python, "-S", "-c", code, *words],
                    stdin=script,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # outlives the shell that submits it
                )
        except OSError as error:
            raise SchedulerError(f"cannot start {plan.python}: {error.strerror}") from None
        runner.returncode = 0  # it shall outlive this process, which does not wait for it
        return SubmitResult(_identity(runner.pid, ended=str(run.ended)))

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        return {job.job_id: _status(job) for job in jobs}

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        """Send TERM to the job runner, which ends all tasks, or to the launcher of a job that was not submitted.

        With force, send KILL to all processes below the job runner, which ends then.
        """
        if not job.host:  # the id alone may be another process's by now
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
        parent = os.getppid()  # in a task of another local job, the variable has that job's runner
        return _identity(parent if environ.get(RUNNER_PID) == str(parent) else os.getpid())

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        present = gpus.present(environ)
        count = _gpu_count(request, len(present))
        none = GpuGrant((), variables={gpus.VISIBLE: ""})
        grant = self._claim(count, present, environ, request, wait) if count else none
        _set_walltime(request)
        host, cpus = os.uname().nodename, len(os.sched_getaffinity(0))
        hosts = (Host(host, _slots(request), gpus=len(grant.gpus), cpus=cpus, address=LOOPBACK),)
        return Allocation(hosts, grant)

    def _claim(
        self, count: int, present: Sequence[str], environ: Mapping[str, str], request: Request, wait: Wait
    ) -> GpuGrant:
        """Claim GPUs, waiting for other jobs to release theirs. The walltime does not count while waiting."""
        import random

        candidates = _candidates(count, present, environ)
        owner = f"{request.name}, job {self.identity(environ).job_id}"
        deadline = time.monotonic() + _LONGEST_WAIT
        remaining = 0  # seconds of the walltime
        while True:
            claim = gpus.claim(count, candidates, owner, environ)
            if isinstance(claim, GpuGrant):
                if remaining:
                    signal.alarm(remaining)
                return claim
            remaining = signal.alarm(0) or remaining
            why = f"waiting for {counted(count, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
            if time.monotonic() > deadline:
                raise PlacementError(f"gave up after {_LONGEST_WAIT / 3600:g} h of {why}")
            wait(why, 0.5 + random.random() / 2)

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        return [fork_agent(host.name, call.arguments, call.main, allocation.gpus) for host in allocation.hosts]

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        """For processes that join: they share the visible GPUs. Agents use the GPUs that the launcher has claimed."""
        return GpuGrant(gpus.granted(environ) if gpus.VISIBLE in environ else gpus.present(environ))

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        if environ.get(RUNNER_PID) == str(parent.pid) and os.getppid() != parent.pid:
            return JobStatus(JobState.FAILED, f"the job runner, process {parent.pid}, was killed")
        return None

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        remaining = signal.getitimer(signal.ITIMER_REAL)[0]  # the walltime does not count while GPUs are waited for
        return time.time() + remaining if remaining else None

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        return "" if environ.get(RUNNER_PID) == str(os.getppid()) else "gridtf did not submit it"

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        return AGAIN_CODE

    def suspended(self, environ: Mapping[str, str]) -> bool:
        # the launcher, by Ctrl-Z in its terminal; a job that was submitted has no terminal
        launcher = os.getppid()
        return environ.get(RUNNER_PID) != str(next(procfs.ancestors(launcher), 0)) and procfs.stopped(launcher)


def _gpu_count(request: Request, present: int) -> int:
    """Number of GPUs of the job. present: number of GPUs of this host."""
    if (per_node := request.chosen("gpus_per_node")) is not None:
        return int(per_node)
    default = 1 if present else 0
    count, per_task = request.gpus_in_all(default), request.most_gpus(default)
    if count is None:  # as many workers as fit
        return present - present % per_task if per_task else 0
    return count


def _candidates(count: int, present: Sequence[str], environ: Mapping[str, str]) -> Sequence[str]:
    """The GPUs from which count GPUs can be claimed. Raises PlacementError when they are too few."""
    candidates = present or gpus.declared(count, environ)
    if count > len(candidates):
        host, visible = os.uname().nodename, environ.get(gpus.VISIBLE)
        raise PlacementError(
            f"{count} GPUs are requested, but {host} has {len(candidates)}",
            why="" if visible is None else f"{gpus.VISIBLE} is {visible!r}",
            hint="request fewer with --gpus-per-node or --workers",
        )
    return candidates


def _one_worker(request: Request) -> bool:
    """Whether, without GPUs, the job has one worker: nobody has asked for all cores, which others may be using."""
    return request.training is None and request.chosen("tasks_per_node") is None


def _slots(request: Request) -> int:
    """Number of training tasks that fit on this machine if GPUs do not limit it."""
    if _one_worker(request):
        return sum(role.takes_gpu for role in request.roles)  # and a leader
    per_task = next((role.cpus for role in reversed(request.roles) if role.takes_gpu), None) or 1
    return int(request.chosen("tasks_per_node") or max(1, len(os.sched_getaffinity(0)) // per_task))


def _set_walltime(request: Request) -> None:
    """Start the timer of the walltime, unless it has been running since the script began."""
    if request.walltime and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.alarm(request.walltime)


def _identity(pid: int, **more: str) -> JobIdentity:
    process = procfs.identity(pid)
    host = str(process.pop("host"))
    return JobIdentity(f"{pid}.{host}", {**process, **more}, host=host)


def _process(job: JobIdentity) -> Record:
    """The job's process in the form of procfs.identity."""
    return {**job.details, "host": job.host}


def _status(job: JobIdentity) -> JobStatus:
    pid, ended = job.details.get("pid", 0), job.details.get("ended")
    if job.host != os.uname().nodename:
        return JobStatus(JobState.UNKNOWN, f"it runs on {job.host}; query it there")
    if pid > 0:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # it is a child of this process if this process has submitted it
    if procfs.lives(_process(job)):
        return JobStatus(JobState.RUNNING)
    if job.details.get("boot") == procfs.boot_id() and ended:
        try:
            end = read_record(Path(ended), recordtypes.Ended)
            if end is not None:
                return _ended(end)
            if _launcher_lives(Path(ended).parent):
                return JobStatus(JobState.RUNNING, "its job runner was killed; the job is ending")
        except RunDirError as error:  # affects only this job
            return JobStatus(JobState.UNKNOWN, error.what)
    return JobStatus(JobState.UNKNOWN, "its process is gone", purged=True)


def _launcher_lives(run_dir: Path) -> bool:
    latest = RunDir(run_dir).latest()
    launcher = (read_record(latest.launcher, recordtypes.Launcher) if latest else None) or {}
    return procfs.lives(launcher)


def _ended(end: Record) -> JobStatus:
    """The status of a job, from its runner's record of how the script has ended. Pure."""
    if end.get("error"):
        return JobStatus(JobState.FAILED, str(end["error"]))
    if end.get("told"):
        return JobStatus(JobState.CANCELLED, f"its job runner received {end['told']}")
    if end.get("signal") == "SIGALRM":
        return JobStatus(JobState.TIMEOUT, "the walltime is over")
    if end.get("signal"):
        number = getattr(signal, str(end["signal"]), None)
        how = killed_by(number) if number else f"killed by {end['signal']}"
        return JobStatus(JobState.FAILED, f"the job script was {how}")
    state = JobState.COMPLETED if end.get("exit") == 0 else JobState.FAILED
    return JobStatus(state, f"the job script ended with exit code {end['exit']}")


scheduler = LocalScheduler()
