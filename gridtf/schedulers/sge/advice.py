"""What Grid Engine would refuse, or leave waiting for ever, told before submission, with what the cell offers.

qsub -w v knows most of it. It does not know that gridtf starts tasks on all hosts of a job, nor how sites count GPUs.
Where qconf is not permitted (many cells let only administrative hosts ask) nothing is known, and that is no error.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import Plan
from gridtf.schedulers.batch import Answer, whole
from gridtf.schedulers.sge import scheduler
from gridtf.schedulers.sge.directives import MEMORY, Slots, resources, slots
from gridtf.schedulers.sge.query import seconds

_PATIENCE = 20.0  # seconds, for a question to the qmaster
# Without looking at the load, -w v does not know resources whose amount is a matter of load, such as mem_free.
_LOAD = re.compile(r"job requests unknown resource \(([\w.]+)\)")


def check(plan: Plan) -> tuple[str, ...]:
    """Ask Grid Engine about a job without submitting it; its script is where the plan says.

    Returns:
        Notes: what will make the job wait, or is doubtful.

    Raises:
        SpecError: For what the cell does not have, with the key to blame.
        SchedulerError: When the qmaster does not answer, or refuses for another reason.
    """
    requested = Requested.of(plan.request, plan.spec)
    script = str(RunDir(plan.run_dir).script)
    notes: list[str] = []
    answer = _verify("v", script)
    if answer.code and _LOAD.search(answer.err + answer.out):
        answer = _verify("p", script)
        if answer.code:
            notes.append(f"no host has at present what the job asks for: {_of_load(answer)}")
            answer = Answer(0, "", "")
    # what the cell offers is asked only when it is to be told
    try:
        if requested.pe:
            notes += check_pes(_matching(requested.pe), requested)
        if requested.gpu in requested.resources and requested.key(requested.gpu) != "native":
            notes += check_counting(known_resources(), requested)
    except SpecError as error:
        raise _with_alternatives(error, requested, script) from None
    if answer.code:
        refuse(_without_verdict(answer), requested, _cell(requested, script))
    return tuple(notes)


def _verify(how: str, script: str, *options: str) -> Answer:
    """options: instead of those in the script's head."""
    return scheduler.run(["qsub", "-w", how, *options, script], limit=_PATIENCE)


def _of_load(answer: Answer) -> str:
    """The reason that has to do with load: ``… because it offers only hl:mem_free=22.594G``."""
    reasons = _without_verdict(answer)
    line = next((line for line in reasons.err.splitlines() if " hl:" in line), scheduler.message(reasons))
    return re.sub(r"^(Unable to run job: )?Job \d+ ", "", line)


def _without_verdict(answer: Answer) -> Answer:
    """Its last line is then a reason."""
    lines = (answer.err or answer.out).splitlines()
    kept = [line for line in lines if not line.startswith(("verification:", "Exiting."))]
    return Answer(answer.code, "", "\n".join(kept))


def _matching(pattern: str) -> list[PE]:
    if not re.search(r"[*?\[|!&]", pattern):
        found = known_pe(pattern)
        return [] if found is None else [found]
    return [one for one in known_pes() if fnmatch.fnmatchcase(one.name, pattern)]


def _cell(requested: Requested, script: str) -> Cell:
    pes = known_pes()
    return Cell(
        pes=pes,
        suitable=_suitable(pes, requested, script) if requested.pe else (),
        queues=known_queues(),
        resources=known_resources(),
        projects=known_names("-sprjl"),
        hosts=known_names("-ss"),
    )


def _suitable(pes: Sequence[PE], requested: Requested, script: str) -> list[str]:
    """Those that the same job could run in, as far as they and qsub say."""
    found = []
    for one in pes:
        if pe_problem(one, requested) is None and one.name != requested.pe:
            answer = _verify("v", script, "-pe", one.name, str(requested.slots))
            if not answer.code or _LOAD.search(answer.err + answer.out):
                found.append(one.name)
    return found


def _with_alternatives(error: SpecError, requested: Requested, script: str) -> SpecError:
    """The same error, with the parallel environments that would do."""
    if error.key != requested.key("pe"):
        return error
    pes = known_pes()
    hint = these("do", _suitable(pes, requested, script), [one.name for one in pes])
    return SpecError(error.key, error.problem, why=error.why, hint=hint or error.hint)


def naming_pes(error: SpecError, plan: Plan) -> SpecError:
    """The same error, that several slots need a parallel environment, with those that would do as far as they say."""
    requested = Requested.of(plan.request, plan.spec)
    try:
        pes = known_pes()
    except SchedulerError:
        return error
    hint = these("may do", [one.name for one in pes if pe_problem(one, requested) is None], [one.name for one in pes])
    return SpecError(error.key, error.problem, why=error.why, hint=f"name one with --pe; {hint}") if hint else error


# --- what qsub does not know -----------------------------------------------------------------------------------


def check_pes(matching: Sequence[PE], requested: Requested) -> list[str]:
    """Notes on the parallel environments that the job may get. Pure.

    Raises:
        SpecError: When none of them can ever do.
    """
    problems = [error for one in matching if (error := pe_problem(one, requested)) is not None]
    if problems and len(problems) == len(matching):
        raise problems[0]
    return [f"Grid Engine may choose a parallel environment that will not do: {one.problem}" for one in problems[:1]]


def pe_problem(one: PE, requested: Requested) -> SpecError | None:
    """Why a parallel environment can never give what the job asks for: sge_pe(5). Pure."""
    request, wanted = requested.request, requested.slots

    def problem(what: str) -> SpecError:
        return SpecError(requested.key("pe"), f"PE `{one.name}` {what}")

    if wanted.low > one.slots:
        return problem(f"has {one.slots} slots in all, {wanted.low} are asked for")
    if not one.control_slaves and one.hosts(wanted.high) > 1:
        return problem("does not let gridtf start tasks on other hosts (control_slaves FALSE)")
    low, high = request.chosen("nodes") or (1, one.hosts(wanted.high))
    if one.rule == "$pe_slots" and low > 1:
        return problem(f"gives a job slots of one host only (allocation_rule $pe_slots), not of {low}")
    if one.fixed is None:
        return None
    counts = range(-(-wanted.low // one.fixed), wanted.high // one.fixed + 1)  # hosts
    if not counts:
        return problem(f"gives {one.fixed} slots on every host (allocation_rule): {wanted} is no multiple")
    if counts[0] > high or counts[-1] < low:
        return problem(f"gives {one.fixed} slots a host: {wanted.low} slots are {counts[0]} hosts, not {low}")
    tasks = request.chosen("tasks_per_node") or 0
    need = tasks * wanted.per_task
    if need > one.fixed:
        return problem(f"gives {one.fixed} slots on every host, {tasks} tasks a host need {need}")
    return None


def check_counting(known: Sequence[Resource], requested: Requested) -> list[str]:
    """Notes on the resource that stands for GPUs. Pure.

    Raises:
        SpecError: When it does not count as gridtf asks.
    """
    name = requested.gpu
    found = next((one for one in known if name in (one.name, one.shortcut)), None)
    if found is None:
        return []
    if found.consumable in ("JOB", "HOST") and requested.slots.high > 1:
        whom = "every host of a job" if found.consumable == "HOST" else "a job as a whole"
        raise SpecError(
            "gpu_resource",
            f"{name} counts for {whom} here (consumable {found.consumable}), and gridtf would ask for it by slot",
            hint=f"ask for it yourself, such as --native='-l {name}=4', and for slots with --slots",
        )
    if found.consumable == "NO":
        return [
            f"resource {name} is not counted (consumable NO): Grid Engine may give the same GPUs to other jobs, too"
        ]
    return []


# --- what the job requests, the user's raw options included ------------------------------------------------------


@dataclass(frozen=True)
class Requested:
    """What a job requests in all: its request, and the user's raw options above that.

    Attributes:
        request: The request.
        pe: The parallel environment, or a pattern such as ``mpi*``; empty without one.
        slots: The slots.
        resources: Hard resources, name -> amount as qsub takes it.
        queues: Patterns of queues; empty: any.
        keys: Option of qsub, or name of a resource -> the key of the specification to blame.
    """

    request: Request
    pe: str
    slots: Slots
    resources: Mapping[str, str]
    queues: tuple[str, ...]
    keys: Mapping[str, str]

    @property
    def gpu(self) -> str:
        """The resource that stands for GPUs."""
        return str(self.request.options["gpu_resource"])

    def key(self, option: str) -> str:
        """The key to blame for this option of qsub, or this resource."""
        return self.keys.get(option, "native")

    @classmethod
    def of(cls, request: Request, spec: JobSpec) -> Requested:
        """From a request, and the specification that it was made of."""
        native, wanted = request.native, slots(request)
        own = {name.removeprefix("l "): amount for name, amount in native.items() if name.startswith("l ")}
        pe = str(request.options.get("pe") or "")
        if "pe" in native:
            pe, _, count = native["pe"].partition(" ")
            wanted = _native_slots(count, wanted.per_task)
        queues = native.get("q", request.options.get("partition") or "")
        blamed = {**_keys(spec), **dict.fromkeys([*native, *own, *(["slots"] if "pe" in native else [])], "native")}
        return cls(
            request=request,
            pe=pe,
            slots=wanted,
            resources={**resources(request, wanted), **own},
            queues=tuple(name for name in queues.split(",") if name),
            keys=blamed,
        )


def _native_slots(text: str, per_task: int) -> Slots:
    """``8``, ``4-8``, ``4-``"""
    first, dash, last = text.partition("-")
    low = _number(first, 1)
    return Slots(low, _number(last, 9_999_999 if dash and not last else low), per_task)


def _number(text: str, otherwise: int) -> int:
    number = whole(text)
    return otherwise if number is None else number


def _keys(spec: JobSpec) -> dict[str, str]:
    """The key to blame for each option that gridtf itself gives qsub."""

    def first(*names: str) -> str:
        return next((name for name in names if getattr(spec, name) is not None), "tasks")

    return {
        "pe": "pe",
        "slots": first("slots", "nodes", "tasks_per_node"),
        "q": "partition",
        "P": "account",
        "h_rt": "time",
        MEMORY: "mem" if spec.mem is not None else "mem_per_task",
        spec.gpu_resource: first("gpus_per_task", "gpus_per_node"),
    }


# --- what the cell offers, from qconf ----------------------------------------------------------------------------

_MOST = 60  # parallel environments: each is a question of its own


@dataclass(frozen=True)
class PE:
    """A parallel environment: sge_pe(5). slots: of all its jobs together. rule: ``$fill_up``, …, or the slots a host.
    users: whom it is for; empty: everybody."""

    name: str
    slots: int
    control_slaves: bool
    rule: str
    users: str = ""

    @property
    def fixed(self) -> int | None:
        """Slots that it gives on every host, where that is fixed."""
        return whole(self.rule)

    def hosts(self, slots: int) -> int:
        """The most hosts that so many slots may lie on."""
        if self.rule == "$pe_slots":
            return 1
        return -(-slots // (self.fixed or 1))


@dataclass(frozen=True)
class Queue:
    """A cluster queue: queue_conf(5). pes: the parallel environments that it carries on some host. limit: seconds, the
    longest walltime on any of its hosts; None: without end."""

    name: str
    pes: frozenset[str]
    limit: int | None


@dataclass(frozen=True)
class Resource:
    """A row of the complex: complex(5). kind: ``INT``, ``RSMAP``. consumable: ``NO``, ``YES``, ``JOB`` or ``HOST``."""

    name: str
    shortcut: str
    kind: str
    consumable: str


def known_pe(name: str) -> PE | None:
    """One parallel environment; None where it is not there or qconf may not be asked."""
    return parse_pe(_qconf("-sp", name))


def known_pes() -> list[PE]:
    """All of them."""
    return [found for name in known_names("-spl")[:_MOST] if (found := known_pe(name)) is not None]


def known_queues() -> list[Queue]:
    """All cluster queues."""
    known = known_names("-sql")
    return parse_queues(_qconf("-sq", ",".join(known))) if known else []


def known_resources() -> list[Resource]:
    """All resources that the complex has."""
    return parse_resources(_qconf("-sc"))


def known_names(option: str) -> list[str]:
    """What there is, by name: ``-spl`` parallel environments, ``-sql`` queues, ``-sprjl`` projects, ``-ss`` submit
    hosts."""
    lines = (line.strip() for line in _qconf(option).splitlines())
    return [line for line in lines if re.fullmatch(r"[\w.@+-]+", line)]  # a site's own words are more than one


def _qconf(*arguments: str) -> str:
    answer = scheduler.run(["qconf", *arguments], limit=_PATIENCE)
    return "" if answer.code else answer.out


def parse_pe(text: str) -> PE | None:
    """``pe_name rr``, ``slots 999``, ``allocation_rule $round_robin``, ``control_slaves TRUE``, … one a line."""
    said = dict(_pairs(text))
    if "pe_name" not in said:
        return None
    users = said.get("user_lists", "NONE")
    return PE(
        name=said["pe_name"],
        slots=whole(said.get("slots", "")) or 0,
        control_slaves=said.get("control_slaves", "").upper() == "TRUE",
        rule=said.get("allocation_rule", ""),
        users="" if users.upper() == "NONE" else users,
    )


def parse_queues(text: str) -> list[Queue]:
    """``qname all.q``, ``pe_list make smp,[@gpu=mpi rr]``, ``h_rt INFINITY,[n1=1:00:00]``, … queue after queue."""
    found: list[dict[str, str]] = []
    for key, value in _pairs(text):
        if key == "qname":
            found.append({})
        if found:
            found[-1][key] = value
    return [
        Queue(
            one["qname"],
            frozenset(re.split(r"[\s,]+", re.sub(r"\[[^=\]]*=|\]", " ", one.get("pe_list", "")).strip()))
            - {"NONE", ""},
            _longest(one.get("h_rt", "INFINITY")),
        )
        for one in found
    ]


def parse_resources(text: str) -> list[Resource]:
    """``gpu  gpu  INT  <=  YES  YES  0  0``: name, shortcut, type, relation, requestable, consumable, …"""
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [Resource(row[0], row[1], row[2].upper(), row[5].upper()) for row in rows if len(row) >= 7]


def _pairs(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(key, value.strip()) for key, _, value in (line.strip().partition(" ") for line in lines)]


def _longest(text: str) -> int | None:
    """The longest of a queue's values: ``0:10:0,[n1=INFINITY]``."""
    values = re.findall(r"(?:^|=)([^,\[\]=]+)", text)
    found = [seconds(value) for value in values]
    return None if None in found else max((one for one in found if one is not None), default=None)


def walltime(queue: Queue) -> str:
    """Its limit, as it is written in a job file."""
    return "no limit" if queue.limit is None else format_walltime(queue.limit)


def these(what: str, fitting: Iterable[str], known: Sequence[str]) -> str:
    """What the cell offers instead: those that fit, else what there is; empty where nobody knows it."""
    some = list(fitting)
    if some:
        return f"these {what}: {', '.join(some)}"
    return f"none does; there are: {', '.join(known)}" if known else ""


# --- why qsub refuses a job, and what the cell offers instead ----------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What there is; all empty where qconf may not be requested. suitable: the other parallel environments that
    would do. hosts: those that jobs may be submitted from."""

    pes: Sequence[PE] = ()
    suitable: Sequence[str] = ()
    queues: Sequence[Queue] = ()
    resources: Sequence[Resource] = ()
    projects: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def carrying(self, pe: str) -> list[Queue]:
        """The queues with this parallel environment, or one that the pattern stands for."""
        return [queue for queue in self.queues if any(fnmatch.fnmatchcase(name, pe) for name in queue.pes)]


def refuse(answer: Answer, requested: Requested, known: Cell) -> NoReturn:
    """Raise the SpecError, or the SchedulerError, that follows from what qsub has answered. Pure."""
    said, last = answer.err or answer.out, scheduler.message(answer)
    _refuse_names(said, requested, known)
    _refuse_queues(requested, known)
    _refuse_amounts(said, requested, known)
    if "invalid option argument" in said or "is an invalid task id" in said or "attribute" in last:
        raise SpecError("native", last, hint="see man qsub")
    if re.search(r"is (not a|no) submit host", said):
        hosts = ", ".join(known.hosts)
        raise SchedulerError(
            f"jobs cannot be submitted from here: {last}", hint=f"submit from one of: {hosts}" if hosts else ""
        )
    raise SchedulerError(f"Grid Engine would refuse this job: {last}")


def _refuse_names(said: str, requested: Requested, known: Cell) -> None:
    """What is not there at all."""
    names: tuple[tuple[str, str, str, list[str]], ...] = (
        ("parallel environment", "pe", "PE", [one.name for one in known.pes]),
        ("project", "P", "project", list(known.projects)),
    )
    for noun, option, short, there in names:
        match = re.search(rf'requested {noun} "([^"]*)" does not exist', said)
        if match:
            hint = these("do", known.suitable, ()) if option == "pe" else ""
            raise SpecError(
                requested.key(option),
                f"{short} `{match[1]}` is not there",
                why=nearest(match[1], there),
                hint=hint or these("are", there, ()) or f"ask the administrators which {short}s there are",
            )
    queue = re.search(r'requests unknown queue "([^"]*)"', said)
    if queue:
        there = [one.name for one in known.queues]
        raise SpecError(
            requested.key("q"),
            f"queue `{queue[1]}` is not there",
            why=nearest(queue[1], there),
            hint=f"these are: {', '.join(there)}" if there else "qstat -g c lists them",
        )
    resource = re.search(r'unknown resource "([^"]*)"', said)
    if resource:
        name = resource[1]
        there = [one.name for one in known.resources]
        like = [one.name for one in known.resources if re.search("gpu|cuda|nvidia", one.name, re.IGNORECASE)]
        is_gpu = name == requested.gpu and requested.key(name) != "native"
        hint = f"name it with --gpu-resource; these may be it: {', '.join(like)}" if like else ""
        raise SpecError(
            "gpu_resource" if is_gpu else requested.key(name),
            f"the cell has no resource `{name}`",
            why="" if is_gpu else nearest(name, there),
            hint=(hint or "qhost -F lists what hosts have; name yours with --gpu-resource") if is_gpu else "",
        )


def _refuse_queues(requested: Requested, known: Cell) -> None:
    """Queues that do not carry the parallel environment, or end jobs too soon."""
    chosen = [queue for queue in known.queues if _chosen(queue, requested)]
    carrying = known.carrying(requested.pe) if requested.pe else list(known.queues)
    there = [queue for queue in chosen if queue in carrying]
    if requested.pe and chosen and not there:
        named = ", ".join(requested.queues) or "any"
        what = f"no queue carries PE `{requested.pe}`"
        if carrying:
            what = f"queue {named} does not carry PE `{requested.pe}`"
        where = [f"queue {queue.name} carries it" for queue in carrying]
        hint = "; ".join([*([these("do", known.suitable, ())] if known.suitable else []), *where])
        raise SpecError(requested.key("pe"), what, hint=hint)
    wanted = seconds(requested.resources.get("h_rt", ""))
    limits = [queue.limit for queue in there if queue.limit is not None]
    if wanted is not None and there and len(limits) == len(there) and wanted > max(limits):
        longest = max(there, key=lambda queue: queue.limit or 0)
        longer = [queue for queue in carrying if queue.limit is None or queue.limit >= wanted]
        raise SpecError(
            requested.key("h_rt"),
            f"{format_walltime(wanted)} is more than queue {longest.name} allows ({walltime(longest)})",
            hint=these(
                "allow it", (f"{one.name} ({walltime(one)})" for one in longer), [one.name for one in known.queues]
            ),
        )


def _refuse_amounts(said: str, requested: Requested, known: Cell) -> None:
    """More than any host, or all together, have."""
    # cannot run at host "n4" because it offers only hc:gpu=2.000000
    offers: dict[str, float] = {}
    for name, amount in re.findall(r"offers only [a-z]{2}:([\w.]+)=(\d+(?:\.\d+)?)", said):
        offers[name] = max(offers.get(name, 0.0), float(amount))
    for name, most in offers.items():
        if name in requested.resources:
            noun = "GPUs" if name == requested.gpu else f"of resource {name}"
            each = " a slot" if requested.pe else ""
            raise SpecError(
                requested.key(name),
                f"{requested.resources[name]} {noun}{each} asked for, no host has more than {most:g}",
                hint="" if name == requested.gpu else f"qhost -F {name} shows what each has",
            )
    slots = re.search(r'cannot run in PE "([^"]*)" because it only offers (\d+) slots', said)
    if slots:
        pe = next((one for one in known.pes if one.name == slots[1]), None)
        if pe is not None and pe.users:
            raise SpecError(requested.key("pe"), f"PE `{pe.name}` is only for users in {pe.users}")
        with_gpus = (
            f" with {requested.resources[requested.gpu]} GPUs each" if requested.gpu in requested.resources else ""
        )
        one_host = ", and all on one host" if pe is not None and pe.rule == "$pe_slots" else ""
        has = f"offers {slots[2]}" if slots[2].strip("0") else "never offers so many"
        raise SpecError(
            requested.key("slots"),
            f"{requested.slots.low} slots{with_gpus}{one_host} asked for, PE `{slots[1]}` {has}",
            hint=these("do", known.suitable, ()) or "qstat -g c shows the slots of each queue",
        )


def _chosen(queue: Queue, requested: Requested) -> bool:
    """Whether the job may run in a queue; ``all.q@n1`` and ``all.q@@gpu`` name some of its hosts."""
    patterns = [name.partition("@")[0] or "*" for name in requested.queues]
    return not patterns or any(fnmatch.fnmatchcase(queue.name, pattern) for pattern in patterns)
