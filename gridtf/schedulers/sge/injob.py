"""Inside a Grid Engine job, on the host of its script: its hosts, agents, sge_shepherd, end and suspension."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gridtf.errors import GridtfError, HostLostError, SchedulerError
from gridtf.host import procfs
from gridtf.host.processes import signal_name
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record
from gridtf.schedulers.agents import SENT, StartedAgents, fork_agent
from gridtf.schedulers.base import CANCELLED, TIMEOUT, AgentCall, AgentEnd, AgentHandle, Allocation, Host, JobStatus
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge import client, query
from gridtf.schedulers.sge.directives import in_job
from gridtf.schedulers.sge.query import PER_HOST, PER_JOB, PER_SLOT, ResourceRequest, Row

# --- which job this is -------------------------------------------------------------------------------------------


def identity(environ: Mapping[str, str]) -> Record:
    """job_id, Grid Engine's name for it, and what names this start: RESTARTED is 1 from the second one on, so the spool
    folder helps."""
    element = environ.get("SGE_TASK_ID", "undefined")
    name = {"job_name": environ["JOB_NAME"]} if "JOB_NAME" in environ else {}
    restarts = f"{environ.get('RESTARTED', '0')}-{_began(environ)}"
    found: Record = {"job_id": environ["JOB_ID"], "restarts": restarts, **name}
    if whole(element):
        found |= {"job_id": f"{environ['JOB_ID']}.{element}", "element": element}
    return found


def _began(environ: Mapping[str, str]) -> int:
    """A number that is another one for every start: when its spool folder got its files."""
    folder = environ.get("SGE_JOB_SPOOL_DIR")
    try:
        return Path(folder, "config").stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


def this_host(environ: Mapping[str, str]) -> str:
    """What Grid Engine calls this host. HOSTNAME may come from elsewhere, as with qsub -V."""
    name = os.uname().nodename
    told = environ.get("HOSTNAME", name)
    return told if same_host(told, name) else name


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


def short_name(name: str) -> str:
    """The first part of a host's name, as Grid Engine compares names when it ignores domains."""
    return name.split(".", 1)[0].lower()


def same_host(one: str, other: str) -> bool:
    """Whether two names mean one host: they are alike, or one of them is the other without its domain."""
    one, other = one.lower(), other.lower()
    return one == other or (("." in one) != ("." in other) and short_name(one) == short_name(other))


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


def allocation(found: Sequence[HostLine], spec: JobSpec, ask: AskRequests) -> Allocation:
    """What the hosts of a job have room for. found: as from lines.

    ask: what the job has asked Grid Engine for. Raises SchedulerError.
    """
    shape = in_job(spec)
    gpus = _gpus(found, spec, shape.per_task, ask)
    counts = _without_riders([line.slots for line in found], 0 if any(gpus) else shape.riders)
    hosts = [
        Host(line.name, count // shape.per_task, gpus=own, cpus=_cpus(line, own, shape.per_task), address=line.name)
        for line, count, own in zip(found, counts, gpus, strict=True)
        if line.slots  # a host may be there for the job script alone
    ]
    if spec.tasks_per_node and not shape.low <= sum(line.slots for line in found) <= shape.high:
        # A script of the user's own has asked for something else. What gridtf asks for is so many slots in all, and
        # only the parallel environment knows over how many hosts: better fewer hosts than fewer tasks.
        hosts = [replace(host, slots=min(host.slots, spec.tasks_per_node)) for host in hosts]
    return Allocation(tuple(hosts))


def unused_gpus(given: Allocation, spec: JobSpec, present: Callable[[], Sequence[str]]) -> str:
    """A note where the first host has GPUs, and neither the job nor its script has said a word about them; else empty.

    present: the GPUs of this host.
    """
    silent = layout.gpus_per_task(spec, default=-1) == -1 and not any(host.gpus for host in given.hosts)
    if not silent or not (there := present()):
        return ""
    return (
        f"host {given.hosts[0].name} has {len(there)} GPUs, and no task gets one: the job has asked Grid Engine for no "
        f"{spec.gpu_resource}; `--gpus-per-node {len(there)}`, or --gpu-resource with your site's name for them, does"
    )


def _cpus(line: HostLine, gpus: int, per_task: int) -> int | None:
    """A slot is a CPU, unless there is one for each GPU: then nobody says how many CPUs that means."""
    if line.cores is not None:
        return line.cores
    return None if gpus and per_task == 1 else line.slots


def _without_riders(counts: list[int], riders: int) -> list[int]:
    """Slots that were asked for on behalf of tasks that ride along are not there for training tasks."""
    for _ in range(min(riders, sum(counts) - 1)):
        fullest = max(range(len(counts)), key=lambda number: (counts[number], number))
        counts[fullest] -= 1
    return counts


def _gpus(found: Sequence[HostLine], spec: JobSpec, per_task: int, ask: AskRequests) -> list[int]:
    """GPUs on each host: as asked of Grid Engine, or else as gridtf was told."""
    try:
        asked = ask().get(spec.gpu_resource)
    except SchedulerError:  # qmaster is down; the job goes on without it
        asked = None
    if asked is not None and asked.per == PER_SLOT:
        return [int(asked.amount * line.slots) for line in found]
    if asked is not None and asked.per == PER_HOST:
        return [int(asked.amount) for _ in found]
    if asked is not None and asked.per == PER_JOB:
        return [int(asked.amount) if number == 0 else 0 for number, _ in enumerate(found)]
    if spec.gpus_per_node is not None:
        return [spec.gpus_per_node for _ in found]
    return [line.slots // per_task * layout.gpus_per_task(spec) for line in found]


# --- agents, on other hosts by qrsh -inherit: qrsh(1), sge_pe(5) -------------------------------------------------

# A task of a parallel job that a signal ends may take the whole job along: this outer process exits by itself.
_OUTER = ("/bin/sh", "-c", "trap '' USR1 USR2; \"$@\"; exit $?", "sh")

# The outer process got SIGHUP, as the kernel sends it when the one above it, that has the terminal, is gone.
_HUNG_UP = 128 + signal.SIGHUP

_REFUSED = re.compile(r"didn't accept task|cannot start|not allowed|not permitted", re.IGNORECASE)
_NO_EXECD = re.compile(r"got send error|unable to contact|connection refused", re.IGNORECASE)
_NO_NAME = re.compile(r"can't resolve", re.IGNORECASE)


def start_agents(
    allocation: Allocation, call: AgentCall, environ: Mapping[str, str], warnings: Iterable[int]
) -> Sequence[AgentHandle]:
    """All at once: qrsh takes a second. On this host it may not be allowed at all (job_is_first_task): fork there.

    warnings: signals that come to all processes of the job, qrsh included.
    """
    here = this_host(environ)
    others = [one.name for one in allocation.hosts if not same_host(one.name, here)]
    if others:
        call.leave(environ)
    qrsh, pe = client.program("qrsh", environ), environ.get("PE", "")
    # forked first, so that it does not hold on to the pipes whose end tells the others to stop
    handles: list[AgentHandle] = [
        fork_agent(one.name, call.arguments, call.main) for one in allocation.hosts if same_host(one.name, here)
    ]
    handles += [
        StartedAgents(qrsh_command(qrsh, name, call), environ, call.log, partial(agent_end, name, pe), warnings)
        for name in others
    ]
    return [*handles, ShepherdWatch(here)]


def qrsh_command(qrsh: str, host: str, call: AgentCall) -> list[str]:
    """qrsh for the agent of one host. qrsh: where it lies.

    -noshell: or a shell would read the words once more. qrsh takes no environment along; its -v could, but would have
    commas for separators.
    """
    words = [*_OUTER, *call.command, host, *call.arguments]
    return [qrsh, "-inherit", "-noshell", "-v", f"{SENT}=1", host, *words]


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
    hint = "has the host crashed, or has somebody killed sge_shepherd there?"
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
        if row is None or (deleted is not None and deleted.state == CANCELLED):
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
        return JobStatus(CANCELLED, "deleted with qdel")
    over = f"the walltime is over ({limits[0]})" if limits else f"a limit of queue {queue} is reached, such as h_rt"
    return JobStatus(TIMEOUT, over)


def suspended(job_id: str) -> bool | None:
    """Ask qstat; None when nobody answers. job_id: with the element of a job array."""
    try:
        return is_suspended(query.own_row(job_id, "s", limit=_QSTAT_LIMIT))
    except SchedulerError:
        return None


def is_suspended(row: Row | None) -> bool:
    """The same from what qstat says. Pure."""
    return row is not None and not query.SUSPENDED.keys().isdisjoint(row.state)
