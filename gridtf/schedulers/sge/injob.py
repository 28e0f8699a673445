"""Inside a Grid Engine job, on the host of its script: identity, hosts, end and suspension."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError
from gridtf.host import procfs
from gridtf.host.names import same_host
from gridtf.host.sockets import only_listens
from gridtf.jobspec.request import Request
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    GpuNeed,
    Host,
    JobIdentity,
    JobStatus,
    Parent,
    Wait,
)
from gridtf.schedulers.injob import BatchInJob
from gridtf.schedulers.sge import query
from gridtf.schedulers.sge.agents import ShepherdWatch, agent_end, host_of, qrsh_command, shepherd_pid
from gridtf.schedulers.sge.commands import locate, sge
from gridtf.schedulers.sge.directives import slots_in_job
from gridtf.schedulers.sge.query import PER_HOST, PER_JOB, PER_SLOT, ResourceRequest
from gridtf.states import AGAIN_CODE, JobState
from gridtf.text import counted, whole
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.host.gpus import GpuGrant

# --- which job this is -------------------------------------------------------------------------------------------


def identity(environ: Mapping[str, str]) -> JobIdentity:
    """The job that this process runs in, with its name: qsub(1), ENVIRONMENTAL VARIABLES.

    RESTARTED is 1 in every start but the first, so restarts includes the time at which the spool folder was made.
    """
    element = environ.get("SGE_TASK_ID", "undefined")
    element = element if whole(element) else ""
    return JobIdentity(
        job_id=".".join(filter(None, (environ["JOB_ID"], element))),
        details={"job_name": environ["JOB_NAME"]} if "JOB_NAME" in environ else {},
        element=element,
        restarts=f"{environ.get('RESTARTED', '0')}-{_began(environ)}",
    )


def this_host(environ: Mapping[str, str]) -> str:
    """What Grid Engine calls this host: HOSTNAME, unless it is another host's, as qsub -V may copy it."""
    name = os.uname().nodename
    given = environ.get("HOSTNAME", name)
    return given if same_host(given, name) else name


def _instance(environ: Mapping[str, str]) -> str:
    """The queue instance of the job script, such as ``all.q@n1``."""
    return f"{environ.get('QUEUE', '')}@{this_host(environ)}"


def _began(environ: Mapping[str, str]) -> int:
    """A number that differs in each start of a job: when its spool folder was made, in nanoseconds; 0 if unknown."""
    folder = environ.get("SGE_JOB_SPOOL_DIR")
    try:
        return Path(folder, "config").stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


# What a job with several hosts needs of its variables, where a program makes the environment anew.
_NEEDED = (
    *("PE_HOSTFILE", "NSLOTS", "NHOSTS", "PE", "JOB_ID", "JOB_NAME", "QUEUE", "SGE_TASK_ID", "TMPDIR"),
    *("SGE_ROOT", "SGE_CELL"),
)

# --- its hosts: $PE_HOSTFILE, sge_pe(5) --------------------------------------------------------------------------

# Pairs of socket and core, 0,0:0,1 or, with -binding pe of Open Cluster Scheduler, 0:0,0:1; UNDEFINED, <NULL> or NONE
# without a binding.
_BINDING = re.compile(r"\d+,\d+(:\d+,\d+)*|\d+:\d+(,\d+:\d+)*")


class HostLine(Value):
    """One host of a job.

    Attributes:
        name: What Grid Engine calls it.
        slots: Slots of the job there, in all queues together.
        cores: The number of cores that the job is bound to; None without a binding.
    """

    name: str
    slots: int
    cores: int | None = None


def parse_hostfile(text: str, path: str = "PE_HOSTFILE") -> tuple[HostLine, ...]:
    """Parse a PE_HOSTFILE: sge_pe(5).

    Args:
        text: Lines of the form ``HOST SLOTS QUEUE@HOST BINDING``; a line may end after any field.
        path: The file, for messages.

    Returns:
        The hosts in their order, one entry each, with the slots of all its queues.

    Raises:
        SchedulerError: With the number of the line, for an invalid one; for a file without hosts.
    """
    hosts: dict[str, HostLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        slots = whole(words[1]) if len(words) > 1 else 1
        if slots is None:
            what = f"{path}:{number}: {words[1][:80]!r} is not a number of slots"
            hint = "each line is HOST SLOTS QUEUE BINDING; has a start_proc_args of the PE rewritten the file?"
            raise SchedulerError(what, why=f"the line is {line.strip()[:80]!r}", hint=hint)
        binding = words[3] if len(words) > 3 else ""
        cores = len(re.findall(r"\d+[,:]\d+", binding)) if _BINDING.fullmatch(binding) else None
        name = next((known for known in hosts if same_host(known, words[0])), words[0])
        before = hosts.get(name, HostLine(name, 0, 0))
        both = None if before.cores is None or cores is None else before.cores + cores
        hosts[name] = HostLine(name, before.slots + slots, both)
    if not hosts:
        raise SchedulerError(f"{path} names no host", hint="has a start_proc_args of the PE emptied the file?")
    return tuple(hosts.values())


# --- room for tasks: qsub(1), ENVIRONMENTAL VARIABLES ------------------------------------------------------------

JobRequests = Callable[[], Mapping[str, ResourceRequest]]

_ROUNDING = 1e-3  # of a GPU: a host has less than a thousand slots


def allocated_hosts(environ: Mapping[str, str], here: str) -> tuple[HostLine, ...]:
    """The hosts of this job.

    Args:
        environ: The environment of the job script.
        here: What Grid Engine calls this host.

    Returns:
        This host first, the others in the order of PE_HOSTFILE.

    Raises:
        SchedulerError: When PE_HOSTFILE is missing, cannot be read or is invalid.
    """
    path = environ.get("PE_HOSTFILE")
    if path is None and environ.get("PE"):
        what = f"PE_HOSTFILE is not set on {here}, although the job has the parallel environment {environ['PE']}"
        hint = "call gridtf_run in the job script itself, gridtf_join in processes that qrsh -inherit starts"
        why = "only the job script has it, not the processes that qrsh -inherit starts"
        raise SchedulerError(what, why=why, hint=hint)
    # -binding linear:4: as many on each host. The affinity shows that the value is no other job's, as -V may copy it.
    bound = environ.get("SGE_BINDING", "").split()
    cores = len(bound) if set(bound) == {str(cpu) for cpu in os.sched_getaffinity(0)} else None
    if path is None:  # a job without a parallel environment has one slot
        return (HostLine(here, whole(environ.get("NSLOTS", "1")) or 1, cores),)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SchedulerError(
            f"cannot read PE_HOSTFILE, {path}, on {here}: {error.strerror}",
            why="it is in the spool folder of the host that runs the job script, and is removed with the job",
            hint="is this the job script's host? has a script changed PE_HOSTFILE, or copied it from another job?",
        ) from None
    lines = [line.replace(cores=cores) if line.cores is None else line for line in parse_hostfile(text, path)]
    return tuple(sorted(lines, key=lambda line: not same_host(line.name, here)))


def allocation(lines: Sequence[HostLine], request: Request, job_requests: JobRequests) -> Allocation:
    """The slots, GPUs and CPUs that a job has for tasks on each of its hosts.

    Args:
        lines: The hosts, this host first.
        request: What the job requests, by gridtf's options.
        job_requests: Returns the hard resources that the job requested of Grid Engine.
    """
    shape = slots_in_job(request)
    gpus, per_slot = _gpus(lines, request, shape.per_task, job_requests)
    counts = _without_non_training([line.slots for line in lines], 0 if any(gpus) else shape.non_training)
    hosts = [
        Host(line.name, count // shape.per_task, gpus=own, cpus=_cpus(line, own if per_slot else 0), address=line.name)
        for line, count, own in zip(lines, counts, gpus, strict=True)
        if line.slots  # a host without slots only runs the job script
    ]
    most = request.chosen("tasks_per_node")
    if most and not shape.low <= sum(line.slots for line in lines) <= shape.high:
        # Only a hand-written script has other slots than gridtf requests, and tasks_per_node limits its hosts. What
        # gridtf requests is used in full: the parallel environment decides over how many hosts it is spread.
        # Where there are GPUs they decide, since a site may count slots in another way.
        hosts = [host.replace(slots=most if host.gpus else min(host.slots, most)) for host in hosts]
    return Allocation(tuple(hosts))


def unused_gpus(given: Allocation, request: Request, present: Callable[[], Sequence[str]]) -> str:
    """A note on GPUs of this host that neither the job nor gridtf's options mention.

    Args:
        given: The allocation of the job.
        request: What the job requests.
        present: Returns the GPUs of this host.

    Returns:
        One line; empty where tasks have GPUs, need none, or the host has none.
    """
    silent = any(role.gpus is None for role in request.roles) and not any(host.gpus for host in given.hosts)
    if not silent or not (gpus := present()):
        return ""
    resource = request.options["gpu_resource"]
    return (
        f"host {given.hosts[0].name} has {len(gpus)} GPUs, and no task gets one: the job did not request resource "
        f"{resource}; use `--gpus-per-node {len(gpus)}`, in a script of your own `#$ -l {resource}=1`, or "
        "--gpu-resource if your site's GPU resource has another name"
    )


def narrow_binding(lines: Sequence[HostLine]) -> str:
    """A note on slots that are bound to fewer cores; empty without."""
    for line in lines:
        if line.cores is not None and line.cores < line.slots:
            has = f"{counted(line.slots, 'slot')} of the job on host {line.name} have {counted(line.cores, 'core')}"
            return f"{has} (-binding, which a site may set): `-binding linear:{line.slots}` asks for one each"
    return ""


def other_layout(given: Allocation, request: Request, pe: str) -> str:
    """A note on hosts, or GPUs on them, that are not as requested: the parallel environment decides over both.

    Args:
        given: The allocation of the job.
        request: What the job requests.
        pe: The parallel environment.

    Returns:
        One line; empty where the hosts are as requested.
    """
    low, high = request.allocated_nodes if request.chosen("nodes") else (0, len(given.hosts))
    per_host = request.chosen("gpus_per_node") or 0
    least = min(host.gpus or 0 for host in given.hosts)
    if low <= len(given.hosts) <= high and least >= per_host:
        return ""
    asked = [counted(high, "host")] if request.chosen("nodes") else []
    asked += [f"{counted(per_host, 'GPU')} a host"] if per_host else []
    has = f"{counted(len(given.hosts), 'host')}{f' with {least} or more each' if per_host else ''}"
    return f"{', '.join(asked)} requested, but the job has {has}: PE {pe} decides over how many hosts slots are spread"


def _cpus(line: HostLine, gpus: int) -> int | None:
    """A slot is a CPU, unless slots stand for GPUs, one or several each: then the number of CPUs is unknown.

    Args:
        line: The host.
        gpus: The GPUs that come with its slots; 0 when slots do not count them.
    """
    if line.cores is not None:
        return line.cores
    return None if gpus >= line.slots else line.slots


def _without_non_training(counts: list[int], non_training: int) -> list[int]:
    """Take the slots that were requested for tasks that do not train from the fullest hosts."""
    for _ in range(min(non_training, sum(counts) - 1)):
        fullest = max(range(len(counts)), key=lambda number: (counts[number], number))
        counts[fullest] -= 1
    return counts


def _gpus(
    lines: Sequence[HostLine], request: Request, per_task: int, job_requests: JobRequests
) -> tuple[list[int], bool]:
    """GPUs on each host: as requested of Grid Engine, else by gridtf's options; and whether slots count them."""
    try:
        requested = job_requests().get(request.options["gpu_resource"])
    except SchedulerError:  # the qmaster is down; the job goes on without it
        requested = None
    if requested is not None and requested.per == PER_SLOT:
        # a part of a GPU per slot is rounded down: 3 x 0.333333 is one
        return [int(requested.amount * line.slots + _ROUNDING) for line in lines], True
    if requested is not None and requested.per == PER_HOST:
        return [int(requested.amount)] * len(lines), False
    if requested is not None and requested.per == PER_JOB:
        return [int(requested.amount), *[0] * (len(lines) - 1)], False
    if (per_node := request.chosen("gpus_per_node")) is not None:
        return [per_node] * len(lines), True
    return [line.slots // per_task * request.gpu_share for line in lines], True


# --- the end of the walltime, and another start of the job --------------------------------------------------------


def end_of_job(environ: Mapping[str, str], request: Request, started: float) -> float | None:
    """When Grid Engine will end this job: h_rt after its start. A JSV, or qalter before the start, may have changed
    what was requested; after it, qalter only changes what qstat shows.

    Args:
        environ: The environment of the job script.
        request: What gridtf's options request, for a qmaster that does not answer.
        started: When the job script started, in seconds since the epoch.

    Returns:
        Seconds since the epoch; None for a job without h_rt.
    """
    try:
        requested = query.job_requests(environ["JOB_ID"], limit=_QSTAT_LIMIT)
        seconds, _ = _time_limits(requested, _instance(environ)).get("h_rt", (None, ""))
    except SchedulerError:
        seconds = request.walltime
    age = _age()
    return None if seconds is None else (started if age is None else time.time() - age) + seconds


def _time_limits(requested: Mapping[str, ResourceRequest], instance: str) -> dict[str, tuple[float, str]]:
    """The time limits of this job: ``h_rt`` or ``s_rt`` -> (seconds after its start, the limit in words).

    What it has requested is at most what its queue allows.
    """
    own = {name: (requested[name].amount, name) for name in _LIMITS if name in requested}
    if "h_rt" in own:
        return own
    with contextlib.suppress(SchedulerError):
        of_queue = query.queue_limits(instance, _LIMITS, limit=_QSTAT_LIMIT)
        words = "{} of queue " + instance.partition("@")[0]
        return {name: (amount, words.format(name)) for name, amount in of_queue.items()} | own
    return own


def _age() -> float | None:
    """Seconds since this job was started on this host; None when that is not known."""
    shepherd = shepherd_pid()
    return procfs.age(shepherd) if shepherd is not None else None


def why_not_again(environ: Mapping[str, str]) -> str:
    """Why this job is not started again when its script exits with 99; empty where it is.

    Grid Engine itself does so for a job with ``-r n`` as well (seen on Son of Grid Engine 8.1.9), whose user does not
    want it.
    """
    job_id = identity(environ).job_id
    try:
        row = query.own_row(job_id, "prs", limit=_QSTAT_LIMIT)
        if row is not None and "d" in row.state:
            return "it was deleted with qdel"
        if query.not_rerunnable(job_id, limit=_QSTAT_LIMIT):
            return "it was submitted with -r n"
        if query.forbids_reschedule(limit=_QSTAT_LIMIT):
            return "the site forbids it (FORBID_RESCHEDULE)"
    except SchedulerError:  # most sites allow it
        pass
    return ""


# --- termination and suspension ----------------------------------------------------------------------------------

_QSTAT_LIMIT = 3.0  # seconds; KILL follows after the queue's notify time, 60 s by default
_LIMITS = ("h_rt", "s_rt")
_ROUNDED_UP = 1.0  # second: Grid Engine counts whole ones
_START_DELAY = 60.0  # seconds at most between the start that h_rt counts from and that on this host
_CONNECT_LIMIT = 5.0  # seconds in which another host connects to a qrsh


def termination_reason(environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
    """After Grid Engine's warning signal: the final status of this job; None if unknown.

    When USR2 arrives (seen on Son of Grid Engine 8.1.9) the state is ``dr`` after qdel. It is ``r`` at a limit of time
    or memory, but may be ``dr`` by now. It is ``dr`` as well after a process of qrsh has died of a signal, as on a host
    that cannot connect back. A job that is put back into the queue (qmod -rj) is ``Rq`` then, or begins elsewhere. At
    the end of its advance reservation a job is removed as by qdel -f.
    """
    job_id, instance = identity(environ).job_id, _instance(environ)
    try:
        # all states: a job that is deleted as soon as it has started may still be in transfer to its host (dt)
        row = query.own_row(job_id, "prs", limit=_QSTAT_LIMIT)
    except SchedulerError:
        return None
    if row is None:
        why = "deleted with qdel -f, or its advance reservation is over: Grid Engine does not know the job any more"
        return JobStatus(JobState.CANCELLED, why)
    deleted = "d" in row.state
    if not deleted and _rescheduled(row, environ):
        why = "rescheduled, as by qmod -rj: Grid Engine starts it again"
        return JobStatus(JobState.CANCELLED, why, requeued=True)
    try:
        requested = query.job_requests(job_id, limit=_QSTAT_LIMIT)
    except SchedulerError:
        return _deleted() if deleted else None
    age = _age()
    ran = math.inf if age is None else age + _START_DELAY  # at most, by the clock of h_rt
    if deleted:
        ran = (age or 0.0) + _ROUNDED_UP
    for seconds, words in _time_limits(requested, instance).values():
        if seconds <= ran:
            return JobStatus(JobState.TIMEOUT, f"the walltime is over ({words})")
    if deleted:
        return _deleted()
    if "h_vmem" in requested and "h_cpu" not in requested:
        return JobStatus(JobState.OUT_OF_MEMORY, "it used more memory than requested (h_vmem)")
    why = f"a limit of the job or of queue {instance.partition('@')[0]} is reached, such as h_cpu"
    return JobStatus(JobState.TIMEOUT, why)


def _rescheduled(row: query.Row, environ: Mapping[str, str]) -> bool:
    """Whether Grid Engine has begun another start of this job, or is about to. A second start has R all its life."""
    queue, _, host = row.queue.partition("@")
    elsewhere = row.queue and not (queue == environ.get("QUEUE") and same_host(host, this_host(environ)))
    return "R" in row.state and bool(environ.get("RESTARTED") == "0" or elsewhere or {*"qwt"} & {*row.state})


def _deleted() -> JobStatus:
    """Why this job is being deleted: by a user, or by Grid Engine after a host could not connect back to its qrsh."""
    for pid in procfs.children(os.getpid()):
        host = host_of(pid)
        if host and (procfs.age(pid) or 0.0) > _CONNECT_LIMIT and only_listens(pid):
            here = os.uname().nodename
            what = f"host {host} could not connect back to qrsh on {here}, for which Grid Engine has ended the job"
            ask = f"is the address of {here} right there (`getent hosts {here}` on {host})?"
            return JobStatus(JobState.FAILED, f"{what}; {ask}")
    return JobStatus(JobState.CANCELLED, "deleted with qdel")


def suspended(environ: Mapping[str, str]) -> bool | None:
    """Whether this job is suspended; None when the qmaster does not answer."""
    try:
        row = query.own_row(identity(environ).job_id, "s", limit=_QSTAT_LIMIT)
    except SchedulerError:
        return None
    return row is not None and not query.SUSPENDED.keys().isdisjoint(row.state)


def host_fault(host: str) -> str:
    """That no queue of a host is in service: all are unknown (u), disabled (d) or in error (E); empty where one is."""
    from gridtf.schedulers.sge.offers import parse_slots

    try:
        slots = parse_slots(sge.printed(["qstat", "-f", "-xml", "-q", f"*@{host}"], limit=_QSTAT_LIMIT))
    except SchedulerError:
        return ""
    return "none of its queues is in service" if slots and not any(slots.values()) else ""


class GridEngineInJob(BatchInJob):
    """Reads the allocation of a job of Grid Engine's, and starts its agents."""

    warnings = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # qsub(1), -notify: before STOP, before KILL
    last_warnings = frozenset({signal.SIGUSR2})
    announces_limits = True
    end_moves = False
    # What sge_shepherd sets on each host: its temporary folder, the queue instance, resource maps.
    host_variables = re.compile(
        r"HOSTNAME|TMPDIR|TMP|QUEUE|ARC|SGE_(ARCH|BINARY_PATH|JOB_SPOOL_DIR|STD(IN|OUT|ERR)_PATH|HGR_.*|GPU)|"
        r"PE_HOSTFILE"
    )
    start_variables = ("JOB_ID", "SGE_TASK_ID", "RESTARTED")
    name_variable = "JOB_NAME"
    identity = staticmethod(identity)
    this_host = staticmethod(this_host)
    termination_reason = staticmethod(termination_reason)
    end_of_job = staticmethod(end_of_job)
    why_not_again = staticmethod(why_not_again)
    suspended = staticmethod(suspended)
    host_fault = staticmethod(host_fault)

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        from gridtf.host import gpus
        from gridtf.host.processes import tell

        lines = allocated_hosts(environ, self.this_host(environ))
        given = allocation(lines, request, lambda: query.job_requests(environ["JOB_ID"]))
        for note in (
            unused_gpus(given, request, lambda: gpus.present(environ)),
            narrow_binding(lines),
            other_layout(given, request, environ.get("PE", "")),
        ):
            if note:
                tell(note)
        return given

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """The agent of this host is forked: qrsh takes a second, and may not be allowed here (job_is_first_task)."""
        watch = ShepherdWatch(self.this_host(environ))
        return [*super().start_agents(allocation, call, environ), watch]

    def is_exclusive(self, request: Request) -> bool:
        # complex(5): so sites call their resource of relation EXCL
        return any(request.native.get(f"l {name}", "").lower() in ("1", "true") for name in ("exclusive", "excl"))

    def unannounced(self) -> str:
        if shepherd_pid() is None:
            return ""
        return (
            "this shell belongs to a Grid Engine job, but lacks the job's variables: tasks run on this host only; "
            "`qrsh -pe PE SLOTS bash` knows the job's hosts, qlogin does not; a program that clears the environment "
            f"has to keep {', '.join(_NEEDED)}"
        )

    def agent_command(self, host: str, call: AgentCall, environ: Mapping[str, str]) -> Sequence[str]:
        return qrsh_command(locate("qrsh", environ), host, call)

    def agent_end(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        return agent_end(host, os.environ.get("PE", ""), code, printed)

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        resource, variable = request.options["gpu_resource"], request.options.get("gpu_variable")
        from gridtf.schedulers.sge.gpu_grant import gpu_grant

        return gpu_grant(environ, resource, need, wait, variable)

    def variables_of_host(self, request: Request) -> re.Pattern[str] | None:
        variable = request.options.get("gpu_variable")
        return re.compile(f"{self.host_variables.pattern}|{variable}") if variable else self.host_variables

    def start_after(self, environ: Mapping[str, str], jobs: Sequence[str]) -> int | None:
        numbers = ",".join(job.partition(".")[0] for job in jobs)
        answer = sge.run(["qalter", "-hold_jid", numbers, environ["JOB_ID"]], limit=sge.query_limit)
        if answer.code:
            raise SchedulerError(f"Grid Engine does not let it wait: {sge.message(answer)}")
        return self.start_again(environ)

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        return AGAIN_CODE
