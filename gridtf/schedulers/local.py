"""The embedded scheduler: this machine. The same script as elsewhere, in the background, with GPUs claimed by locks."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from gridtf.errors import PlacementError, RunDirError, SchedulerError, SpecError
from gridtf.host import gpus, procfs
from gridtf.host.processes import killed_by, signal_all
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, open_log, read_record
from gridtf.schedulers.agents import MINDER, fork_agent
from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOOPBACK,
    MPI_PLACE,
    RUNNING,
    TIMEOUT,
    UNKNOWN,
    AgentCall,
    AgentHandle,
    Allocation,
    Host,
    JobStatus,
    Plan,
    Wait,
)
from gridtf.text import counted

# A job that waits for GPUs longer than this gives up; on a machine without a real queue nobody will miss it.
_LONGEST_WAIT = 24 * 3600.0
_UNUSED = ("partition", "account", "pe", "slots", "native", "mem", "mem_per_task")


# gridtf and the standard library are all that it needs; what a user's folder calls signal.py must not become ours.
_MINDER = """\
import sys
sys.path[:] = [*filter(None, sys.path), {root!r}]
from gridtf.bootstrap.node import run_job
sys.exit(run_job(sys.argv[1:]))"""


class LocalScheduler:
    """Jobs on this machine. A job's id is ``PID.HOST`` of the job runner (bootstrap/node.py), or of
    the launcher where nobody has submitted it."""

    name = "local"
    warnings: frozenset[int] = frozenset()
    last_warnings: frozenset[int] = frozenset()
    place_variables = re.compile(MPI_PLACE)
    accounting_delay = 0.0

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] = ()  # of the GPU locks; agents and tasks inherit them
        self._minder = 0  # inside a job: the pid of what has started the script

    def here(self, environ: Mapping[str, str]) -> bool:
        return True

    def inside(self, environ: Mapping[str, str]) -> bool:
        return True

    def directives(self, plan: Plan) -> tuple[str, ...]:
        asked = layout.request(plan.spec)
        if asked.nodes[0] > 1:
            hint = "raise --gpus-per-node" if asked.gpus_per_task else "raise --tasks-per-node"
            raise SpecError(
                "nodes",
                f"{asked.nodes[0]} hosts are needed, but the local scheduler has one",
                hint=f"{hint}, or ask for fewer nodes or workers",
            )
        return ()

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("bash", str(RunDir(plan.run_dir).script))

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers.common import unused

        spec, environ = plan.spec, {**os.environ, **plan.spec.env}
        if not spec.setup:  # else it may say which GPUs and CPUs there are
            present = gpus.present(environ)
            if wanted := _gpus_wanted(spec, len(present)):
                _candidates(wanted, present, environ)
            elif (training := layout.request(spec).training or 0) > (slots := _slots(spec)):
                raise PlacementError(
                    f"{training} training tasks do not fit into the {slots} CPU slots of {os.uname().nodename}",
                    hint="ask for fewer workers, or let tasks share cores with --tasks-per-node",
                )
        return unused(spec, _UNUSED, "the local scheduler")

    def elements(self, spec: JobSpec) -> Sequence[str]:
        return ()

    def submit(self, plan: Plan) -> Record:
        run, spec = RunDir(plan.run_dir), plan.spec
        code = _MINDER.format(root=str(Path(__file__).parents[2]))
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
        runner.returncode = 0  # nobody here waits for it: it is to outlive this process
        return {**_identity(runner.pid), "ended": str(run.ended)}

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return {record["job_id"]: _told(record) for record in submitted}

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return {}

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        return ()

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        """TERM to the runner, which tears everything down, or to a launcher of somebody else's script. force: KILL to
        all that is below it, so that nothing but a runner is left, which ends then."""
        job_id, host = submitted["job_id"], submitted.get("host")
        if host is None:  # an id alone may be another process's by now
            pid, _, host = job_id.partition(".")
            hint = f"see whose it is, and end it yourself on host {host}: ps {pid}, kill {pid}"
            raise SchedulerError(f"local job {job_id} can only be cancelled through its run directory", hint=hint)
        if host != os.uname().nodename:
            raise SchedulerError(f"job {job_id} runs on {host}", hint="cancel a local job on its own host")
        pid = submitted.get("pid", 0)
        if pid <= 1 or not procfs.lives(submitted):
            return
        try:
            if force:
                signal_all([*procfs.descendants(pid), *([] if "ended" in submitted else [pid])], signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:  # it has just ended
            return
        except PermissionError:
            raise SchedulerError(f"job {job_id} is not yours", hint=f"{submitted.get('user')} can cancel it") from None

    # --- inside a job

    def untold(self) -> str:
        return ""

    def identity(self, environ: Mapping[str, str]) -> Record:
        parent = os.getppid()
        self._minder = parent if environ.get(MINDER) == str(parent) else 0  # not that of a job that we are a task of
        return _identity(self._minder or os.getpid())

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        present = gpus.present(environ)
        wanted = _gpus_wanted(spec, len(present))
        claimed = self._claim(wanted, present, environ, spec, wait) if wanted else ()
        # what every agent finds as its grant, as under Slurm
        environ[gpus.VISIBLE] = ",".join(claimed)
        _set_walltime(spec)
        host, cpus = os.uname().nodename, len(os.sched_getaffinity(0))
        return Allocation((Host(host, _slots(spec), gpus=len(claimed), cpus=cpus, address=LOOPBACK),))

    def _claim(
        self, wanted: int, present: Sequence[str], environ: Mapping[str, str], spec: JobSpec, wait: Wait
    ) -> tuple[str, ...]:
        """Claim GPUs, waiting for other jobs to let theirs go. The walltime does not run meanwhile."""
        candidates = _candidates(wanted, present, environ)
        owner = f"{spec.title}, job {self.identity(environ)['job_id']}"
        deadline = time.monotonic() + _LONGEST_WAIT
        left = 0  # of the walltime, in seconds
        while True:
            claim = gpus.claim(wanted, candidates, owner, environ)
            if isinstance(claim, gpus.Claim):
                self._descriptors = claim.descriptors
                if left:
                    signal.alarm(left)
                return claim.gpus
            left = signal.alarm(0) or left
            why = f"waiting for {counted(wanted, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
            if time.monotonic() > deadline:
                raise PlacementError(f"gave up after {_LONGEST_WAIT / 3600:g} h of {why}")
            wait(why, 0.5 + random.random() / 2)

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        words = [*call.arguments, *map(str, self._descriptors)]
        return [fork_agent(host.name, words, call.main) for host in allocation.hosts]

    def grant(
        self, environ: MutableMapping[str, str], spec: JobSpec, count: int | None, owner: str, wait: Wait
    ) -> gpus.Claim:
        """The launcher has claimed them; without one, processes that join share out what the driver shows."""
        return gpus.Claim(gpus.granted(environ) if gpus.VISIBLE in environ else gpus.present(environ), ())

    def ending(self, environ: Mapping[str, str]) -> JobStatus | None:
        if self._minder and os.getppid() != self._minder:
            return JobStatus(FAILED, f"the process that minds the job, {self._minder}, was killed")
        return None

    def deserted(self) -> str:
        return ""

    def suspended(self, environ: Mapping[str, str]) -> bool:
        # the launcher, by Ctrl-Z in its terminal; a job that was submitted has none
        return not self._minder and procfs.stopped(os.getppid())


def _gpus_wanted(spec: JobSpec, present: int) -> int:
    if spec.gpus_per_node is not None:
        return spec.gpus_per_node
    per_task = layout.gpus_per_task(spec, default=1 if present else 0)
    wanted = layout.gpus_in_all(spec, per_task)
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


def _slots(spec: JobSpec) -> int:
    """Training tasks that this machine has room for where GPUs do not say."""
    cpus = len(os.sched_getaffinity(0))
    return spec.tasks_per_node or max(1, cpus // (spec.task("worker").cpus or spec.cpus_per_task or 1))


def _set_walltime(spec: JobSpec) -> None:
    """Unless it runs already, since the script began."""
    if spec.walltime and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.alarm(spec.walltime)


def _identity(pid: int) -> Record:
    return {"job_id": f"{pid}.{os.uname().nodename}", **procfs.identity(pid)}


def _told(record: Record) -> JobStatus:
    try:
        return _status(record)
    except RunDirError as error:  # of this one alone
        return JobStatus(UNKNOWN, error.what)


def _status(record: Record) -> JobStatus:
    host, pid = record.get("host"), record.get("pid", 0)
    if host != os.uname().nodename:
        return JobStatus(UNKNOWN, f"it runs on {host}; ask there")
    same_boot = record.get("boot") == procfs.boot_id()
    if pid > 0:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours, when the process that submitted it asks
    if procfs.lives(record):
        return JobStatus(RUNNING)
    if same_boot and "ended" in record:
        end = read_record(Path(record["ended"]), recordtypes.Ended)
        if end is not None:
            return _ended(end)
        if _launcher_lives(Path(record["ended"]).parent):
            return JobStatus(RUNNING, "the process that minds it was killed; it is ending")
    return JobStatus(UNKNOWN, "its process is gone", gone=True)


def _launcher_lives(run_dir: Path) -> bool:
    latest = RunDir(run_dir).latest()
    launcher = (read_record(latest.launcher, recordtypes.Launcher) if latest else None) or {}
    return procfs.lives(launcher)


def _ended(end: Record) -> JobStatus:
    """From the runner's word on how the script has ended. Pure."""
    if end.get("error"):
        return JobStatus(FAILED, str(end["error"]))
    if end.get("told"):
        return JobStatus(CANCELLED, f"told to end by {end['told']}")
    if end.get("signal") == "SIGALRM":
        return JobStatus(TIMEOUT, "the walltime is over")
    if end.get("signal"):
        number = getattr(signal, str(end["signal"]), None)
        how = killed_by(number) if number else f"killed by {end['signal']}"
        return JobStatus(FAILED, f"the job script was {how}")
    return JobStatus(
        COMPLETED if end.get("exit") == 0 else FAILED, f"the job script ended with exit code {end['exit']}"
    )


scheduler = LocalScheduler()
