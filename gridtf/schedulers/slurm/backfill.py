"""When Slurm's backfill would start a job: the nodes are filled with the jobs that run, that it has planned, and that
wait before the job.

``sbatch --test-only`` plans none of these: to the first moment at which the jobs that run leave room, it adds nodes
times walltimes of all jobs that wait in the partition. So a job that fits a hole before them starts earlier than it
says, and one for which they make no room may start later. Not known here: the priority of the job, which is taken to be
the lowest of its partition's tier (PriorityTier), licenses, limits of accounts, preemption by QOS.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from gridtf.jobspec.units import parse_memory, parse_walltime
from gridtf.schedulers import answers
from gridtf.schedulers.api import Estimate
from gridtf.schedulers.slurm import offers
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.hostlist import expand
from gridtf.schedulers.slurm.offers import Partition, parsed
from gridtf.schedulers.slurm.query import count_elements, parse_moment
from gridtf.text import whole
from gridtf.values import grouped

if TYPE_CHECKING:
    from gridtf.schedulers.slurm.advice import ComponentRequest

MOST = 5000  # waiting jobs that are planned; behind more of them, only the sum of --test-only is known
_LIMIT = 20.0  # seconds for each command
_SOON = 5.0  # seconds until a start that is as good as one now
_FIELDS = (
    *("jobarrayid", "statecompact", "partition", "prioritylong", "starttime", "endtime", "timelimit"),
    *("tres-alloc", "tres-per-node", "tres-per-job", "tres-per-task", "numtasks"),
    *("oversubscribe", "nodelist", "schednodes", "reason"),
)
_SQUEUE = ("squeue", "--all", "--noheader", f"--Format={','.join(f'{field}:|' for field in _FIELDS)}")
# Why a job waits that Slurm starts, in its turn, when there is room; others wait for something else.
_READY = re.compile(r"None|Priority|Resources|JobArrayTaskLimit|ReqNodeNotAvail.*|Nodes.required.for.job.*")
# Options of a job that only Slurm understands: when it may start, and which nodes or GPUs it takes.
_BY_SLURM = frozenset(
    {
        *("begin", "contiguous", "nodefile", "reservation", "switches"),
        *("gpus", "gpus-per-socket", "gpus-per-task", "ntasks", "tres-per-task"),
    }
)
_ARRAY_LOOKS = 20  # elements of an array that Slurm's backfill looks at, unless bf_max_job_array_resv is set
_LOOKS = 500  # jobs that it looks at, unless bf_max_job_test is set

Room = tuple[int, int, int]  # CPUs, GPUs, MiB


class Profile(NamedTuple):
    """What is free on a node, and when.

    Attributes:
        moments: Seconds since the epoch, from now on.
        free: What is free from each moment to the next.
        begins: The moments at which a job begins that waits now: until it has begun, Slurm keeps its nodes as a whole.
    """

    moments: list[float]
    free: list[Room]
    begins: set[float]


class Hosts:
    """The nodes that jobs which need as much may have.

    Attributes:
        needs: Node -> what they need there.
        sooner: Walltime, a power of two -> a heap of nodes, each with a moment before which it has no room for so long.
    """

    def __init__(self, needs: Mapping[str, Room]) -> None:
        self.needs = needs
        self.sooner: dict[float, list[tuple[float, str]]] = {}


class Job(NamedTuple):
    """A job of squeue's.

    Attributes:
        partitions: It runs in one of them.
        priority: Slurm's.
        start: When it starts or was started, in seconds since the epoch; None: not planned.
        length: Its walltime in seconds; of a job that runs, what is left of it after ``start``; infinite without one.
        hosts: Where it runs, or is planned to.
        nodes: Of each element of an array.
        each: What it takes on each node.
        alone: Whether it shares no node.
        elements: The elements of an array; of another job 1.
        array: The id that all elements of an array have in common.
        at_once: How many of them may run at once; 0: all.
        waits: Whether it has not begun.
        ready: Whether it waits for nothing but room.
    """

    partitions: tuple[str, ...]
    priority: int
    start: float | None
    length: float
    hosts: tuple[str, ...]
    nodes: int
    each: Room
    alone: bool
    elements: int
    array: str
    at_once: int
    waits: bool
    ready: bool


class Rules(NamedTuple):
    """How Slurm is configured.

    Attributes:
        config: Key -> value of ``scontrol show config``.
        partitions: Partition -> the same of ``scontrol show partition``.
    """

    config: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, str]]

    @property
    def hidden(self) -> bool:
        """Whether other users' jobs may be hidden."""
        return "jobs" in self.config.get("PrivateData", "")

    def alone(self, partitions: Sequence[str]) -> bool:
        """Whether no job shares a node with one of these partitions."""
        exclusive = any(self.of(name, "OverSubscribe") == "EXCLUSIVE" for name in partitions)
        return exclusive or self.config.get("SelectType") == "select/linear"

    @property
    def by_memory(self) -> bool:
        """Whether memory is allocated."""
        return "MEMORY" in self.config.get("SelectTypeParameters", "").upper()

    @property
    def looks(self) -> int:
        """How many jobs backfill looks at."""
        found = re.search(r"bf_max_job_test=(\d+)", self.config.get("SchedulerParameters", ""))
        return min(MOST, int(found[1]) if found else _LOOKS)

    def tier(self, partitions: Sequence[str]) -> int:
        """The tier of a job, which comes before its priority."""
        return max((whole(self.of(name, "PriorityTier")) or 1 for name in partitions), default=1)

    def of(self, partition: str, key: str) -> str:
        """A value of a partition's."""
        return self.partitions.get(partition, {}).get(key, "")

    def yields(self, job: Job, tier: int) -> bool:
        """Whether a job that runs makes room for those of a tier."""
        by_partition = self.config.get("PreemptType") == "preempt/partition_prio"
        may = all(self.of(name, "PreemptMode") not in ("OFF", "") for name in job.partitions)
        return by_partition and may and self.tier(job.partitions) < tier

    def memory(self, partition: str, node_mem: int, cpus: int) -> int:
        """The MiB on each node of a job that requests none."""
        for of in (self.partitions.get(partition, {}), self.config):
            if each := whole(of.get("DefMemPerCPU", "")):
                return each * cpus
            if each := whole(of.get("DefMemPerNode", "")):
                return each
        return node_mem


class Queue:
    """What fills the nodes; texts of Slurm's commands, parsed once for all questions of a command.

    Attributes:
        jobs: All jobs of the partitions.
        rules: How Slurm is configured.
        room: Tier -> node -> what is free for jobs behind all those of this tier.
    """

    def __init__(self, jobs: Sequence[Job], rules: Rules) -> None:
        self.jobs, self.rules = jobs, rules
        self.room: dict[int, dict[str, Profile]] = {}


def ask(server: str, partitions: Sequence[str]) -> Queue:
    """The queue as it is or was a minute ago; without jobs where other users' jobs are hidden.

    Args:
        server: Names the controller that is asked.
        partitions: Those whose jobs count.

    Raises:
        SchedulerError: When Slurm does not answer.
    """

    def texts() -> list[str]:
        shown = [slurm.printed(["scontrol", "--oneliner", "--all", "show", what], limit=_LIMIT) for what in _SHOWN]
        hidden = parse_rules(*shown).hidden
        command = [*_SQUEUE, f"--partition={','.join(partitions)}"]
        return [*shown, "" if hidden else slurm.printed(command, limit=_LIMIT)]

    question = "\n".join((server, "queue", *partitions))
    return parse(*answers.shared(question, texts, lambda kept: [str(text) for text in kept]))


_SHOWN = ("config", "partition")


@lru_cache(maxsize=1)
def parse(config: str, partitions: str, jobs: str) -> Queue:
    """What Slurm's commands print, in the form of _SQUEUE. Pure; the same texts are parsed once."""
    return Queue([job for line in jobs.splitlines() if (job := parse_job(line))], parse_rules(config, partitions))


def parse_rules(config: str, partitions: str) -> Rules:
    """What ``scontrol show config`` and ``scontrol --oneliner show partition`` print. Pure."""
    lines = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in partitions.splitlines()]
    named = {values.get("PartitionName", ""): values for values in lines}
    return Rules(dict(re.findall(r"(?m)^(\w+) *= *(.*?) *$", config)), named)


def parse_job(line: str) -> Job | None:
    """A line of squeue's, in the form of _SQUEUE; None for a job that is held or ending, and for other lines. Pure."""
    words = line.strip().split("|")
    if len(words) != len(_FIELDS) + 1:
        return None
    ids, state, names, priority, start, end, limit, *sizes, shares, hosts, planned, reason, _ = words
    waits, begin, over = state == "PD", parse_moment(start), parse_moment(end)
    if state in ("CG", "CD", "RQ") or (waits and not whole(priority)):
        return None
    nodes, each = _sizes(*sizes)
    length = (parsed(parse_walltime, limit) or math.inf) if begin is None or over is None else over - begin
    return Job(
        tuple(names.split(",")),
        whole(priority) or 0,
        begin,
        length,
        tuple(_hosts(planned if waits else hosts)),
        nodes,
        each,
        shares in ("NO", "EXCLUSIVE"),
        count_elements(ids) if waits else 1,
        ids.partition("_")[0],
        whole(ids.partition("%")[2].rstrip("]")) or 0,
        waits,
        _READY.fullmatch(reason) is not None,
    )


@lru_cache(maxsize=4096)
def _hosts(text: str) -> list[str]:
    return [] if text in ("", "(null)", "N/A") else expand(text)


@lru_cache(maxsize=4096)
def _sizes(resources: str, per_node: str, per_job: str, per_task: str, tasks: str) -> tuple[int, Room]:
    """The nodes of a job, and what it takes on each."""
    found = dict(part.partition("=")[::2] for part in resources.split(","))
    nodes = whole(found.get("node", "")) or 1
    in_all = whole(found.get("gres/gpu", "")) or _gpus(per_job) or _gpus(per_task) * (whole(tasks) or 1)
    gpus = _gpus(per_node) or -(-in_all // nodes)
    mem = parsed(parse_memory, found.get("mem")) or 0
    return nodes, (-(-(whole(found.get("cpu", "")) or 1) // nodes), gpus, -(-mem // nodes))


def _gpus(text: str) -> int:
    return sum(int(number or 1) for number in re.findall(r"gpu(?::[^:,()\d][^:,()]*)?(?::(\d+))?(?=[,(]|$)", text))


def estimate(
    told: Estimate, queue: Queue, partitions: Sequence[Partition], request: ComponentRequest, now: float
) -> Estimate:
    """When a job would start if it were submitted now. Pure.

    Args:
        told: What sbatch --test-only says, with a start.
        queue: The jobs of all partitions that have a node in common with those of the job.
        partitions: Those of the site.
        request: The job.
        now: Seconds since the epoch.
    """
    chosen, rules = offers.chosen(request.partitions, partitions), queue.rules
    tier = rules.tier([one.name for one in chosen])
    waiting = [job for job in queue.jobs if job.waits and job.ready and rules.tier(job.partitions) >= tier]
    # --test-only counts those as well that wait for something else than room, such as a walltime that is too long
    counted = [(job, 1) for job in queue.jobs if job.waits and {*job.partitions} & {one.name for one in chosen}]
    if not (waiting or counted or rules.hidden):
        return told
    # what --test-only adds for jobs that wait is left out; the rest is of jobs that run, and reservations
    least = (told.start or 0.0) - _spread(counted, chosen)
    looked = sum(min(_ARRAY_LOOKS, job.elements) for job in waiting)
    other = {*request.options} & _BY_SLURM or ("constraint" in request.options and not request.features)
    known = not (rules.hidden or other)
    if known and looked <= rules.looks and sum(job.elements for job in waiting) <= MOST:
        room = queue.room[tier] = queue.room.get(tier) or filled(queue, partitions, tier, now)
        start = min((_start(room, rules, one, request, max(now, least)) for one in chosen), default=math.inf)
        if start < math.inf:
            return told.replace(start=start)
    # it counts an array once, and no other partitions
    latest = max(told.start or 0.0, least + _spread([(job, job.elements) for job in waiting], chosen))
    latest = latest if latest < math.inf else told.start or 0.0
    return told.replace(start=latest, at_most=latest > now + _SOON)


def _start(
    room: Mapping[str, Profile], rules: Rules, partition: Partition, request: ComponentRequest, after: float
) -> float:
    """When there is room in a partition, from a moment on."""
    name, listed, left_out = (
        partition.name,
        *({*expand(request.options.get(key, ""))} for key in ("nodelist", "exclude")),
    )
    alone = "exclusive" in request.options or rules.alone([name])
    needs: dict[str, Room] = {}
    for group in partition.nodes:
        most = group.cpus, group.gpus(), group.mem
        all_of_it = re.fullmatch("0[KMGT]?", request.options.get("mem", ""))
        mem = group.mem if all_of_it else request.mem or rules.memory(name, group.mem, request.cpus)
        need = most if alone else (request.cpus, request.gpus, mem if rules.by_memory else 0)
        if group.works and request.fits(group) and {*request.features} <= {*group.features}:
            needs |= dict.fromkeys(expand(group.names), need)
    some = len(listed) < request.nodes
    needs = {host: need for host, need in needs.items() if host not in left_out and (some or host in listed)}
    default = parsed(parse_walltime, rules.of(name, "DefaultTime"))
    length = request.time or default or partition.limit or math.inf
    return place(room, Hosts(needs), request.nodes, length, after)[0]


def _spread(jobs: Iterable[tuple[Job, int]], partitions: Sequence[Partition]) -> float:
    """The seconds that jobs, each so many times, fill the smallest of the partitions, as --test-only counts."""
    cpus, size = min(
        ((sum(group.count * group.cpus for group in one.nodes), one.size) for one in partitions), default=(0, 0)
    )
    each = cpus // max(1, size)
    return sum(times * job.nodes * max(job.each[0], each) * job.length for job, times in jobs) / max(1, cpus)


def beside(partitions: Sequence[Partition], names: Collection[str]) -> list[str]:
    """The partitions of these names, and all whose jobs take nodes from theirs, by way of others as well. Pure."""
    hosts = {one.name: {host for group in one.nodes for host in expand(group.names)} for one in partitions}
    found, left = {*names} & {*hosts}, {*hosts} - {*names}
    while more := {name for name in left if any(hosts[name] & hosts[one] for one in found)}:
        found |= more
        left -= more
    return sorted(found)


def filled(queue: Queue, partitions: Sequence[Partition], tier: int, now: float) -> dict[str, Profile]:
    """Node -> what is free on it behind all jobs of a tier and above. Pure."""
    rules, alike = queue.rules, dict[tuple[Room, bool, tuple[str, ...]], Hosts]()
    groups = [(one.name, group) for one in partitions for group in one.nodes if group.works]
    capacity = {host: (one.cpus, one.gpus(), one.mem) for _, one in groups for host in expand(one.names)}
    members = grouped((name, host) for name, group in groups for host in expand(group.names))
    room = {host: Profile([now], [most], set()) for host, most in capacity.items()}
    by_memory = rules.by_memory

    def hosts_of(job: Job) -> Hosts:
        kind = job.each, job.alone, job.partitions
        if kind not in alike:
            each, alone = (*job.each[:2], job.each[2] * by_memory), job.alone or rules.alone(job.partitions)
            own = [host for name in job.partitions for host in members.get(name, ())]
            alike[kind] = Hosts({host: capacity[host] if alone else each for host in own})
        return alike[kind]

    ends: dict[str, list[tuple[float, tuple[str, ...]]]] = defaultdict(list)  # of the elements of an array, and where
    for job in queue.jobs:
        if not (job.waits or rules.yields(job, tier)):
            heappush(ends[job.array], ((job.start or now) + job.length, job.hosts))
            needs = hosts_of(job).needs
            for host in {*job.hosts} & {*needs}:
                _occupy(room[host], now, max((job.start or now) + job.length, now + 1), needs[host])
    waiting = [job for job in queue.jobs if job.waits and job.ready and rules.tier(job.partitions) >= tier]
    known: dict[Job, float] = {}  # when the last one like it begins: the next one begins no earlier
    for job in sorted(waiting, key=lambda job: (-rules.tier(job.partitions), -job.priority)):
        hosts, like = hosts_of(job), job._replace(priority=0, start=None, elements=0, hosts=())
        for number in range(job.elements):
            if not number and job.start is not None and job.hosts:
                begin, own = _planned(job, job.start, hosts.needs, room, now)
            else:
                after, free = known.get(like, now), hosts
                while 0 < job.at_once <= len(ends[job.array]):  # Slurm plans none of these: each follows another one
                    end, left = heappop(ends[job.array])
                    same = {host: hosts.needs[host] for host in left if host in hosts.needs}
                    after, free = max(after, end), Hosts(same) if len(same) >= job.nodes else hosts
                begin, own = place(room, free, job.nodes, job.length, after)
                known[like] = begin
            heappush(ends[job.array], (begin + job.length, tuple(own)))
            for host in own if begin < math.inf else ():
                _occupy(room[host], begin, begin + job.length, hosts.needs[host])
                room[host].begins.add(begin)
    return room


def _planned(
    job: Job, start: float, needs: Mapping[str, Room], room: Mapping[str, Profile], now: float
) -> tuple[float, list[str]]:
    """When and where a job begins that Slurm has planned: behind others that wait, it is planned for when whole nodes
    are free, and started as soon as there is room."""
    own, begin = {host: needs[host] for host in job.hosts if host in needs}, max(now, start)
    if any(room[host].begins for host in own):
        begin = min(begin, place(room, Hosts(own), len(own), job.length, now)[0])
    return begin, [*own]


def place(
    room: Mapping[str, Profile], hosts: Hosts, nodes: int, length: float, after: float
) -> tuple[float, list[str]]:
    """Find the first moment at which enough nodes have room at once, for so long. Pure.

    Args:
        room: Node -> what is free on it.
        hosts: The nodes that may be taken.
        nodes: How many.
        length: Seconds.
        after: The first moment that counts.

    Returns:
        The moment, infinite if there is none, and the nodes.
    """
    least = 2.0 ** math.floor(math.log2(length)) if 1 < length < math.inf else length
    heap = hosts.sooner.setdefault(least, [(0.0, host) for host in hosts.needs])
    tried: dict[str, float] = {}
    while True:
        found = sorted((_earliest(room[host], hosts.needs[host], length, after), host) for host in tried)
        while heap and (len(found) < nodes or max(after, heap[0][0]) < found[nodes - 1][0]):
            moment, host = heappop(heap)
            first = _earliest(room[host], hosts.needs[host], least, moment)
            if first > moment and first > after:
                heappush(heap, (first, host))
                if first == math.inf and heap[0][0] == math.inf:
                    break
                continue
            tried[host] = first
            insort(found, (_earliest(room[host], hosts.needs[host], length, after), host))
        begin = found[nodes - 1][0] if len(found) >= nodes else math.inf
        if begin <= after or begin == math.inf:
            break
        after = begin
    for host, moment in tried.items():
        heappush(heap, (moment, host))
    return begin, [host for _, host in found[:nodes]]


def _earliest(profile: Profile, need: Room, length: float, after: float) -> float:
    moments, free, begins = profile
    begin = math.inf
    for number in range(max(0, bisect_right(moments, after) - 1), len(moments)):
        moment, own = moments[number], free[number]
        if own[0] < need[0] or own[1] < need[1] or own[2] < need[2]:
            begin = math.inf
            continue
        if begin == math.inf or moment in begins:
            begin = max(after, moment)
        if number + 1 == len(moments) or moments[number + 1] - begin >= length:
            return begin
    return math.inf


def _occupy(profile: Profile, begin: float, end: float, need: Room) -> None:
    moments, free, _ = profile
    for moment in (begin, end):
        at = bisect_left(moments, moment)
        if moment < math.inf and (at == len(moments) or moments[at] != moment):
            moments.insert(at, moment)
            free.insert(at, free[at - 1])
    for number in range(bisect_left(moments, begin), bisect_left(moments, end)):
        cpus, gpus, mem = free[number]
        free[number] = cpus - need[0], gpus - need[1], mem - need[2]
