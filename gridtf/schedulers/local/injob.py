"""The local scheduler inside a job: this machine's GPUs and cores, and a timer for the walltime."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.errors import PlacementError
from gridtf.host import gpus, procfs
from gridtf.host.gpus import GpuGrant
from gridtf.schedulers.agents import ELEMENT, RUNNER_PID, fork_agent
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
    Wait,
)
from gridtf.schedulers.injob import InJob
from gridtf.schedulers.local.machine import candidates, gpu_count, identity, slots
from gridtf.states import AGAIN_CODE, JobState
from gridtf.text import counted

if TYPE_CHECKING:
    from gridtf.jobspec.request import Request

# Seconds after which a job gives up waiting for GPUs.
_GPU_WAIT_LIMIT = 24 * 3600.0


class LocalInJob(InJob):
    """The host, and its GPUs and cores that the job may use."""

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        parent = os.getppid()  # in a task of another local job, the variable has that job's runner
        if environ.get(RUNNER_PID) != str(parent):
            return identity(os.getpid())
        runner, element = identity(parent), environ.get(ELEMENT, "")
        if not element:
            return runner
        return runner.replace(job_id=element, element=element.rpartition("_")[2])

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        present = gpus.present(environ)
        count = gpu_count(request, len(present))
        none = GpuGrant((), variables={gpus.VISIBLE: ""})
        grant = self._claim(count, present, environ, request, wait) if count else none
        _set_walltime(request)
        host, cpus = os.uname().nodename, len(os.sched_getaffinity(0))
        hosts = (Host(host, slots(request), gpus=len(grant.gpus), cpus=cpus, address=LOOPBACK),)
        return Allocation(hosts, grant)

    def _claim(
        self, count: int, present: Sequence[str], environ: Mapping[str, str], request: Request, wait: Wait
    ) -> GpuGrant:
        """Claim GPUs, waiting for other jobs to release theirs. The walltime does not count while waiting."""
        import random

        those = candidates(count, present, environ)
        owner = f"{request.name}, job {self.identity(environ).job_id}"
        deadline = time.monotonic() + _GPU_WAIT_LIMIT
        remaining = 0  # seconds of the walltime
        while True:
            claim = gpus.claim(count, those, owner, environ)
            if isinstance(claim, GpuGrant):
                if remaining:
                    signal.alarm(remaining)
                return claim
            remaining = signal.alarm(0) or remaining
            why = f"waiting for {counted(count, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
            if time.monotonic() > deadline:
                raise PlacementError(f"gave up after {_GPU_WAIT_LIMIT / 3600:g} h of {why}")
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

    def start_after(self, environ: Mapping[str, str], jobs: Sequence[str]) -> int | None:
        return AGAIN_CODE  # the job runner waits for them

    def suspended(self, environ: Mapping[str, str]) -> bool:
        # the launcher, by Ctrl-Z in its terminal; a job that was submitted has no terminal
        launcher = os.getppid()
        return environ.get(RUNNER_PID) != str(next(procfs.ancestors(launcher), 0)) and procfs.stopped(launcher)


def _set_walltime(request: Request) -> None:
    """Start the timer of the walltime, unless it has been running since the script began."""
    if request.walltime and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.alarm(request.walltime)
