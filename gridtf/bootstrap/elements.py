"""The elements of a sweep inside their job: the parameters of each, several in an allocation, few files at the end.

Elements that share an allocation are on one host. Each has a launcher of its own, a process below that of the script,
which gives it a part of the CPUs and GPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gridtf.errors import GridtfError, UsageError
from gridtf.host.processes import become_subreaper, block_signals, is_end, tell
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import Sweep
from gridtf.run import recordtypes, reduced, registry
from gridtf.run.rundir import RunDir, listdir, open_log, read_record
from gridtf.schedulers.api import JobStatus, Parent
from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.launchedjob import LaunchedJob
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.request import Request
    from gridtf.schedulers.api import AgentCall, AgentHandle, Allocation, JobIdentity, Scheduler

_STDOUT, _STDERR = 1, 2
_PAUSE = 1.0  # seconds at most in which a signal is noticed while the allocation is waited for
_GPU_PATIENCE = 3600.0  # seconds to wait for GPUs that others still hold


def sweep_of(element: RunDir) -> Sweep | None:
    """The sweep that a run directory is an element of; None for an array of another kind.

    Raises:
        RunDirError: When its record is damaged, or another user's.
    """
    array = RunDir(element.path.parents[1])
    named = element.path.parent == array.elements  # not the run of a script written by hand
    return registry.sweep_of(array, own=True) if named else None


def of(spec: JobSpec, sweep: Sweep, element: str) -> JobSpec:
    """The specification of an element: that of the job, with its own parameters.

    Raises:
        UsageError: When the sweep has no such element.
    """
    if not element.isdecimal() or not 0 < int(element) <= len(sweep.rows):
        raise UsageError(f"the sweep has no element {element}, but 1 to {len(sweep.rows)}")
    return spec.replace(params={**spec.params, **sweep.rows[int(element) - 1]})


def ended(run: RunDir, spec: JobSpec) -> None:
    """Pack what an element that has ended leaves. Its attempts stay where that is impossible, as on a full disk."""
    try:
        reduced.reduce(run, spec.params)
    except GridtfError as error:
        tell(str(error))


def together(
    sweep: Sweep, job: LaunchedJob, identity: JobIdentity, describe: Callable[[LaunchedJob, str], None]
) -> int:
    """Run the elements that share this allocation beside each other.

    Args:
        job: The first of them; its request is that for all of them.
        describe: Writes the first records of an element, given its job and number.

    Returns:
        The exit code of the job script: that of the first element that has none of 0.
    """
    from gridtf.bootstrap.agent.node import fork_each
    from gridtf.bootstrap.launcher import launcher
    from gridtf.bootstrap.launcher.contact import TerminatedBySignal
    from gridtf.bootstrap.system import System

    block_signals()
    become_subreaper()
    system, scheduler, environ, first = job.system, job.scheduler, job.system.environ, int(identity.element)
    numbers = [str(number) for number in range(first, min(first + sweep.pack, len(sweep.rows) + 1))]
    try:
        whole = _whole(scheduler, job.request, environ, system)
    except TerminatedBySignal as told:
        return 128 + told.number
    one = scheduler.login.resolve(job.spec, in_job=True)
    parent = Parent(system.parent(), system.name(system.parent()))
    cpus = _shares(sorted(os.sched_getaffinity(0)), sweep.pack)
    gpus = _shares(whole.gpus.gpus if whole.gpus else (), sweep.pack)

    def run(number: str, share: int) -> int:
        own = RunDir(job.run.path.with_name(number))
        with open_log(own.log) as log:
            for descriptor in (_STDOUT, _STDERR):
                os.dup2(log.fileno(), descriptor)
        if cpus[share]:
            os.sched_setaffinity(0, cpus[share])
        shared = cast("Scheduler", _Shared(scheduler, _part(whole, gpus[share], len(cpus[share]), one), parent))
        about = {"request": one, "scheduler": shared, "system": System(environ)}
        element = job.replace(run=own, spec=of(job.spec, sweep, number), **about)
        if number != identity.element:
            describe(element, number)
        code = launcher.launch(element)
        ended(own, element.spec)
        return code

    def over(share: int, code: int) -> None:
        if code < 0:
            _tell_of_killed(RunDir(job.run.path.with_name(numbers[share])), -code, system.time())

    mains = [partial(run, number, share) for share, number in enumerate(numbers)]
    codes, _ = fork_each(mains, len(mains), system, None, over)
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _tell_of_killed(run: RunDir, number: int, now: float) -> None:
    """Write the verdict of an element whose launcher a signal has ended: the scheduler will not tell of that."""
    from gridtf.bootstrap.judge import verdict

    with contextlib.suppress(GridtfError):
        attempt = run.latest()
        launcher = read_record(attempt.launcher, recordtypes.Launcher, own=True) if attempt else None
        if attempt and launcher and attempt.verdict.name not in listdir(attempt.path):
            end = verdict.of_killed_launcher(launcher, number)
            attempt.write_verdict(end.record(launcher["nonce"], launcher["began"], now))


def _whole(scheduler: Scheduler, request: Request, environ: Mapping[str, str], system: Any) -> Allocation:
    """The allocation, with all GPUs of this host that belong to it."""
    from gridtf.bootstrap.launcher.contact import TerminatedBySignal
    from gridtf.schedulers.api import GpuNeed

    def wait(why: str, seconds: float) -> None:
        received = system.wait(min(seconds, _PAUSE))
        if is_end(received):
            raise TerminatedBySignal(received)

    allocation = scheduler.injob.allocation(environ, request, wait)
    if allocation.gpus is not None or not request.gpus_per_node:
        return allocation
    need = GpuNeed(request.gpus_per_node, request.name, _GPU_PATIENCE)
    return allocation.replace(gpus=scheduler.injob.gpu_grant(environ, request, need, wait))


def _shares(things: Sequence[Any], parts: int) -> list[tuple[Any, ...]]:
    """Equal parts, one after the other; empty ones where there are too few things."""
    each = len(things) // parts
    return [tuple(things[part * each : (part + 1) * each]) for part in range(parts)]


def _part(whole: Allocation, gpus: Sequence[str], cpus: int, one: Request) -> Allocation:
    """The part of an allocation that one element has."""
    from gridtf.host.gpus import VISIBLE, GpuGrant
    from gridtf.schedulers.api import LOOPBACK

    shown = {VISIBLE: ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {VISIBLE: ""}
    grant: GpuGrant = GpuGrant(tuple(gpus), whole.gpus.descriptors if whole.gpus else (), shown)
    slots = one.training or one.tasks_per_node
    host = whole.hosts[0].replace(slots=slots, gpus=len(gpus), cpus=cpus or None, address=LOOPBACK)
    return whole.replace(hosts=(host,), gpus=grant)


class _Shared:
    """A scheduler, for an element that has a part of an allocation: it forks its agent, and cannot start itself again.

    Both halves of it that a job uses are this object; what is not said here is as the scheduler has it.
    """

    def __init__(self, scheduler: Scheduler, allocation: Allocation, parent: Parent) -> None:
        self._scheduler, self._allocation, self._parent = scheduler, allocation, parent
        self.injob = self

    def __getattr__(self, name: str) -> Any:
        of_scheduler = name in ("name", "title", "login", "options", "place_variables")
        return getattr(self._scheduler if of_scheduler else self._scheduler.injob, name)

    def allocation(self, *_: object) -> Allocation:
        return self._allocation

    def start_agents(self, allocation: Allocation, call: AgentCall, _: object) -> Sequence[AgentHandle]:
        from gridtf.schedulers.agents import fork_agent

        return [fork_agent(host.name, call.arguments, call.main, allocation.gpus) for host in allocation.hosts]

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        if os.getppid() != parent.pid:  # what the scheduler has started
            return JobStatus(JobState.FAILED, f"process {parent.pid}, which had started it and others, was killed")
        known = parent if self._scheduler.name == "local" else self._parent
        return self._scheduler.injob.termination_reason(environ, known)

    def parent_lost(self, _: Parent) -> str:
        return ""

    def why_not_again(self, _: object) -> str:
        return "it shares its allocation with other elements of a sweep"
