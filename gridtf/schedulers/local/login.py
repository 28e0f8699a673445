"""The local scheduler for those who submit: a job runner in the background for each job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.errors import PlacementError, RunDirError, SchedulerError, SpecError
from gridtf.files import unnamed
from gridtf.host import gpus, procfs
from gridtf.host.interpreter import isolated
from gridtf.host.processes import killed_by, signal_all
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, open_log, read_record, write_text
from gridtf.schedulers.api import Estimate, JobIdentity, JobStatus, Place, Plan, SubmitResult
from gridtf.schedulers.local.machine import candidates, gpu_count, identity, one_worker, slots
from gridtf.schedulers.login import Login
from gridtf.states import JobState
from gridtf.text import counted, some

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# It needs only gridtf and the standard library.
_RUNNER = """\
import sys
sys.path.append({root!r})
from gridtf.bootstrap.agent.node import run_job
sys.exit(run_job(sys.argv[1:]))"""


class LocalLogin(Login):
    """Starts jobs on this machine, and sees their processes."""

    requests_memory = False
    takes_native = False

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.findings import Examination, Finding, Level

        host, present = os.uname().nodename, gpus.present(environ)
        cores = counted(len(os.sched_getaffinity(0)), "core")
        has = f"{counted(len(present), 'GPU')} ({some([*present])})" if present else "no GPU that the driver reports"
        jobs = Finding(Level.OK, "scheduler", f"jobs run on this machine, {host}: {cores}, {has}")
        return Examination((jobs,))

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        from gridtf.jobspec.checks import need_walltime

        if spec.spare_nodes:
            hint = "leave spare_nodes out: restarts work without it"
            raise SpecError("spare_nodes", "the local scheduler has one host, and none to spare", hint=hint)
        # this machine has no partitions to choose from
        need_walltime(spec)
        tasks = {name: table.replace(partition=None) for name, table in spec.tasks.items()}
        request = super().resolve(spec.replace(partition=None, tasks=tasks), in_job=in_job)
        if request.nodes[0] > 1 and not in_job:
            hint = "raise --gpus-per-node" if request.gpus_per_task else "raise --tasks-per-node"
            what = f"{request.nodes[0]} hosts are needed, but the local scheduler has one"
            raise SpecError("nodes", what, hint=f"{hint}, or request fewer nodes or workers")
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
        if count := gpu_count(request, len(present)):
            try:
                names = ",".join(candidates(count, present, environ)[:count])
            except PlacementError as error:
                key = "tasks.worker.count" if plan.spec.gpus_per_node is None else "gpus_per_node"
                raise SpecError(key, error.what, why=error.why, hint=error.hint) from None
            if present or gpus.VISIBLE in environ:
                return ()
            unseen = f"{host} has no GPU that the NVIDIA driver reports; tasks get CUDA_VISIBLE_DEVICES from {names}"
            return (f"{unseen} as declared, and train on the CPU where these do not exist",)
        if (training := request.training or 0) > (room := slots(request)):
            what = f"{training} training tasks do not fit into the {room} CPU slots of {host}"
            hint = "request fewer workers, or let tasks share cores with --tasks-per-node"
            hint = f"write a smaller --pack: {request.pack} elements share the host" if request.pack > 1 else hint
            raise SpecError("tasks.worker.count", what, hint=hint)
        cores = len(os.sched_getaffinity(0))
        if one_worker(request) and cores > 1:
            return (f"one worker, since {host} has no GPU: --workers N starts N, up to one for each of {cores} cores",)
        return ()

    def foreseen(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        return Estimate(time.time())

    def submit(self, plan: Plan) -> SubmitResult:
        import subprocess

        run, spec = RunDir(plan.run_dir), plan.spec
        code = _RUNNER.format(root=str(Path(__file__).parents[3]))
        words = [str(run.path), str(spec.kill_grace), str(spec.walltime or 0), str(int(bool(plan.waits_for)))]
        if plan.request.at_once:
            words += map(str, (len(plan.request.elements), plan.request.pack, plan.request.at_once))
        try:
            script = unnamed(plan.script)
        except OSError as error:
            raise SchedulerError(f"cannot write a temporary file: {error.strerror}") from None
        if plan.waits_for:  # until its job runner has found that it may start
            write_text(run.waiting, "")
        try:
            with script, open_log(run.log) as log:
                runner = subprocess.Popen(
                    isolated(plan.python, "-c", code, *words),
                    stdin=script,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # outlives the shell that submits it
                )
        except OSError as error:
            raise SchedulerError(f"cannot start {plan.python}: {error.strerror}") from None
        runner.returncode = 0  # it shall outlive this process, which does not wait for it
        return SubmitResult(identity(runner.pid, ended=str(run.ended)))

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
        waits = ended is not None and files.exists(RunDir(Path(ended).parent).waiting)
        return JobStatus(JobState.PENDING if waits else JobState.RUNNING, waits=waits)
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
        return JobStatus(JobState.FAILED, f"the job script was {how}", killed=how)
    state = JobState.COMPLETED if end.get("exit") == 0 else JobState.FAILED
    return JobStatus(state, f"the job script ended with exit code {end['exit']}")
