"""What Grid Engine would refuse, or never start: reported before submission, with what the cell offers instead.

qsub -w v knows most of it. It does not know that gridtf starts tasks on all hosts of a job, nor how sites count GPUs.
Where qconf is refused (many cells answer it on administrative hosts only) the cell is unknown, and that is no error.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from gridtf.errors import GridtfError, SchedulerError, SpecError, nearest
from gridtf.findings import FIRST_TIME
from gridtf.host.names import same_host
from gridtf.jobspec.merging import located
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import too_many
from gridtf.jobspec.units import format_walltime
from gridtf.schedulers.api import Estimate, Plan
from gridtf.schedulers.commands import Answer, NoAnswerError
from gridtf.schedulers.sge import directives, offers
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import HOST, HOST_LISTS, MEMORY, Resource, requests_gpus
from gridtf.schedulers.sge.offers import PE, QUERY_LIMIT, Cell, Queue, alternatives, carrying, matching_queues
from gridtf.schedulers.sge.query import DECIMAL, FIXED, decisive, seconds, size
from gridtf.schedulers.sge.requested import Requested
from gridtf.text import counted, some, toml, whole

# -w v ignores the load of hosts, and so does not know resources that load sensors report, such as mem_free. For a job
# in a parallel environment it does not even say so (seen on Son of Grid Engine 8.1.9).
_LOAD = re.compile(r"job requests unknown resource \(([\w.]+)\)")
_NO_SLOTS = re.compile(r'cannot run in PE "[^"]*" because it only offers 0 slots')
_NO_LOAD = ("h_rt", "s_rt", HOST)  # resources of queues and hosts that do not depend on it
# -w v heeds which hosts are in exclusive use now, complex(5), though not which slots are (Son of Grid Engine 8.1.9).
_IN_USE = re.compile(r"exclusive resource \(([\w.]+)\) is already in use")
_LATER = ("a", "h", "hold_jid", "hold_jid_ad")  # options that -w p does not heed: when the job may start
_MOST_TRIED_PES = 2  # other parallel environments, each of which costs a job id


def check(plan: Plan, *, limit: float = QUERY_LIMIT) -> tuple[str, ...]:
    """Ask Grid Engine about a job without submitting it (qsub -w v).

    Args:
        plan: The submission, with what its site has told about GPUs.
        limit: Seconds that each qsub may take.

    Returns:
        Notes for the user, one line each: why the job will wait, or may not run as requested.

    Raises:
        SpecError: With the key to blame, for what the cell does not have.
        SchedulerError: When the qmaster does not answer, or refuses the job for another reason.
    """
    requested = Requested.of(plan)
    notes = not_array(plan.spec) + _checked(plan, requested, partial(_cell, requested, plan.script), limit)
    return (*notes, *closed_queues(requested, _unusable_queues()))


def _checked(
    plan: Plan, requested: Requested, cell: Callable[[], Cell], limit: float, now: Answer | None = None
) -> list[str]:
    """As check, less the notes for the submission alone. cell: What errors name; now: As for _verified."""
    notes = [*check_array(plan.request)] if plan.request.at_once else []
    if lists := {key: hosts for key in HOST_LISTS if (hosts := plan.request.options.get(key))}:
        check_hosts(lists, existing := offers.known_names("-sel"))
        check_left(plan.request, existing)
    answer, never, waits = _verified(plan, requested, limit, now)
    notes += waits
    # qconf runs only where its output is needed
    try:
        if requested.pe:
            notes += check_pes(_matching(requested.pe), requested)
        if requested.counting:
            notes += check_counting(requested.counting, requested)
            _check_host(requested, limit)
    except SpecError as error:
        if error.key == requested.key("pe"):
            found = cell()
            others = alternatives("suitable PEs", found.suitable, _names(found.pes))
            error.hint = "; ".join(filter(None, (error.hint, others)))
        raise
    if answer.code:
        try:
            if never:
                raise never
            refuse(without_verdict(answer), requested, cell())
        except GridtfError as error:  # the cell's JSV does not see what is only verified
            if "no suitable queues" not in answer.text or not _has_jsv():
                raise
            notes.append(f"{error.what}; it is submitted, since a JSV of the site may change its request")
    return notes


def _verified(
    plan: Plan, requested: Requested, limit: float, now: Answer | None
) -> tuple[Answer, SpecError | None, list[str]]:
    """The answer of qsub that decides; why a refused job can never start, where that is known; why it has to wait.

    Args:
        now: The answer of ``qsub -w p``, where that has been asked: what can start now can start.
    """
    answer = now if now and not now.code else _verify("v", plan.script, limit=limit)
    if in_use := _IN_USE.search(answer.text):
        why = f"the job may have to wait: other jobs have hosts for themselves (resource {in_use[1]})"
        return Answer(0, "", ""), None, [why]
    if not answer.code or not without_load(answer, requested):
        return answer, None, []
    answer = now or _verify("p", plan.script, limit=limit)
    never = beyond_hosts(answer, requested, limit)
    if not answer.code or never or re.search(FIXED, reason(answer)):
        return answer, never, []
    why = f"no host currently has what the job requests: {reason(answer)}"
    return _without_memory(plan, requested, limit), None, [why]


def foreseen(plan: Plan, queues: Sequence[Queue]) -> Estimate | None:
    """What the cell's queues say of a job's start; None: Grid Engine has to be asked."""
    named = plan.request.options.get("nodelist") or ()
    requested = Requested.of(plan)
    try:
        check_left(plan.request, () if {*"*?"} & {*"".join(named)} else named)
        _refuse_queues(requested, Cell(queues=queues))
    except SpecError as error:
        if error.key == requested.key("pe") and not carrying(queues, requested.pe):
            return None  # it may not exist, as qsub will say
        return Estimate(why=error.problem, never=True)
    return None


def estimate(plan: Plan, queues: Sequence[Queue]) -> Estimate:
    """Ask Grid Engine whether a job could start now, and ever, as check does; it does not tell of any later time.

    Raises:
        SpecError: For a parallel environment, or a project, that does not exist: it is wrong in any queue.
        SchedulerError: When the qmaster does not answer.
    """
    now, requested = _verify("p", plan.script), Requested.of(plan)
    why = reason(now) if now.code else ""
    try:
        if re.search(r"(environment|project) \S+ does not exist", why):
            _refuse_names(why, requested, _cell(requested, plan.script))
    except SpecError as error:
        raise located(error, plan.sources) from None
    try:  # what errors name is not shown, and so not asked for
        _checked(plan, requested, lambda: Cell(pes=_matching(requested.pe), queues=queues), QUERY_LIMIT, now)
    except NoAnswerError:
        raise
    except GridtfError as error:
        return Estimate(why=error.problem if isinstance(error, SpecError) else error.what, never=True)
    if not now.code:
        native = plan.request.native
        waits = [f"-{option} {native[option]}".strip() for option in _LATER if option in native]
        return Estimate(why=f"not before {' '.join(waits)} allows it") if waits else Estimate(time.time())
    shown = sge.run(["qstat", "-g", "c"], limit=QUERY_LIMIT).out
    usable, free = offers.parse_usable(shown), offers.parse_free(shown)
    if closed := closed_queues(requested, [(queue, usable.get(queue.name, True)) for queue in queues]):
        return Estimate(why=closed[0])
    own = carrying(matching_queues(queues, requested.queues), requested.pe)
    slots = some(["{} of {} in {}".format(*free[queue.name], queue.name) for queue in own if queue.name in free])
    return Estimate(why=f"not now ({why})" + (f"; free slots: {slots}" if slots else ""))


def room(plan: Plan) -> tuple[dict[str, int], int]:
    """The hosts that may run a job, as Login.room, in slots; none where raw options choose them, or GPUs decide it."""
    requested, request = Requested.of(plan), plan.request
    chosen = requests_gpus(request) and request.chosen("nodes") is None
    if chosen or directives.native_has(request, HOST) or directives.native_has(request, "hostname"):
        return {}, 0
    need, pe = requested.slots.low, offers.known_pe(requested.pe) if requested.pe else None
    # the slots of a host that the job can use, and those that it needs of each
    most = (pe and pe.fixed) or -(-need // max(request.nodes[0], 1))
    least = need if pe and pe.rule == "$pe_slots" else 1
    amounts = ",".join(f"{name}={amount}" for name, amount in requested.resources.items() if name != HOST)
    options = {"-q": ",".join(requested.queues), "-pe": requested.pe, "-l": amounts}
    given = [word for option, value in options.items() if value for word in (option, value)]
    slots = offers.parse_slots(sge.printed(["qstat", "-f", "-xml", *given], limit=QUERY_LIMIT))
    excluded = {host for name in request.options.get("exclude", ()) for host in fnmatch.filter(slots, name)}
    return {host: min(slots[host], most) * (slots[host] >= least) for host in slots.keys() - excluded}, need


def _verify(how: str, script: str, *options: str, limit: float = QUERY_LIMIT) -> Answer:
    """qsub -w HOW; options override those in the script's head."""
    return sge.run(["qsub", "-w", how, *options], limit=limit, text=script)


def without_load(answer: Answer, requested: Requested) -> bool:
    """Whether ``qsub -w v`` may have refused a job only since it leaves out what hosts report as their load. Pure."""
    others = requested.resources.keys() - {*_NO_LOAD, requested.gpu, requested.site.fixed}
    return bool(_LOAD.search(answer.text) or (others and _NO_SLOTS.search(answer.text)))


def _without_memory(plan: Plan, requested: Requested, limit: float) -> Answer:
    """What ``qsub -w v`` says of the job without its memory; no refusal where it cannot say more."""
    if plan.spec.native or MEMORY not in requested.resources:  # raw options may need the quotes of the script
        return Answer(0, "", "")
    lines = (line for line in plan.scheduler.login.directives(plan) if not line.startswith(f"-l {MEMORY}="))
    answer = sge.run(["qsub", "-w", "v", *" ".join(lines).split(), "-b", "y", "true"], limit=limit)
    return Answer(0, "", "") if _LOAD.search(answer.text) else answer


def _has_jsv() -> bool:
    """Whether the qmaster has jobs verified, and changed, by a JSV: jsv(1). False where qconf is refused."""
    return dict(offers.pairs(offers.qconf("-sconf"))).get("jsv_url", "none").lower() != "none"


def _check_host(requested: Requested, limit: float) -> None:
    """Check that a host has as many GPUs as the job is to have on each. Where they count per slot, Grid Engine only
    knows those of a slot, and spreads the slots over more hosts.

    Raises:
        SpecError: No host has them.
    """
    per_host = requested.request.chosen("gpus_per_node") or 0
    if per_host < 2 or not requested.pe or not requested.counts("YES"):
        return
    if most := _less_on_each_host(requested.gpu, str(per_host), requested, limit):
        what = f"{per_host} GPUs per host requested, no host has more than {most}"
        raise SpecError("gpus_per_node", what, hint=requested.gpu_hint)


def beyond_hosts(answer: Answer, requested: Requested, limit: float = QUERY_LIMIT) -> SpecError | None:
    """Why a job that ``qsub -w p`` refuses can never start: a slot of it needs more of a resource than any host has.

    Args:
        answer: Of ``qsub -w p``, which says what hosts offer now.
        limit: Seconds that each further qsub may take.

    Returns:
        The error, which is not raised; None where a host has as much when it is free, or it is not known.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    for name in offered(answer.text).keys() & requested.resources.keys() if answer.code else ():
        if most := _less_on_each_host(name, requested.resources[name], requested, limit):
            return _too_much(name, most, requested)
    return None


def _less_on_each_host(name: str, amount: str, requested: Requested, limit: float) -> str:
    """The most that a host has of a resource when no job uses it; empty where that is enough, or not known."""
    queues = ["-q", ",".join(requested.queues)] if requested.queues else []
    answer = sge.run(["qsub", "-w", "v", "-l", f"{name}={amount}", *queues, "-b", "y", "true"], limit=limit)
    if not answer.code or _IN_USE.search(answer.text):
        return ""
    most = offered(answer.text).get(name, "")
    if _LOAD.search(answer.text) and name.endswith("_free"):  # hosts report what they have of it in all as well
        total = name.replace("_free", "_total")
        shown = sge.run(["qhost", "-F", total], limit=limit).out
        most = max(re.findall(rf"\bh[a-z]:{re.escape(total)}=(\S+)", shown), key=size, default="")
    return most if size(most) < size(amount) else ""


def offered(output: str) -> dict[str, str]:
    """The most that any host has of resources, by name, where qsub's reasons tell it. Pure.

    ``cannot run at host "n4" because it offers only hc:gpu=2.000000`` -> ``2``, ``hc:h_vmem=8.000G`` -> ``8G``
    """
    offers: dict[str, str] = {}
    for name, number, unit in re.findall(rf"offers only [a-z]{{2}}:([\w.]+)=({DECIMAL})([kKmMgGT]?)", output):
        offers[name] = max(offers.get(name, ""), f"{float(number):g}{unit}", key=size)
    return offers


def _unusable_queues() -> list[tuple[Queue, bool]]:
    """All queues, each with whether jobs can start there; empty where they can in every queue, or qconf is refused."""
    with contextlib.suppress(SchedulerError):  # a note is not worth more
        usable = offers.parse_usable(sge.run(["qstat", "-g", "c"], limit=QUERY_LIMIT).out)
        if not all(usable.values()):
            return [(queue, usable.get(queue.name, True)) for queue in offers.known_queues()]
    return []


def reason(answer: Answer) -> str:
    """Why qsub refuses a job, without the number of the job, which does not exist. Pure.

    Such as ``(-l gpu_type=k80) cannot run at host "n1" because it offers only hf:gpu_type=A100``, where no host has it.
    """
    lines = [re.sub(r"^(Unable to run job: )?(Job \d+ )?", "", one) for one in without_verdict(answer).err.splitlines()]
    return decisive([line for line in lines if "cannot run" in line]) or sge.message(Answer(1, "", "\n".join(lines)))


def without_verdict(answer: Answer) -> Answer:
    """The answer less the lines that sum it up, so that its last line is a reason."""
    lines = (answer.err or answer.out).splitlines()
    reasons = [line for line in lines if not line.startswith(("verification:", "Exiting."))]
    return Answer(answer.code, "", "\n".join(reasons))


def _matching(pattern: str) -> list[PE]:
    if re.search(r"[*?\[|!&]", pattern):
        return [pe for pe in offers.known_pes() if fnmatch.fnmatchcase(pe.name, pattern)]
    pe = offers.known_pe(pattern)
    return [pe] if pe else []


def _cell(requested: Requested, script: str) -> Cell:
    cell = offers.known_cell()
    return cell.replace(suitable=_suitable(cell.pes, requested, script)) if requested.pe else cell


def _suitable(pes: Sequence[PE], requested: Requested, script: str) -> list[str]:
    """The other parallel environments that the job could run in, by their settings and by qsub -w v."""
    suitable = []
    likely = [pe for pe in _likely(pes, requested) if pe.name != requested.pe]
    meant = _meant(requested.pe, likely)
    for pe in sorted(likely, key=lambda pe: pe not in meant)[:_MOST_TRIED_PES]:
        answer = _verify("v", script, "-pe", pe.name, str(requested.slots))
        if not answer.code or _LOAD.search(answer.text) or _IN_USE.search(answer.text):
            suitable.append(pe.name)
    return suitable


def _likely(pes: Sequence[PE], requested: Requested) -> list[PE]:
    """The parallel environments whose settings suit the job, the best ones first."""
    chosen = matching_queues(offers.known_queues(), requested.queues)
    offered = [pe for pe in pes if not chosen or carrying(chosen, pe.name)]
    suited = [pe for pe in offered if not (pe_problem(pe, requested) or _fills(pe, requested))]
    on_one = requested.request.chosen("nodes") == (1, 1)
    return sorted(suited, key=lambda pe: (on_one and pe.rule != "$pe_slots", pe.rank))


def _meant(name: str, pes: Sequence[PE]) -> list[PE]:
    """The parallel environments whose names are like this one."""
    words = nearest(name, _names(pes)).rstrip("?").split()
    return [pe for pe in pes if pe.name in words]


def _names(listed: Iterable[PE | Queue]) -> list[str]:
    return [one.name for one in listed]


def name_pes(error: SpecError, plan: Plan) -> None:
    """Complete the hint of an error that --pe is missing: name the parallel environments whose settings suit the job.

    Args:
        error: Changed in place, unless qconf names none.
    """
    requested = Requested.of(plan, lines=())
    with contextlib.suppress(SchedulerError):
        pes = offers.known_pes()
        if hint := alternatives("possibly suitable", _names(_likely(pes, requested)), _names(pes)):
            error.hint = f"name one with --pe; {hint}"


# --- what qsub does not know -----------------------------------------------------------------------------------


def check_array(request: Request) -> tuple[str, ...]:
    """Check a sweep against the limits on job arrays in sge_conf(5), where qconf shows them.

    Returns:
        A note where fewer elements run at once than is requested.

    Raises:
        SpecError: For too many elements.
    """
    limits = dict(offers.pairs(offers.qconf("-sconf")))
    most, running = (whole(limits.get(name, "")) for name in ("max_aj_tasks", "max_aj_instances"))
    if most and len(request.elements) > most:
        raise too_many(len(request.elements), most, f"max_aj_tasks of this Grid Engine is {most}")
    if running and running < (request.at_once or 0):
        return (f"Grid Engine runs at most {running} elements of an array at once (max_aj_instances)",)
    return ()


def not_array(spec: JobSpec) -> list[str]:
    """A note on a walltime that has the form of array tasks: qsub(1), -t. Pure."""
    time = str(spec.time)
    if not re.fullmatch(r"(?a)\d+-\d+(:\d+)?", time):
        return []
    meant = format_walltime(spec.walltime or 0)
    return [f"time: {time} is the walltime {meant}; array tasks, as of qsub -t, are written --native='-t {time}'"]


def check_pes(matching: Sequence[PE], requested: Requested) -> list[str]:
    """Check the parallel environments that Grid Engine may choose for a job. Pure.

    Returns:
        Notes for the user.

    Raises:
        SpecError: When none of them can ever run the job.
    """
    problems = [problem for pe in matching if (problem := pe_problem(pe, requested))]
    if problems and len(problems) == len(matching):
        raise SpecError(requested.key("pe"), problems[0], hint=_other_slots(matching[0], requested))
    notes = [f"Grid Engine may choose an unsuitable parallel environment: {problem}" for problem in problems[:1]]
    filling = next((pe for pe in matching if _fills(pe, requested)), None)
    if filling:
        notes.append(
            f"PE `{filling.name}` fills a host before it takes the next (allocation_rule $fill_up), so the tasks may "
            "run on fewer hosts than requested: $round_robin, or a number of slots per host, spreads them"
        )
    dividing = next((pe for pe in matching if not pe.fixed and pe.rule != "$pe_slots"), None)
    if dividing and requested.counts("YES") and requested.slots.per_task > 1:
        notes.append(
            f"PE `{dividing.name}` may divide the {requested.slots.per_task} slots of a task among hosts "
            f"(allocation_rule {dividing.rule}), and then no host has the task's GPUs: $pe_slots, or a number of slots "
            "per host, does not"
        )
    return notes


def _fills(pe: PE, requested: Requested) -> bool:
    """Whether a parallel environment fills hosts one after the other, though the job needs several hosts."""
    hosts, per_host = requested.request.chosen("nodes") or (1, 1), requested.request.chosen("tasks_per_node")
    return pe.rule == "$fill_up" and bool(hosts[0] > 1 or (per_host and (requested.request.training or 0) > per_host))


def closed_queues(requested: Requested, queues: Sequence[tuple[Queue, bool]]) -> list[str]:
    """A note where a job will wait, since no queue that it may start in can start jobs now. Pure.

    Args:
        requested: What the job requests.
        queues: The queues of the cell, each with whether jobs can start there.
    """
    of_job = carrying(matching_queues((queue for queue, _ in queues), requested.queues), requested.pe)
    closed = [queue.name for queue, usable in queues if not usable]
    if not of_job or any(queue.name not in closed for queue in of_job):
        return []
    names = some([queue.name for queue in of_job])
    return [f"the job waits until one of its queues can start jobs, all are disabled or in error: {names}"]


def check_hosts(lists: Mapping[str, Sequence[str]], existing: Sequence[str]) -> None:
    """Check that the hosts exist that a job must, or must not, use: Grid Engine ignores other names. Pure.

    Args:
        lists: The key that names them -> names of hosts, or patterns such as ``n3?``.
        existing: The execution hosts; empty when qconf is refused.

    Raises:
        SpecError: For a name that fits none of them.
    """
    for key, name in ((key, name) for key, names in lists.items() for name in names):
        if existing and not any(fnmatch.fnmatchcase(host.lower(), name.lower()) for host in existing):
            likely = next((f"did you mean {host}?" for host in existing if same_host(host, name)), "")
            hint = likely or nearest(name, list(existing)) or f"there are: {some([*existing])}"
            raise SpecError(key, f"there is no host {name}", hint=hint)


def check_left(request: Request, hosts: Sequence[str]) -> None:
    """Check that nodelist and exclude leave as many hosts as the job needs. Pure.

    Args:
        hosts: The execution hosts, or those of nodelist; empty where they are not known.

    Raises:
        SpecError: For fewer.
    """
    among, without = (request.options.get(key) or () for key in HOST_LISTS)
    listed, excluded = ([host for name in names for host in fnmatch.filter(hosts, name)] for names in (among, without))
    left = sorted({*(listed if among else hosts)} - {*excluded})
    need = request.allocated_nodes[0] if request.chosen("nodes") else 0
    if hosts and len(left) < need:
        keys = [key for key in HOST_LISTS if request.options.get(key)]
        verb = "leave" if keys[1:] else "leaves"
        what = f"the job needs {counted(need, 'host')}, and {' and '.join(keys)} {verb} {len(left)}"
        raise SpecError(keys[0], what, hint=f"it can have {some(left)}" if left else "")


def pe_problem(pe: PE, requested: Requested) -> str:
    """Why a parallel environment can never allocate what a job requests: sge_pe(5). Pure.

    Returns:
        One line that begins with its name; empty when its settings suit the job.
    """
    request, wanted = requested.request, requested.slots
    spread = pe.hosts(wanted.high) > 1
    open_per_host = not any(request.chosen(key) for key in ("nodes", "gpus_per_node", "tasks_per_node"))
    low, high = request.allocated_nodes if request.chosen("nodes") else (1, pe.hosts(wanted.high))
    gpus = f"{requested.gpu} counts per"
    problems = (
        (wanted.low > pe.slots, f"has {counted(pe.slots, 'slot')} in total, the job needs {wanted.low}"),
        (spread and not pe.control_slaves, "does not let gridtf start tasks on other hosts (control_slaves FALSE)"),
        (
            spread and requested.counts("JOB"),
            f"may use several hosts, but {gpus} job (consumable JOB): on the first host only",
        ),
        (
            spread and open_per_host and requested.counts("HOST"),
            f"may use several hosts, and {gpus} host (consumable HOST): set gpus_per_node, the GPUs "
            "that each of them needs",
        ),
        (
            pe.rule == "$pe_slots" and low > 1,
            f"allocates slots on one host only (allocation_rule $pe_slots), the job needs {low} hosts",
        ),
    )
    found = next((words for wrong, words in problems if wrong), "")
    if not found and pe.fixed and (misfit := _misfit(pe.fixed, requested, low, high)):
        found = f"allocates {counted(pe.fixed, 'slot')} per host (allocation_rule): {misfit}"
    return f"PE `{pe.name}` {found}" if found else ""


def _misfit(fixed: int, requested: Requested, low: int, high: int) -> str:
    """Why a fixed number of slots on each of low to high hosts does not suit the job; empty where it does."""
    request, wanted = requested.request, requested.slots
    counts = range(-(-wanted.low // fixed), wanted.high // fixed + 1)  # hosts
    if not counts:
        return f"{wanted} is not a multiple of that"
    if counts[0] > high or counts[-1] < low:
        hosts = f"{'is' if wanted.low == 1 else 'are'} {counted(counts[0], 'host')}"
        return f"{counted(wanted.low, 'slot')} {hosts}, not {low}"
    tasks = request.shares_per_node if request.chosen("tasks_per_node") else 1
    need = tasks * wanted.per_task
    if need > fixed:
        return f"{f'{tasks} tasks per host need' if tasks > 1 else 'a task needs'} {need}"
    a_host = fixed // wanted.per_task
    if (room := counts[-1] * a_host) < (request.shares or 0):
        fit = f"{a_host} {'tasks of' if a_host > 1 else 'task of'} {counted(wanted.per_task, 'slot')}"
        return f"{fit} on each, {wanted} slots have room for {room} of {request.shares}"
    return ""


def _other_slots(pe: PE, requested: Requested) -> str:
    """A hint: the number of slots to request in a parallel environment with a fixed number of slots per host."""
    request, wanted = requested.request, requested.slots
    if not pe.fixed or pe.fixed < wanted.per_task or not request.shares:
        return ""
    hosts = -(-request.shares // (pe.fixed // wanted.per_task)) + request.spare_nodes
    low, high = request.allocated_nodes if request.chosen("nodes") else (hosts, hosts)
    enough = low <= hosts <= high and hosts * pe.fixed <= pe.slots and hosts * pe.fixed != wanted.low
    return f"write slots = {hosts * pe.fixed}" if enough else ""


def check_counting(gpu: Resource, requested: Requested) -> list[str]:
    """Check how Grid Engine counts the resource that stands for GPUs. Pure.

    Args:
        gpu: The resource.
        requested: What the job requests.

    Returns:
        Notes for the user.
    """
    if gpu.consumable == "NO":
        return [
            f"resource {gpu.name} is not counted (consumable NO): Grid Engine may assign the same GPUs to other jobs"
        ]
    amount = requested.resources.get(requested.gpu, "")
    if gpu.kind == "INT" and "." in amount:
        return [
            f"{amount} of resource {gpu.name} per slot is requested, although its type is INT: Son of Grid Engine "
            f"counts that; if your Grid Engine does not, {directives.whole_slots(requested.request, requested.slots)}"
        ]
    return []


# --- why qsub refuses a job, and what the cell offers instead ----------------------------------------------------


def refuse(answer: Answer, requested: Requested, cell: Cell) -> NoReturn:
    """Explain why qsub -w v refuses a job. Pure.

    Raises:
        SpecError: With the key to blame, for what the user can change.
        SchedulerError: For any other reason, in qsub's words.
    """
    output, last = answer.err or answer.out, reason(answer)
    _refuse_names(output, requested, cell)
    _refuse_queues(requested, cell)
    _refuse_without(output, requested, cell)
    _refuse_amounts(output, last, requested, cell)
    if requested.key(HOST) != "native" and re.search(r"offers only qf:hostname=", last):
        what = "no host is left that could run the job"
        raise SpecError(requested.key(HOST), what, hint="`qhost` lists the hosts")
    if "reservation" in last and requested.request.options.get("reservation"):
        raise SpecError("reservation", last, hint="`qrstat` lists the advance reservations")
    if re.search("invalid option argument|option must have|is an invalid task id", output) or "attribute" in last:
        raise SpecError("native", last, hint="see man qsub")
    if re.search(r"is (not a|no) submit host", output):
        hint = alternatives("submit from one of", cell.submit_hosts)
        raise SchedulerError(f"jobs cannot be submitted from this host: {last}", hint=hint)
    raise SchedulerError(f"Grid Engine would refuse this job: {last}")


def _refuse_names(output: str, requested: Requested, cell: Cell) -> None:
    """Names that do not exist in the cell."""
    pes, queues = _names(cell.pes), _names(cell.queues)
    ask = "ask your administrators which {} exist".format
    of_pes = alternatives("suitable PEs", cell.suitable) + f"; existing: {some(pes)}" * bool(pes and cell.suitable)
    of_pes = of_pes or alternatives("existing PEs", pes) or ask("PEs")
    of_projects = alternatives("existing projects", cell.projects) or ask("projects")
    of_queues = alternatives("existing queues", queues) or "`qstat -g c` lists them"
    # what qsub prints, option, what is wrong, names that exist, what to do
    kinds = (
        ('parallel environment "([^"]*)" does not exist', "pe", "PE `{}` does not exist", pes, of_pes),
        ('requested project "([^"]*)" does not exist', "P", "project `{}` does not exist", cell.projects, of_projects),
        ("(no) project assigned to job", "P", "every job must have a project (enforce_project)", (), of_projects),
        ('requests unknown queue "([^"]*)"', "q", "queue `{}` does not exist", queues, of_queues),
    )
    for pattern, option, what, existing, hint in kinds:
        if match := re.search(pattern, output):
            unsuited = [pe_problem(pe, requested) for pe in _meant(match[1], cell.pes)[:1] if option == "pe"]
            why = " ".join(filter(None, (nearest(match[1], [*existing]), *unsuited)))
            raise SpecError(requested.key(option), what.format(match[1]), why=why, hint=hint)
    resource = re.search(r'unknown resource "([^"]*)"', output)
    if resource:
        name, known = resource[1], [resource.name for resource in cell.resources]
        what = f"the cell has no resource `{name}`"
        if name != requested.gpu or requested.key(name) == "native":
            raise SpecError(requested.key(name), what, why=nearest(name, known))
        likely = offers.like_gpus(cell.resources)
        hint = alternatives("name your site's GPU resource with --gpu-resource; likely", likely)
        otherwise = "`qhost -F` lists the resources of hosts; name the one for GPUs with --gpu-resource"
        raise SpecError("gpu_resource", what, hint=hint or otherwise)


def _refuse_queues(requested: Requested, cell: Cell) -> None:
    """Queues that do not offer the parallel environment, or whose time limit is too short."""
    chosen = matching_queues(cell.queues, requested.queues)
    carriers = carrying(cell.queues, requested.pe)
    usable = [queue for queue in chosen if queue in carriers]
    if requested.pe and chosen and not usable:
        what = f"no queue offers PE `{requested.pe}` (pe_list)"
        if carriers:
            what = f"queue {', '.join(requested.queues)} does not offer PE `{requested.pe}` (pe_list)"
        where = [f"queue {queue.name} offers it" for queue in carriers]
        hints = (alternatives("suitable PEs", cell.suitable), *where)
        raise SpecError(requested.key("pe"), what, hint="; ".join(filter(None, hints)))
    wanted = seconds(requested.resources.get("h_rt", ""))
    if wanted is not None and usable and all(queue.limit is not None and queue.limit < wanted for queue in usable):
        longest = max(usable, key=lambda queue: queue.limit or 0)
        longer = [queue for queue in carriers if queue.limit is None or queue.limit >= wanted]
        what = f"{format_walltime(wanted)} is more than queue {longest.name} allows ({offers.walltime(longest)})"
        hint = alternatives("queues that allow it", offers.with_walltimes(longer), _names(cell.queues))
        raise SpecError(requested.key("h_rt"), what, hint=hint)


def _refuse_without(output: str, requested: Requested, cell: Cell) -> None:
    """Resources that every job must request."""
    # Job 7 does not request 'forced' resource "h_rt" of queue instance all.q@n4
    lacking = list(dict.fromkeys(re.findall(r"does not request 'forced' resource \"([^\"]+)\"", output)))
    if "h_rt" in lacking:
        times = [queue.limit for queue in matching_queues(cell.queues, requested.queues) if queue.limit is not None]
        hint = f"write time = {toml(format_walltime(min([FIRST_TIME, *times])))}"
        raise SpecError("time", "every job must ask for a walltime (h_rt is FORCED)", hint=hint)
    if lacking:
        kinds = {resource.name: resource.kind for resource in cell.resources}
        lines = [offers.forced_line(name, kinds.get(name, "")) for name in lacking]
        what = f"every job must request {some(lacking)} (requestable FORCED)"
        raise SpecError("native", what, hint=f"add to native: {some([toml(line) for line in lines])}")


def _refuse_amounts(output: str, last: str, requested: Requested, cell: Cell) -> None:
    """Amounts above those of any host, or of all hosts together."""
    if fixed := re.search(FIXED, last):
        words = re.findall(r"[(, ](([\w.]+)=[^,)]+)", last.partition(")")[0])
        own = {name: word for word, name in words if name not in _NO_LOAD}
        values = sorted({value for name, value in re.findall(FIXED, output) if name == fixed[1]})
        hint = f"hosts have {some(values)}" if len(own) == 1 else f"`qhost -F {','.join(own)}` shows what each host has"
        key = "gpu_model" if fixed[1] == requested.site.fixed else requested.key(fixed[1])
        raise SpecError(key, f"no host has {' and '.join(own.values())}", hint=hint)
    for name, most in offered(output).items():
        if name in requested.resources and not re.search("only offers [1-9]", output):  # by hosts that have as much
            raise _too_much(name, most, requested)
    if slots := re.search(r'cannot run in PE "([^"]*)" because it only offers (\d+) slots', output):
        pe = next((pe for pe in cell.pes if pe.name == slots[1]), None)
        if pe is not None and pe.users:
            raise SpecError(requested.key("pe"), f"PE `{pe.name}` is only for users in {pe.users}")
        gpus, each = requested.resources.get(requested.gpu), "per host" if requested.counts_by_host else "each"
        with_gpus = f" with {gpus} GPU{'' if gpus == '1' else 's'} {each}" if gpus else ""
        one_host = " on one host" if pe is not None and pe.rule == "$pe_slots" else ""
        quota = re.search(r'exceeds limit "[^"]*" in rule "([^"/]+)', output)
        of_quota = f"resource quota {quota[1]} limits it (`qconf -srqs {quota[1]}`)" if quota else ""
        offer = f"offers {slots[2]}" if slots[2].strip("0") else "never offers that many"
        hosts = f" on hosts {requested.resources[HOST]}" if HOST in requested.resources else ""
        wanted = f"{counted(requested.slots.low, 'slot')}{with_gpus}{one_host}{hosts}"
        shows = requested.gpu_hint if gpus else "`qstat -g c` shows the slots of each queue"
        hint = of_quota or alternatives("suitable PEs", cell.suitable) or shows
        raise SpecError(requested.key("slots"), f"{wanted} requested, PE `{slots[1]}` {offer}", hint=hint)


def _too_much(name: str, most: str, requested: Requested) -> SpecError:
    """The error that no host has as much of a resource as a slot, or with GPUs that count so a host, needs."""
    noun = "GPUs" if name == requested.gpu else f"of resource {name}"
    each = " per slot" if requested.pe and not (name == requested.gpu and requested.counts_by_host) else ""
    what = f"{requested.resources[name]} {noun}{each} requested, no host has more than {most}"
    hint = "" if name == requested.gpu else f"`qhost -F {name}` shows the amount on each host"
    return SpecError(requested.key(name), what, hint=hint)
