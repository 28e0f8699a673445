"""The embedded scheduler: this machine. The same script as elsewhere, in the background, with GPUs claimed by locks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping, MutableMapping, Sequence

from gridtf import gpus, layout, procfs
from gridtf.errors import PlacementError, SchedulerError, SpecError
from gridtf.rundir import Record, RunDir
from gridtf.schedulers.agents import fork_agent
from gridtf.schedulers.base import RUNNING, UNKNOWN, AgentCall, AgentHandle, Allocation, Host, JobStatus, Plan, Wait
from gridtf.spec import JobSpec

# A job that waits for GPUs longer than this gives up; on a machine without a real queue nobody will miss it.
_LONGEST_WAIT = 24 * 3600.0


class LocalScheduler:
    """Jobs on this machine. A job's id is ``PID.HOST`` of its script, which becomes its launcher by exec."""

    name = "local"
    warnings: frozenset[int] = frozenset()
    last_warnings: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] = ()  # of the GPU locks; agents and tasks inherit them

    def here(self, environ: Mapping[str, str]) -> bool:
        return True

    def inside(self, environ: Mapping[str, str]) -> bool:
        return True

    def directives(self, plan: Plan) -> tuple[str, ...]:
        nodes = layout.request(plan.spec).nodes[0]
        if nodes > 1:
            raise SpecError(
                "nodes", f"{nodes} hosts are needed, but the local scheduler has one", hint="raise --tasks-per-node"
            )
        return ()

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("bash", str(RunDir(plan.run_dir).script))

    def check(self, plan: Plan) -> Sequence[str]:
        return ()

    def elements(self, spec: JobSpec) -> Sequence[str]:
        return ()

    def submit(self, plan: Plan) -> Record:
        run = RunDir(plan.run_dir)
        walltime = plan.spec.walltime

        def limit() -> None:
            # An alarm outlives exec: it ends set-up lines that hang, and reaches the launcher after them.
            signal.alarm(walltime or 0)

        try:
            with run.log.open("ab") as log:
                script = subprocess.Popen(
                    list(self.submit_command(plan)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # outlives the shell that submits it
                    preexec_fn=limit if walltime else None,
                )
        except OSError as error:
            raise SchedulerError(f"cannot start {run.script}: {error.strerror}") from None
        script.returncode = 0  # nobody here waits for it: it is to outlive this process
        return _identity(script.pid)

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return {record["job_id"]: _status(record) for record in submitted}

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return {}

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        """TERM (force: KILL) to the script's process group: set-up lines or launcher. The agents are in others: they
        tear their tasks down when the launcher says so, or when it dies."""
        if submitted.get("host") != os.uname().nodename:
            raise SchedulerError(
                f"job {submitted['job_id']} runs on {submitted.get('host')}", hint="cancel a local job on its own host"
            )
        pid, started = int(submitted["pid"]), submitted.get("start")
        number = signal.SIGKILL if force else signal.SIGTERM
        if not procfs.alive(pid, started):
            return
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if os.getpgid(pid) == pid:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)  # gridtf_run in a script of somebody else's group

    # --- inside a job

    def identity(self, environ: Mapping[str, str]) -> Record:
        return _identity(os.getpid())

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        cpus = len(os.sched_getaffinity(0))
        present = gpus.present(environ)
        wanted = _gpus_wanted(spec, len(present))
        claimed = self._claim(wanted, present, environ, spec, wait) if wanted else ()
        # what every agent finds as its grant, as under Slurm
        environ[gpus.VISIBLE] = ",".join(claimed)
        environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order in which we count
        if spec.walltime:
            signal.alarm(spec.walltime)
        slots = spec.tasks_per_node or max(1, cpus // (spec.cpus_per_task or 1))
        host = os.uname().nodename
        return Allocation((Host(host, slots, gpus=len(claimed), cpus=cpus, address="127.0.0.1"),))

    def _claim(
        self, wanted: int, present: Sequence[str], environ: Mapping[str, str], spec: JobSpec, wait: Wait
    ) -> tuple[str, ...]:
        """Claim GPUs, waiting for other jobs to let theirs go. The walltime does not run meanwhile."""
        candidates = present or tuple(str(index) for index in range(wanted))  # declared, where no driver tells
        if wanted > len(candidates):
            raise PlacementError(
                f"{wanted} GPUs are asked for, but {os.uname().nodename} has {len(candidates)}",
                hint="ask for fewer with --gpus-per-node or --workers",
            )
        owner = f"{spec.title}, job {os.getpid()}.{os.uname().nodename}"
        deadline = time.monotonic() + _LONGEST_WAIT
        while True:
            claim = gpus.claim(wanted, candidates, owner, gpus.lock_folder(environ))
            if isinstance(claim, gpus.Claim):
                self._descriptors = claim.descriptors
                return claim.gpus
            signal.alarm(0)
            why = f"waiting for {wanted} GPUs, {claim.free} free; {'; '.join(claim.holders)}"
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
        return None

    def suspended(self, environ: Mapping[str, str]) -> bool:
        return False


def _gpus_wanted(spec: JobSpec, present: int) -> int:
    if spec.gpus_per_node is not None:
        return spec.gpus_per_node
    per_task = layout.gpus_per_task(spec, default=1 if present else 0)
    wanted = layout.gpus_in_all(spec, per_task)
    if wanted is None:  # as many workers as there is room for
        return present - present % per_task if per_task else 0
    return wanted


def _identity(pid: int) -> Record:
    host = os.uname().nodename
    return {
        "job_id": f"{pid}.{host}",
        "host": host,
        "pid": pid,
        "start": procfs.start_time(pid),
        "boot": procfs.boot_id(),
    }


def _status(record: Record) -> JobStatus:
    host, pid = record.get("host"), int(record["pid"])
    if host != os.uname().nodename:
        return JobStatus(UNKNOWN, f"it runs on {host}; ask there")
    same_boot = record.get("boot") in ("", procfs.boot_id())
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # ours, when the process that submitted it asks
    if same_boot and procfs.alive(pid, record.get("start")):
        return JobStatus(RUNNING)
    return JobStatus(UNKNOWN, "its process is gone", gone=True)


scheduler = LocalScheduler()
