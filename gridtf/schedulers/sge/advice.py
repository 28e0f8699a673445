"""What Grid Engine would refuse, or leave waiting for ever, told before submission, with what the cell offers.

qsub -w v knows most of it. It does not know that gridtf starts tasks on all hosts of a job, nor who counts GPUs how.
Where qconf is not permitted (many cells let only administrative hosts ask) nothing is known, and that is no error.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.jobspec.layout import request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.client import Answer
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge import client
from gridtf.schedulers.sge.directives import MEMORY, directives, in_job
from gridtf.schedulers.sge.query import seconds

_PATIENCE = 20.0  # seconds, for a question to the qmaster
# Without looking at the load, -w v does not know resources whose amount is a matter of load, such as mem_free.
_LOAD = re.compile(r"job requests unknown resource \(([\w.]+)\)")


def check(plan: Plan) -> tuple[str, ...]:
    """Ask Grid Engine about a job without submitting it. Gives notes: what will make it wait, or is doubtful.

    Its script is where the plan says. Raises SpecError, with the key to blame, for what the cell does not have,
    SchedulerError when the qmaster does not answer or refuses for another reason.
    """
    asked = asked_for(directives(plan), plan.spec)
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
        if asked.pe:
            notes += check_pes(_matching(asked.pe), asked, plan.spec)
        if asked.key(plan.spec.gpu_resource) != "native" and plan.spec.gpu_resource in asked.resources:
            notes += check_counting(known_resources(), asked, plan.spec)
    except SpecError as error:
        raise _with_alternatives(error, asked, plan.spec, script) from None
    if answer.code:
        refuse(_without_verdict(answer), asked, plan.spec.gpu_resource, _cell(asked, plan.spec, script))
    return tuple(notes)


def _verify(how: str, script: str, *options: str) -> Answer:
    """options: instead of those in the script's head."""
    return client.query(["qsub", "-w", how, *options, script], limit=_PATIENCE)


def _of_load(answer: Answer) -> str:
    """The reason that has to do with load: ``… because it offers only hl:mem_free=22.594G``."""
    reasons = _without_verdict(answer)
    line = next((line for line in reasons.err.splitlines() if " hl:" in line), client.complaint(reasons))
    return re.sub(r"^(Unable to run job: )?Job \d+ ", "", line)


def _without_verdict(answer: Answer) -> Answer:
    """Its last word is then a reason."""
    said = answer.err or answer.out
    lines = [line for line in said.splitlines() if not line.startswith(("verification:", "Exiting."))]
    return Answer(answer.code, "", "\n".join(lines))


def _matching(pattern: str) -> list[PE]:
    if not re.search(r"[*?\[|!&]", pattern):
        found = known_pe(pattern)
        return [] if found is None else [found]
    return [one for one in known_pes() if fnmatch.fnmatchcase(one.name, pattern)]


def _cell(asked: Asked, spec: JobSpec, script: str) -> Cell:
    pes = known_pes()
    return Cell(
        pes=pes,
        suitable=_suitable(pes, asked, spec, script) if asked.pe else (),
        queues=known_queues(),
        resources=known_resources(),
        projects=known_names("-sprjl"),
        hosts=known_names("-ss"),
    )


def _suitable(pes: Sequence[PE], asked: Asked, spec: JobSpec, script: str) -> list[str]:
    """Those that the same job could run in, as far as they and qsub say."""
    slots = f"{asked.low}" if asked.low == asked.high else f"{asked.low}-{asked.high}"
    found = []
    for one in pes:
        if pe_problem(one, asked, spec) is None and one.name != asked.pe:
            answer = _verify("v", script, "-pe", one.name, slots)
            if not answer.code or _LOAD.search(answer.err + answer.out):
                found.append(one.name)
    return found


def _with_alternatives(error: SpecError, asked: Asked, spec: JobSpec, script: str) -> SpecError:
    """The same error, with the parallel environments that would do."""
    if error.key != asked.key("pe"):
        return error
    pes = known_pes()
    hint = these("do", _suitable(pes, asked, spec, script), [one.name for one in pes])
    return SpecError(error.key, error.problem, why=error.why, hint=hint or error.hint)


def naming_pes(error: SpecError, plan: Plan) -> SpecError:
    """The same error, that several slots need a parallel environment, with those that would do as far as they say."""
    spec = dataclasses.replace(plan.spec, pe="any")
    asked = asked_for(directives(dataclasses.replace(plan, spec=spec)), spec)
    try:
        pes = known_pes()
    except SchedulerError:
        return error
    hint = these("may do", [one.name for one in pes if pe_problem(one, asked, spec) is None], [one.name for one in pes])
    return SpecError(error.key, error.problem, why=error.why, hint=f"name one with --pe; {hint}") if hint else error


# --- what qsub does not know -----------------------------------------------------------------------------------


def check_pes(matching: Sequence[PE], asked: Asked, spec: JobSpec) -> list[str]:
    """Notes. Raises SpecError when no parallel environment that the job may get can ever do. Pure."""
    problems = {one.name: error for one in matching if (error := pe_problem(one, asked, spec)) is not None}
    if problems and len(problems) == len(matching):
        raise next(iter(problems.values()))
    if problems:
        return [
            f"Grid Engine may choose a parallel environment that will not do: {next(iter(problems.values())).problem}"
        ]
    return []


def pe_problem(one: PE, asked: Asked, spec: JobSpec) -> SpecError | None:
    """Why a parallel environment can never give what the job asks for: sge_pe(5). Pure."""
    key = asked.key("pe")
    if asked.low > one.slots:
        return SpecError(key, f"PE `{one.name}` has {one.slots} slots in all, {asked.low} are asked for")
    if not one.control_slaves and one.hosts(asked.high) > 1:
        return SpecError(key, f"PE `{one.name}` does not let gridtf start tasks on other hosts (control_slaves FALSE)")
    low, high = spec.node_range or (1, one.hosts(asked.high))
    if one.rule == "$pe_slots" and low > 1:
        return SpecError(
            key, f"PE `{one.name}` gives a job slots of one host only (allocation_rule $pe_slots), not of {low}"
        )
    if one.fixed is None:
        return None
    counts = range(-(-asked.low // one.fixed), asked.high // one.fixed + 1)  # hosts
    if not counts:
        slots = f"{asked.low}" if asked.low == asked.high else f"{asked.low}-{asked.high}"
        return SpecError(
            key, f"PE `{one.name}` gives {one.fixed} slots on every host (allocation_rule): {slots} is no multiple"
        )
    if counts[0] > high or counts[-1] < low:
        return SpecError(
            key,
            f"PE `{one.name}` gives {one.fixed} slots a host: {asked.low} slots are {counts[0]} hosts, not {low}",
        )
    need = request(spec).tasks_per_node * in_job(spec).per_task
    if spec.tasks_per_node is not None and need > one.fixed:
        return SpecError(
            key,
            f"PE `{one.name}` gives {one.fixed} slots on every host, {spec.tasks_per_node} tasks a host need {need}",
        )
    return None


def check_counting(known: Sequence[Resource], asked: Asked, spec: JobSpec) -> list[str]:
    """Notes on the resource that stands for GPUs. Raises SpecError when it does not count as gridtf asks. Pure."""
    name = spec.gpu_resource
    found = next((one for one in known if name in (one.name, one.shortcut)), None)
    if found is None:
        return []
    if found.consumable in ("JOB", "HOST") and asked.high > 1:
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


# --- what a script asks of Grid Engine, read back from its head --------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """pe: its name, or a pattern such as ``mpi*``; empty without one. low, high: slots. resources: hard requests,
    name -> amount as it is written. queues: patterns; empty: any. keys: option, or name of a resource -> the key of
    the specification to blame."""

    pe: str = ""
    low: int = 1
    high: int = 1
    resources: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)

    def key(self, option: str) -> str:
        """The key to blame for this option of qsub, or this resource."""
        return self.keys.get(option, "native")


def asked_for(lines: Iterable[str], spec: JobSpec) -> Asked:
    """lines: the options in the script's head. Of an option given twice qsub takes the last, of ``-l`` all."""
    gpus = next((key for key in ("gpus_per_task", "gpus_per_node") if getattr(spec, key) is not None), "tasks")
    counts = ("slots", "nodes", "tasks_per_node")
    keys = {
        "pe": "pe",
        "slots": next((key for key in counts if getattr(spec, key) is not None), "tasks"),
        "q": "partition",
        "P": "account",
        "h_rt": "time",
        MEMORY: "mem" if spec.mem is not None else "mem_per_task",
        spec.gpu_resource: gpus,
    }
    options, resources = _options(lines)
    own, own_resources = _options(spec.native)
    keys.update(dict.fromkeys([*own, *own_resources, *(["slots"] if "pe" in own else [])], "native"))
    pe, _, slots = options.get("pe", "").partition(" ")
    low, _, high = slots.partition("-")
    return Asked(
        pe=pe,
        low=_number(low, 1),
        high=_number(high, 9_999_999 if slots.endswith("-") else _number(low, 1)),
        resources=resources,
        queues=tuple(name for name in options.get("q", "").split(",") if name),
        keys=keys,
    )


def _options(lines: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(option -> value, hard resource -> amount). ``-pe`` has two words; ``-soft`` holds until ``-hard``."""
    options: dict[str, str] = {}
    resources: dict[str, str] = {}
    soft = False
    words = iter([word for line in lines for word in line.split()])
    for word in words:
        name = word.removeprefix("-")
        if name in ("hard", "soft"):
            soft = name == "soft"
        elif name == "pe" and word != name:
            options["pe"] = f"{next(words, '')} {next(words, '')}".strip()
        elif name == "l" and word != name:
            pairs = (part.partition("=") for part in next(words, "").split(","))
            if not soft:
                resources.update({resource: amount or "1" for resource, _, amount in pairs if resource})
        elif name in ("q", "P") and word != name and not soft:
            options[name] = next(words, "")
    return options, resources


def _number(text: str, otherwise: int) -> int:
    number = whole(text)
    return otherwise if number is None else number


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
    answer = client.query(["qconf", *arguments], limit=_PATIENCE)
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
    """What there is; all empty where qconf may not be asked. suitable: the other parallel environments that
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


def refuse(answer: Answer, asked: Asked, gpus: str, known: Cell) -> NoReturn:
    """Raise the SpecError, or the SchedulerError, that follows from what qsub has answered.

    gpus: the resource that stands for GPUs.
    """
    said, last = answer.err or answer.out, client.complaint(answer)
    _refuse_names(said, asked, gpus, known)
    _refuse_queues(asked, known)
    _refuse_amounts(said, asked, gpus, known)
    if "invalid option argument" in said or "is an invalid task id" in said or "attribute" in last:
        raise SpecError("native", last, hint="see man qsub")
    if re.search(r"is (not a|no) submit host", said):
        hosts = ", ".join(known.hosts)
        raise SchedulerError(
            f"jobs cannot be submitted from here: {last}", hint=f"submit from one of: {hosts}" if hosts else ""
        )
    raise SchedulerError(f"Grid Engine would refuse this job: {last}")


def _refuse_names(said: str, asked: Asked, gpus: str, known: Cell) -> None:
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
                asked.key(option),
                f"{short} `{match[1]}` is not there",
                why=nearest(match[1], there),
                hint=hint or these("are", there, ()) or f"ask the administrators which {short}s there are",
            )
    queue = re.search(r'requests unknown queue "([^"]*)"', said)
    if queue:
        there = [one.name for one in known.queues]
        raise SpecError(
            asked.key("q"),
            f"queue `{queue[1]}` is not there",
            why=nearest(queue[1], there),
            hint=f"these are: {', '.join(there)}" if there else "qstat -g c lists them",
        )
    resource = re.search(r'unknown resource "([^"]*)"', said)
    if resource:
        name = resource[1]
        there = [one.name for one in known.resources]
        like = [one.name for one in known.resources if re.search("gpu|cuda|nvidia", one.name, re.IGNORECASE)]
        is_gpu = name == gpus and asked.key(name) != "native"
        hint = f"name it with --gpu-resource; these may be it: {', '.join(like)}" if like else ""
        raise SpecError(
            "gpu_resource" if is_gpu else asked.key(name),
            f"the cell has no resource `{name}`",
            why="" if is_gpu else nearest(name, there),
            hint=(hint or "qhost -F lists what hosts have; name yours with --gpu-resource") if is_gpu else "",
        )


def _refuse_queues(asked: Asked, known: Cell) -> None:
    """Queues that do not carry the parallel environment, or end jobs too soon."""
    chosen = [queue for queue in known.queues if _chosen(queue, asked)]
    carrying = known.carrying(asked.pe) if asked.pe else list(known.queues)
    there = [queue for queue in chosen if queue in carrying]
    if asked.pe and chosen and not there:
        named = ", ".join(asked.queues) or "any"
        what = f"no queue carries PE `{asked.pe}`"
        if carrying:
            what = f"queue {named} does not carry PE `{asked.pe}`"
        where = [f"queue {queue.name} carries it" for queue in carrying]
        hint = "; ".join([*([these("do", known.suitable, ())] if known.suitable else []), *where])
        raise SpecError(asked.key("pe"), what, hint=hint)
    wanted = seconds(asked.resources.get("h_rt", ""))
    limits = [queue.limit for queue in there if queue.limit is not None]
    if wanted is not None and there and len(limits) == len(there) and wanted > max(limits):
        longest = max(there, key=lambda queue: queue.limit or 0)
        longer = [queue for queue in carrying if queue.limit is None or queue.limit >= wanted]
        raise SpecError(
            asked.key("h_rt"),
            f"{format_walltime(wanted)} is more than queue {longest.name} allows ({walltime(longest)})",
            hint=these(
                "allow it", (f"{one.name} ({walltime(one)})" for one in longer), [one.name for one in known.queues]
            ),
        )


def _refuse_amounts(said: str, asked: Asked, gpus: str, known: Cell) -> None:
    """More than any host, or all together, have."""
    # cannot run at host "n4" because it offers only hc:gpu=2.000000
    offers: dict[str, float] = {}
    for name, amount in re.findall(r"offers only [a-z]{2}:([\w.]+)=(\d+(?:\.\d+)?)", said):
        offers[name] = max(offers.get(name, 0.0), float(amount))
    for name, most in offers.items():
        if name in asked.resources:
            noun = "GPUs" if name == gpus else f"of resource {name}"
            each = " a slot" if asked.pe else ""
            raise SpecError(
                asked.key(name),
                f"{asked.resources[name]} {noun}{each} asked for, no host has more than {most:g}",
                hint="" if name == gpus else f"qhost -F {name} shows what each has",
            )
    slots = re.search(r'cannot run in PE "([^"]*)" because it only offers (\d+) slots', said)
    if slots:
        pe = next((one for one in known.pes if one.name == slots[1]), None)
        if pe is not None and pe.users:
            raise SpecError(asked.key("pe"), f"PE `{pe.name}` is only for users in {pe.users}")
        with_gpus = f" with {asked.resources[gpus]} GPUs each" if gpus in asked.resources else ""
        one_host = ", and all on one host" if pe is not None and pe.rule == "$pe_slots" else ""
        has = f"offers {slots[2]}" if slots[2].strip("0") else "never offers so many"
        raise SpecError(
            asked.key("slots"),
            f"{asked.low} slots{with_gpus}{one_host} asked for, PE `{slots[1]}` {has}",
            hint=these("do", known.suitable, ()) or "qstat -g c shows the slots of each queue",
        )


def _chosen(queue: Queue, asked: Asked) -> bool:
    """Whether the job may run in a queue; ``all.q@n1`` and ``all.q@@gpu`` name some of its hosts."""
    patterns = [name.partition("@")[0] or "*" for name in asked.queues]
    return not patterns or any(fnmatch.fnmatchcase(queue.name, pattern) for pattern in patterns)
