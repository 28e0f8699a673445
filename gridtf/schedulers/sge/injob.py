"""Inside a Grid Engine job, on the host of its script: its hosts, agents, sge_shepherd, end and suspension."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import GridtfError, HostLostError, SchedulerError
from gridtf.host import procfs
from gridtf.host.processes import signal_name
from gridtf.jobspec.request import Request
from gridtf.schedulers.agents import ENVIRONMENT_FILE
from gridtf.schedulers.api import AgentCall, AgentEnd, Allocation, Host, JobIdentity, JobStatus
from gridtf.schedulers.batch import same_host, short_name, whole
from gridtf.schedulers.sge import query
from gridtf.schedulers.sge.directives import slots_in_job
from gridtf.schedulers.sge.query import PER_HOST, PER_JOB, PER_SLOT, ResourceRequest, Row
from gridtf.states import JobState

# --- which job this is -------------------------------------------------------------------------------------------


def identity(environ: Mapping[str, str]) -> JobIdentity:
    """The job that this process runs in, with Grid Engine's name for it. RESTARTED is 1 from the second start on, so
    the spool folder helps to tell the starts apart."""
    element = environ.get("SGE_TASK_ID", "undefined")
    element = element if whole(element) else ""
    return JobIdentity(
        job_id=".".join(filter(None, (environ["JOB_ID"], element))),
        details={"job_name": environ["JOB_NAME"]} if "JOB_NAME" in environ else {},
        element=element,
        restarts=f"{environ.get('RESTARTED', '0')}-{_began(environ)}",
    )


def _began(environ: Mapping[str, str]) -> int:
    """A number that is another one for every start: when its spool folder got its files."""
    folder = environ.get("SGE_JOB_SPOOL_DIR")
    try:
        return Path(folder, "config").stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


# --- its hosts: $PE_HOSTFILE, sge_pe(5) --------------------------------------------------------------------------

# Pairs of socket and core, 0,0:0,1 or, with -binding pe of Open Cluster Scheduler, 0:0,0:1; UNDEFINED, <NULL> or NONE
# where nobody asked for a binding.
_BINDING = re.compile(r"\d+,\d+(:\d+,\d+)*|\d+:\d+(,\d+:\d+)*")


@dataclass(frozen=True)
class HostLine:
    """One host of a job. slots: on all of its queues together. cores: how many it is bound to; None: to none."""

    name: str
    slots: int
    cores: int | None = None


def parse_hostfile(text: str, path: str = "PE_HOSTFILE") -> tuple[HostLine, ...]:
    """The hosts in their order, the one that runs the job script first; each once, whatever its queues.

    ``HOST SLOTS QUEUE@HOST BINDING`` a line; what is missing on the right does not matter. path: for messages. Raises
    SchedulerError, with the line, for what cannot be read.
    """
    found: list[HostLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        slots = whole(words[1]) if len(words) > 1 else 1
        if slots is None:
            raise SchedulerError(
                f"{path}:{number}: {words[1][:80]!r} is not a number of slots",
                why=f"the line is {line.strip()[:80]!r}",
                hint="each line is HOST SLOTS QUEUE BINDING; has a start_proc_args of the PE rewritten the file?",
            )
        binding = words[3] if len(words) > 3 else ""
        cores = len(re.findall(r"\d+[,:]\d+", binding)) if _BINDING.fullmatch(binding) else None
        place = next((place for place, host in enumerate(found) if same_host(host.name, words[0])), len(found))
        if place == len(found):
            found.append(HostLine(words[0], slots, cores))
            continue
        before = found[place]
        both = None if before.cores is None or cores is None else before.cores + cores
        found[place] = HostLine(before.name, before.slots + slots, both)
    if not found:
        raise SchedulerError(f"{path} names no host", hint="has a start_proc_args of the PE emptied the file?")
    return tuple(found)


# --- what they have room for: qsub(1), ENVIRONMENTAL VARIABLES ---------------------------------------------------

AskRequests = Callable[[], Mapping[str, ResourceRequest]]


def allocated_hosts(environ: Mapping[str, str], here: str) -> tuple[HostLine, ...]:
    """The hosts of this job, the one that we run on first. here: its name. Raises SchedulerError."""
    path = environ.get("PE_HOSTFILE")
    if path is None:
        return (_without_hostfile(environ, here),)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SchedulerError(
            f"cannot read PE_HOSTFILE, {path}, on {here}: {error.strerror}",
            why="it lies in the spool folder of the host that runs the job script, and goes with the job",
            hint="is this the job script's own host? has a script changed PE_HOSTFILE, or taken it from another job?",
        ) from None
    found = parse_hostfile(text, path)
    own = next((number for number, line in enumerate(found) if same_host(line.name, here)), 0)
    return (found[own], *found[:own], *found[own + 1 :])


def _without_hostfile(environ: Mapping[str, str], here: str) -> HostLine:
    """A job without a parallel environment has one slot."""
    if environ.get("PE"):
        raise SchedulerError(
            f"PE_HOSTFILE is not set on {here}, although the job has the parallel environment {environ['PE']}",
            why="only the job script has it, not what qrsh -inherit starts",
            hint="call gridtf_run in the job script itself; in what qrsh -inherit starts call gridtf_join",
        )
    return HostLine(here, whole(environ.get("NSLOTS", "1")) or 1)


def allocation(found: Sequence[HostLine], request: Request, ask: AskRequests) -> Allocation:
    """What the hosts of a job have room for.

    Args:
        found: The hosts, the one that this process runs on first.
        request: What the job requests, as far as gridtf knows.
        ask: Returns what the job has requested of Grid Engine.
    """
    shape = slots_in_job(request)
    gpus = _gpus(found, request, shape.per_task, ask)
    counts = _without_non_training([line.slots for line in found], 0 if any(gpus) else shape.non_training)
    hosts = [
        Host(line.name, count // shape.per_task, gpus=own, cpus=_cpus(line, own, shape.per_task), address=line.name)
        for line, count, own in zip(found, counts, gpus, strict=True)
        if line.slots  # a host may be there for the job script alone
    ]
    most = request.chosen("tasks_per_node")
    if most and not shape.low <= sum(line.slots for line in found) <= shape.high:
        # A script of the user's own has asked for something else. What gridtf asks for is so many slots in all, and
        # only the parallel environment knows over how many hosts: better fewer hosts than fewer tasks.
        hosts = [host._replace(slots=min(host.slots, most)) for host in hosts]
    return Allocation(tuple(hosts))


def unused_gpus(given: Allocation, request: Request, present: Callable[[], Sequence[str]]) -> str:
    """A note where the first host has GPUs, and neither the job nor its script has said a word about them; else empty.

    present: the GPUs of this host.
    """
    silent = any(role.gpus is None for role in request.roles) and not any(host.gpus for host in given.hosts)
    if not silent or not (there := present()):
        return ""
    gpu = request.options["gpu_resource"]
    return (
        f"host {given.hosts[0].name} has {len(there)} GPUs, and no task gets one: the job has asked Grid Engine for no "
        f"{gpu}; `--gpus-per-node {len(there)}`, or --gpu-resource with your site's name for them, does"
    )


def _cpus(line: HostLine, gpus: int, per_task: int) -> int | None:
    """A slot is a CPU, unless there is one for each GPU: then nobody says how many CPUs that means."""
    if line.cores is not None:
        return line.cores
    return None if gpus and per_task == 1 else line.slots


def _without_non_training(counts: list[int], non_training: int) -> list[int]:
    """Slots that were asked for on behalf of tasks that ride along are not there for training tasks."""
    for _ in range(min(non_training, sum(counts) - 1)):
        fullest = max(range(len(counts)), key=lambda number: (counts[number], number))
        counts[fullest] -= 1
    return counts


def _gpus(found: Sequence[HostLine], request: Request, per_task: int, ask: AskRequests) -> list[int]:
    """GPUs on each host: as asked of Grid Engine, or else as gridtf was told."""
    try:
        requested = ask().get(request.options["gpu_resource"])
    except SchedulerError:  # qmaster is down; the job goes on without it
        requested = None
    if requested is not None and requested.per == PER_SLOT:
        return [int(requested.amount * line.slots) for line in found]
    if requested is not None and requested.per == PER_HOST:
        return [int(requested.amount) for _ in found]
    if requested is not None and requested.per == PER_JOB:
        return [int(requested.amount) if number == 0 else 0 for number, _ in enumerate(found)]
    if (per_node := request.chosen("gpus_per_node")) is not None:
        return [per_node for _ in found]
    return [line.slots // per_task * request.gpus_per_task for line in found]


# --- agents, on other hosts by qrsh -inherit: qrsh(1), sge_pe(5) -------------------------------------------------

# A task of a parallel job that a signal ends may take the whole job along: this outer process exits by itself.
_OUTER = ("/bin/sh", "-c", "trap '' USR1 USR2; \"$@\"; exit $?", "sh")

# The outer process got SIGHUP, as the kernel sends it when the one above it, that has the terminal, is gone.
_HUNG_UP = 128 + signal.SIGHUP

_REFUSED = re.compile(r"didn't accept task|cannot start|not allowed|not permitted", re.IGNORECASE)
_NO_EXECD = re.compile(r"got send error|unable to contact|connection refused", re.IGNORECASE)
_NO_NAME = re.compile(r"can't resolve", re.IGNORECASE)


def qrsh_command(qrsh: str, host: str, call: AgentCall) -> list[str]:
    """qrsh for the agent of one host. qrsh: where it lies.

    -noshell: or a shell would read the words once more. qrsh takes no environment along; its -v could, but would have
    commas for separators.
    """
    words = [*_OUTER, *call.command, host, *call.arguments]
    return [qrsh, "-inherit", "-noshell", "-v", f"{ENVIRONMENT_FILE}=1", host, *words]


def agent_end(host: str, pe: str, code: int, printed: Sequence[str]) -> AgentEnd:
    """How the agent of a host has ended. code: qrsh's exit code, which is the agent's or a lie. printed: on its way."""
    words = [line for line in printed if _speaks_of(host, line)][-3:]
    if code < 0:
        killed = f"qrsh, the connection to host {host}, was killed by {signal_name(-code)}"
        return AgentEnd(code, host, tuple(words), GridtfError(killed, hint="was it killed by hand?"))
    if code == _HUNG_UP:
        return AgentEnd(code, host, tuple(words), _deserted(host))
    error = _known(host, pe, words) if code else _lost(host, words)
    return AgentEnd(code if code < 128 else 128 - code, host, tuple(words), error)


def _speaks_of(host: str, line: str) -> bool:
    return not line.startswith("gridtf:") and re.search(rf"\b{re.escape(short_name(host))}\b", line.lower()) is not None


def _known(host: str, pe: str, words: Sequence[str]) -> GridtfError | None:
    said = " ".join(words)
    what = f"Grid Engine has not started the agent on host {host}"
    if _REFUSED.search(said):
        hint = f"does the PE allow it (`qconf -sp {pe}`: control_slaves TRUE)? do others of this job's qrsh run there?"
    elif _NO_EXECD.search(said):
        hint = f"does sge_execd run on {host} (`qhost -h {host}`)?"
    elif _NO_NAME.search(said):
        hint = "is the host known by this name on all hosts?"
    else:
        return None
    return SchedulerError(what, why="; ".join(words), hint=hint)


def _deserted(host: str) -> GridtfError:
    what = f"what had started the agent on host {host} was killed: its sge_shepherd, or all of the job there"
    return GridtfError(what, hint="by hand, or by the kernel because memory ran out: see dmesg on that host")


def _lost(host: str, words: Sequence[str]) -> GridtfError:
    """0 although nobody has told the agent to end: what qrsh gives when the other side is gone."""
    hint = "has the host crashed, or was sge_shepherd killed there?"
    return HostLostError(f"the connection to host {host} is lost", why="; ".join(words), hint=hint)


# --- the job script's sge_shepherd -------------------------------------------------------------------------------

# When it is killed Grid Engine takes the job for ended, and may start it again.
_SHEPHERD = "sge_shepherd"
_POLL_INTERVAL = 0.5  # seconds between two looks


def shepherd_pid() -> int | None:
    """The pid of the shepherd that this process has been started by, directly or not; None without one."""
    return next((pid for pid in procfs.ancestors(os.getpid()) if procfs.name(pid) == _SHEPHERD), None)


class ShepherdWatch:
    """An AgentHandle that has no agent: it ends when the job script no longer has its shepherd. host: where we are."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._pid = shepherd_pid()
        self._told = False
        self._looked = float("-inf")

    def poll(self) -> AgentEnd | None:
        if self._told:
            return AgentEnd(0, None)
        if self._pid is None or time.monotonic() - self._looked < _POLL_INTERVAL:
            return None
        self._looked = time.monotonic()
        if self._pid in procfs.ancestors(os.getpid()):
            return None
        what = f"the job script on host {self._host}, or the {_SHEPHERD} that had started it, was killed"
        return AgentEnd(1, None, (), GridtfError(what, hint="by hand? Grid Engine may start the job once more"))

    def terminate(self) -> None:
        self._told = True

    def kill(self) -> None:
        self._told = True


# --- termination and suspension ----------------------------------------------------------------------------------

_QSTAT_LIMIT = 3.0  # seconds; KILL follows after the queue's notify, 60 by default
_LIMITS = ("h_rt", "s_rt")


def termination_reason(job_id: str, queue: str) -> JobStatus | None:
    """How this job ends; None when that is not known. job_id: with the element of a job array. queue: it runs in."""
    try:
        # all of them: a job that is ended as soon as it has begun may still be on its way to its host (``dt``)
        row = query.own_row(job_id, "prs", limit=_QSTAT_LIMIT)
        deleted = reason_in_queue(row, (), queue)
        if row is None or (deleted is not None and deleted.state == JobState.CANCELLED):
            return deleted
        return reason_in_queue(
            row, [name for name in query.job_requests(job_id, limit=_QSTAT_LIMIT) if name in _LIMITS], queue
        )
    except SchedulerError:
        return None


def reason_in_queue(row: Row | None, limits: Sequence[str], queue: str) -> JobStatus | None:
    """The same from what qstat says. limits: those on the time that the job has asked for. Pure.

    When USR2 comes (seen on Son of Grid Engine 8.1.9) the state is ``dr`` after qdel, and ``r`` after the time is over;
    a job that is started anew gets no warning.
    """
    if row is None:
        return None
    if "d" in row.state:
        return JobStatus(JobState.CANCELLED, "deleted with qdel")
    over = f"the walltime is over ({limits[0]})" if limits else f"a limit of queue {queue} is reached, such as h_rt"
    return JobStatus(JobState.TIMEOUT, over)


def suspended(job_id: str) -> bool | None:
    """Ask qstat; None when nobody answers. job_id: with the element of a job array."""
    try:
        return is_suspended(query.own_row(job_id, "s", limit=_QSTAT_LIMIT))
    except SchedulerError:
        return None


def is_suspended(row: Row | None) -> bool:
    """The same from what qstat says. Pure."""
    return row is not None and not query.SUSPENDED.keys().isdisjoint(row.state)
