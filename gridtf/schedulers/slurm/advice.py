"""What Slurm would refuse or never start, reported before submission with what the site offers instead.

sbatch --test-only decides; its answer is translated with what the site has. Only a walltime above the partition's limit
and what the environment overrides are found here, since sbatch accepts them without a word.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.files import user_name
from gridtf.jobspec.merging import located
from gridtf.jobspec.options import flag
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import too_many
from gridtf.jobspec.units import format_walltime, parse_memory, parse_nodes, parse_walltime
from gridtf.schedulers.api import Estimate, Plan
from gridtf.schedulers.commands import run_command
from gridtf.schedulers.slurm import backfill, hostlist, offers, submit
from gridtf.schedulers.slurm.commands import complaint, slurm
from gridtf.schedulers.slurm.offers import Nodes, Partition, list_partitions, parsed, show_gpus, show_walltime
from gridtf.schedulers.slurm.query import parse_moment
from gridtf.text import counted, some, toml, whole
from gridtf.values import Value

_CHOSEN = ("partition", "account", "qos", "reservation", "time")  # options that say where, and not what

# --- what the job requests; pure ---------------------------------------------------------------------------------

# sbatch(1), INPUT ENVIRONMENT VARIABLES: most have the option's name. sbatch reads no others, such as SBATCH_TIME.
_SAME_NAME = (
    "ACCOUNT BATCH CLUSTERS CONSTRAINT CONTAINER CPUS_PER_GPU DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT GPUS "
    "GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT JOB_NAME MEM_BIND MEM_PER_CPU "
    "MEM_PER_GPU NETWORK NO_KILL NO_REQUEUE OPEN_MODE OVERCOMMIT PARTITION PROFILE QOS REQUEUE RESERVATION SIGNAL "
    "SPREAD_JOB THREADS_PER_CORE TRES_BIND TRES_PER_TASK USE_MIN_NODES WCKEY"
)
_VARIABLES = {name.lower().replace("_", "-"): f"SBATCH_{name}" for name in _SAME_NAME.split()} | {
    "time": "SBATCH_TIMELIMIT",
    "mem": "SBATCH_MEM_PER_NODE",
    "array": "SBATCH_ARRAY_INX",
}
# Options that choose among the nodes of a partition.
_CHOOSING = frozenset((*"CFwx", "cluster-constraint", "constraint", "nodefile", "nodelist", "reservation"))
# Options that sbatch copies from the first component of a heterogeneous job to the others.
_COPIED = ("time", "account", "qos", "mem")
# 2, gpu:2, a100:2, gpu:2080ti:2, gpu:1g.10gb:1; gres/gpu:2
_GPU_OPTION = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([^:,{}]+):)?(\d{1,18})", re.ASCII)


class ComponentRequest(Value):
    """What one component of a job requests; a job that is not heterogeneous has one component.

    Attributes:
        partitions: The job may run in any of these; empty: in the default partition.
        cpus: CPUs per node.
        mem: Memory per node in MiB.
        time: Least walltime in seconds; None where it is not known.
        keys: Option of sbatch -> the key of the job file, or the environment variable, that it comes from.
        nodes: Fewest nodes.
        gpus: GPUs per node.
        gpu_type: Type of the GPUs; empty: any.
        features: Features that the nodes must have; empty also where the expression is more than a list.
        tasks: Training tasks per node, which share its CPUs.
        hosts: Nodes that the job must have, of those that it may have.
        options: Options of sbatch -> their values.
    """

    partitions: tuple[str, ...]
    cpus: int
    mem: int
    time: int | None
    keys: Mapping[str, str]
    nodes: int = 1
    gpus: int = 0
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    tasks: int = 1
    hosts: int = 0
    options: Mapping[str, str] = {}

    def gpus_on(self, node: Nodes) -> int:
        """How many GPUs a node has for it."""
        return node.gpus(self.gpu_type) if {*self.features} <= {*node.features} else 0

    def fits(self, node: Nodes) -> bool:
        """Whether a node has as much as is requested of each."""
        return self.gpus_on(node) >= self.gpus and node.cpus >= self.cpus and node.mem >= self.mem

    def key(self, option: str) -> str:
        """The key of the job file, or the variable, to name in an error about this option of sbatch."""
        return self.keys.get(option, option.replace("-", "_"))


def component_requests(plan: Plan, environ: Mapping[str, str]) -> tuple[ComponentRequest, ...]:
    """Work out what each component of a job requests, from the lines and the variables that sbatch reads.

    Args:
        environ: The environment of sbatch. Its variables override the lines of all components.

    Returns:
        One request for each component, the one with the training tasks first.
    """
    variables = variables_of(environ)
    overriding = {option: environ[name] for option, name in variables.items()}
    named = {**dict.fromkeys(plan.request.native, "native"), **variables}
    lines = "\n".join(submit.directives(plan)).split("\nhetjob\n")
    first, *others = (submit.parse_native(part.splitlines()) for part in lines)
    found = [_requested({**first, **overriding}, {**_job_keys(plan.spec), **named})]
    copied = {option: first[option] for option in _COPIED if option in first}
    keys = {option: key for option, key in named.items() if option in (*_COPIED, *variables)}
    for component, own in zip(plan.request.components[1:], others, strict=True):
        own_keys = {**_component_keys(component.types[0], plan.spec), **keys}
        found.append(_requested({**copied, **own, **overriding}, own_keys))
    return tuple(found)


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which sbatch's environment overrides the directives of a script: option -> name."""
    return {option: name for option, name in _VARIABLES.items() if environ.get(name)}


def overridden(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Notes on the options of a plan that the environment overrides, and on those that it adds.

    Args:
        environ: The environment of sbatch.

    Raises:
        SpecError: Where it makes an array of the job.
    """
    own, found = submit.parse_native(submit.directives(plan)), variables_of(environ)
    if "array" in found and "array" not in own:
        what = "it makes a job array, whose elements would share one run directory"
        raise SpecError(
            found["array"], what, hint=f"unset {found['array']}; an array is requested with --native=--array=…"
        )
    notes = [
        f"{name}={environ[name]} in the environment takes precedence over --{option}={own[option]}"
        for option, name in found.items()
        if own.get(option, environ[name]) != environ[name]
    ]
    notes += [
        f"{name}={environ[name]} in the environment adds --{option}={environ[name]} to the job; if not meant, unset it"
        for option, name in found.items()
        if option not in own and (option == "exclusive" or submit.is_shape(option, environ[name]))
    ]
    if (kept := environ.get("SBATCH_EXPORT") or "ALL").partition(",")[0] != "ALL":
        hint = "unset it, or set what the program needs with setup and env"
        notes.append(f"SBATCH_EXPORT={kept} keeps this shell's PATH and other variables from the job: {hint}")
    return notes


def check_array(request: Request) -> None:
    """Check that Slurm takes so many elements. Nothing is known where scontrol does not answer: sbatch will say it.

    Raises:
        SpecError: For too many.
    """
    with contextlib.suppress(SchedulerError):
        shown = slurm.run(["scontrol", "show", "config"], limit=slurm.query_limit).out
        found = re.search(r"(?am)^MaxArraySize\s*=\s*(\d{1,9})$", shown)
        if found and len(request.elements) >= int(found[1]):  # of which 0 is one
            raise too_many(len(request.elements), int(found[1]) - 1, f"MaxArraySize of this Slurm is {found[1]}")


def _requested(options: Mapping[str, str], keys: Mapping[str, str]) -> ComponentRequest:
    """What a component requests by its options. Values that cannot be parsed are left for sbatch to refuse."""
    gpu_type, gpus, gpu_option = _gpus(options)
    tasks = whole(options.get("ntasks-per-node", "")) or 1
    cpus = tasks * (whole(options.get("cpus-per-task", "")) or 1)
    constraint = options.get("constraint", "")
    sizes = ("mem", "mem-per-gpu", "mem-per-cpu")
    mem, per_gpu, per_cpu = (parsed(parse_memory, options.get(size)) or 0 for size in sizes)
    return ComponentRequest(
        partitions=tuple(name for name in options.get("partition", "").split(",") if name),
        nodes=(parsed(parse_nodes, options.get("nodes")) or (1, 1))[0],
        gpus=gpus,
        gpu_type=gpu_type,
        features=tuple(constraint.split("&") if re.fullmatch(r"[\w.+&-]+", constraint) else ()),
        cpus=cpus,
        tasks=tasks,
        hosts=len({*hostlist.expand(options.get("nodelist", ""))}),
        options=options,
        mem=max(mem, gpus * per_gpu, cpus * per_cpu),
        time=parsed(parse_walltime, options.get("time-min") or options.get("time")),
        keys={**keys, "gpus": keys.get(gpu_option, gpu_option)},
    )


def _gpus(options: Mapping[str, str]) -> tuple[str, int, str]:
    """(type, GPUs per node, the option that sets them)."""
    for option in ("gpus-per-node", "gres"):
        match = _GPU_OPTION.fullmatch(options.get(option, ""))
        if match and (option != "gres" or "gpu" in match[0]):
            return match[1] or "", int(match[2]), option
    return "", 0, "gpus-per-node"


def _job_keys(spec: JobSpec) -> dict[str, str]:
    """Option of sbatch -> the key of the job file that it comes from, for the first component."""
    sizes = ("gpus_per_node", "gpus", "gpus_per_task")
    gpus = next((key for key in sizes if getattr(spec, key) is not None), "gpu_model" if spec.gpu_model else "tasks")
    own = ("qos", "constraint", "reservation", "licenses", "nodelist")
    return {
        "nodes": "nodes" if spec.nodes is not None else "tasks",
        "gpus-per-node": gpus,
        "cpus-per-task": next((key for key in ("cpus_per_task", "tasks_per_node") if getattr(spec, key)), "tasks"),
        "mem": "mem" if spec.mem is not None else "mem_per_task",
        **({"nodelist": "exclude"} if spec.exclude else {}),
        **({"constraint": "gpu_model"} if spec.own_model else {}),
        **{key: key for key in own if getattr(spec, key)},
    }


def _component_keys(task_type: str, spec: JobSpec) -> dict[str, str]:
    table = spec.task(task_type)
    return {
        "partition": f"tasks.{task_type}.partition",
        "nodes": f"tasks.{task_type}.count",
        "gpus-per-node": f"tasks.{task_type}.{'gpus' if table.gpus else 'gpu_model'}",
        "constraint": "constraint" if spec.constraint else f"tasks.{task_type}.gpu_model",
        "cpus-per-task": f"tasks.{task_type}.cpus" if table.cpus else "cpus_per_task",
        "mem": f"tasks.{task_type}.mem" if table.mem else "mem_per_task",
    }


# --- comparing both, with the output of sbatch --test-only ------------------------------------------------------

# Messages of sbatch are recognized by key phrases, since they differ between versions.
_BAD_PARTITION = re.compile(r"invalid partition specified: (\S+)|invalid partition name", re.IGNORECASE)
_NOT_OPEN = re.compile(
    r"partition not available|partition.* (?:inactive|drain)|(group|account|qos) not permitted to use this partition",
    re.IGNORECASE,
)
_SHAPE = re.compile(
    r"node configuration is not available|node count specification|time limit is invalid|generic resource|"
    r"more processors requested|memory specification|cpu count|unable to satisfy",
    re.IGNORECASE,
)
# Seen for a job whose reservation begins later; without --test-only, sbatch queues it.
_NOT_YET = re.compile(r"invalid time specified", re.IGNORECASE)
_OTHERS = (
    ("invalid account", "account", "sacctmgr show associations user=$USER lists your accounts"),
    ("invalid qos", "qos", "sacctmgr show associations user=$USER format=qos lists your QOS"),
    ("generic resource", "gres", "sinfo --format='%P %G' lists the site's resources"),
    ("feature", "constraint", "sinfo --format='%N %f' lists the nodes' features"),
    ("reservation", "reservation", "scontrol show reservation lists the reservations"),
    ("license", "licenses", "scontrol show licenses lists the licenses"),
    ("node name", "nodelist", "sinfo --Node lists the nodes"),
    ("unrecognized option|invalid option|invalid -|depend", "native", "see man sbatch"),
)


def check(plan: Plan, *, limit: float | None = None) -> tuple[str, ...]:
    """Check with sbatch --test-only, and against the site's partitions, whether Slurm would accept and start a job.

    Args:
        plan: The submission, with its script.
        limit: Seconds that each command may take; None: as any question to the queue.

    Returns:
        Notes for the user: what the environment overrides, and what the job will have to wait for.

    Raises:
        SpecError: When the job requests what the site does not have; it names the key of the job file.
        SchedulerError: When sbatch does not answer, or refuses the job for another reason.
    """
    limit = limit or slurm.query_limit
    notes = overridden(plan, os.environ)
    answer = slurm.run(["sbatch", "--test-only"], limit=limit, text=plan.script)
    requests = component_requests(plan, os.environ)
    # sbatch accepts a walltime above the partition's limit, unless the site has EnforcePartLimits
    if answer.code == 0 and all(request.time is None for request in requests):
        return tuple(notes)
    try:
        partitions = offers.query_partitions(limit=limit, clusters=submit.clusters(plan, os.environ))
    except SchedulerError:  # such as with PrivateData=partitions
        partitions = []
    available = _available(answer.text) if answer.code else []
    try:
        told = judge(requests, answer.code, answer.text, partitions, available=available, reserved=_reservations)
    except (SpecError, SchedulerError) as error:
        option, name = _blamed(plan, limit) if answer.code else ("", "")
        if not name or (isinstance(error, SpecError) and error.key == name):
            raise
        key = "gpus_per_node" if option == "gres" else option.replace("-", "_")
        word = flag(key) if hasattr(plan.spec, key) else f"--native=--{option}"
        what = f"Slurm refuses {os.environ[name]!r} in the environment: {complaint(answer.text) or error}"
        raise SpecError(name, what, hint=f"unset {name}; what a job needs is written as {word}") from None
    return (*notes, *told)


def _blamed(plan: Plan, limit: float) -> tuple[str, str]:
    """The option, and its variable in the environment, without which sbatch accepts the job; empty: there is none."""
    environ, sbatch = slurm.environment(), slurm.locate("sbatch")
    for option, name in variables_of(environ).items():
        if option in _CHOSEN:  # another partition or account is no cure for a request
            continue
        del environ[name]
        with contextlib.suppress(SchedulerError):
            if run_command([sbatch, "--test-only"], limit=limit, environ=environ, text=plan.script).code == 0:
                return option, name
    return "", ""


def foreseen(plan: Plan, partitions: Sequence[Partition]) -> Estimate | None:
    """What the site's partitions say of a job's start; None: Slurm has to be asked.

    sbatch --test-only gives an estimate for partitions that are down, and for walltimes above their limits.
    """
    requests, notes = component_requests(plan, os.environ), overridden(plan, os.environ)
    if elsewhere := [note for note in notes if note.startswith(("SBATCH_PARTITION=", "SBATCH_TIMELIMIT="))]:
        return Estimate(why=elsewhere[0], never=True)
    try:
        for request in requests:
            _refuse(request, partitions, [_too_long, _too_much])
        closed = judge(requests, 0, "", partitions)
    except SpecError as error:
        types = {kind for partition in partitions for nodes in partition.nodes for kind in nodes.gpu_types}
        models = {request.gpu_type for request in requests if request.key("gpus") == error.key}
        if models - {"", *types}:  # a wrong word, in any partition
            raise located(error, plan.sources) from None
        return Estimate(why=error.problem, never=True)
    return Estimate(why=closed[0]) if closed else None


def estimate(plan: Plan, partitions: Sequence[Partition], asked: Sequence[str], server: str) -> Estimate:
    """Ask Slurm when a job would start.

    Args:
        partitions: Those of the site.
        asked: The names of those that are asked about.
        server: As for backfill.ask.

    Raises:
        NoAnswerError: When it does not answer.
    """
    answer = slurm.run(["sbatch", "--test-only"], limit=slurm.query_limit, text=plan.script)
    try:
        requests = component_requests(plan, os.environ)
        notes = judge(requests, answer.code, answer.text, partitions, reserved=_reservations)
    except SpecError as error:
        return Estimate(why=f"refused: {error.problem}", never=True)
    except SchedulerError:
        return Estimate(why=f"refused: {slurm.message(answer)}")
    told = Estimate(why=notes[0]) if notes else parse_estimate(answer.text)
    if told.start is None:
        return told
    now = time.time()
    if len(requests) > 1 or submit.clusters(plan, os.environ):
        return told.replace(at_most=told.start > now + 5)
    queue = backfill.ask(server, backfill.beside(partitions, [*asked, *requests[0].partitions]))
    return backfill.estimate(told, queue, partitions, requests[0], now)


def parse_estimate(output: str) -> Estimate:
    """Find the estimated start in the output of sbatch --test-only. Pure.

    Args:
        output: Has a line ``sbatch: Job 12 to start at 2026-11-28T16:02:00 using 1 processors on nodes n1 in partition
            gpu``; of a heterogeneous job one for each component, which start together.
    """
    starts = [parse_moment(text) for text in re.findall(r"(?a)Job \S+ to start at (\S+)", output)]
    known = [start for start in starts if start is not None]
    return Estimate(max(known)) if known else Estimate(why="Slurm gives no estimate")


def room(plan: Plan) -> tuple[dict[str, int], int]:
    """The nodes that may run a job, as Login.room; none where other options than the partition choose them."""
    options = submit.parse_native(submit.directives(plan))
    chosen = {*options, *variables_of(os.environ)} & _CHOOSING or "exclude" in plan.request.native
    if chosen or len(plan.request.components) > 1 or submit.clusters(plan, os.environ):
        return {}, 0
    (request,) = component_requests(plan, os.environ)
    excluded = {*hostlist.expand(options.get("exclude", ""))}
    partitions = [place.offer for place in plan.places] or offers.query_partitions()
    groups = [nodes for partition in _chosen(request, partitions) for nodes in partition.nodes]
    rows = [(name, nodes.works) for nodes in groups if request.fits(nodes) for name in hostlist.expand(nodes.names)]
    return {name: int(works) for name, works in rows if name not in excluded}, request.nodes


def judge(
    requests: Sequence[ComponentRequest],
    code: int,
    output: str,
    partitions: Sequence[Partition],
    *,
    available: Sequence[str] = (),
    reserved: Callable[[], bool] = lambda: False,
) -> tuple[str, ...]:
    """Judge a job by the output of sbatch --test-only and the site's partitions. Pure.

    Args:
        requests: What each component requests.
        code: Exit code of sbatch --test-only.
        output: Its output.
        partitions: The partitions of the site.
        available: Accounts, QOS, licenses or reservations that the user may use; empty where they are not known.
        reserved: Whether the site has reservations, for which nodes may be missing.

    Returns:
        Notes for the user: what the job will have to wait for.

    Raises:
        SpecError: When the job requests what the site does not have; it names the key of the job file.
        SchedulerError: When Slurm refuses the job for another reason.
    """
    # sbatch marks most of its errors, but not all
    message = complaint(output) or "; ".join(filter(None, output.splitlines())) or f"exit code {code}"
    shape = _SHAPE.search(output) is not None
    for request in requests:
        _refuse(request, partitions, [_too_long, *([_too_much] if code and shape else [])])
    if code == 0:
        return tuple(note for request in requests if (note := _closed_now(_chosen(request, partitions))))
    for request in requests:
        _refuse_partition(request, output, message, partitions)
    if shape:
        chosen = [partition for request in requests for partition in _chosen(request, partitions)]
        if unusable := offers.unusable_nodes(chosen):
            return (f"the job waits for nodes that cannot be used now: {unusable}",)
        if any(0 < request.hosts < request.nodes for request in requests):  # refused with --test-only alone: 22.05
            return ("Slurm does not tell whether other hosts can join those of nodelist",)
        if partitions and reserved():  # sbatch queues such a job without --test-only
            return ("the job waits for nodes that are reserved: `scontrol show reservation` lists them",)
    if _NOT_YET.search(output) and any("reservation" in request.keys for request in requests):
        return ("the job waits until its reservation begins",)
    for phrase, option, hint in _OTHERS:
        if re.search(phrase, output, re.IGNORECASE):
            raise _wrong_name(requests[0], option, message, hint, partitions, available)
    site = "; ".join(f"{one.name}: {counted(one.size, 'node')}, {offers.describe(one)}" for one in partitions)
    raise SchedulerError(f"Slurm would refuse this job: {message}", hint=f"the site has {site}" if site else "")


def _reservations() -> bool:
    """Whether the site has reservations."""
    return "ReservationName=" in (slurm.try_run(["scontrol", "show", "reservation"], limit=5.0) or "")


def _available(output: str) -> list[str]:
    """The accounts, QOS, reservations or licenses that there are for the user, when sbatch has refused one; empty where
    Slurm lists none."""
    invalid = re.search(r"invalid (account|qos|license)|(reservation)", output, re.IGNORECASE)
    kind = (invalid[1] or invalid[2]).lower() if invalid else ""
    if kind not in ("reservation", "license"):
        return (associations(kind, limit=5.0) if kind else None) or []
    shown = slurm.try_run(["scontrol", "-o", "show", kind], limit=5.0) or ""
    found = re.findall(r"(?m)^(?:ReservationName|LicenseName)=(\S+)(?: Total=(\d+))?", shown)
    return [f"{name}:{total}" if total else name for name, total in found]


def _wrong_name(
    request: ComponentRequest, option: str, message: str, hint: str, site: Sequence[Partition], available: Sequence[str]
) -> SpecError:
    """The error for a name in an option that Slurm does not know, with those that there are."""
    groups = [group for partition in site for group in partition.nodes]
    features = {feature for group in groups for feature in group.features}
    of_site = {"constraint": features, "nodelist": {group.names for group in groups}}.get(option, ())
    of_nodes, listed = option == "nodelist", [*available] or sorted(of_site)
    known = hostlist.expand(",".join(listed)) if of_nodes else [name.partition(":")[0] for name in listed]
    split = hostlist.expand if of_nodes else re.compile(r"[&|,;()\[\]!]+|[*:]\d+").split
    texts = {one: text for one in (option, "exclude")[: 1 + of_nodes] if (text := request.options.get(one))}
    wrong = [(one, name) for one in texts for name in split(texts[one]) if known and name not in ("", *known)]
    option, name = wrong[0] if wrong else (option, ",".join(texts.values()))
    what = f"{message}: {name}" if name else message
    offered = f"{'available to you' if available else 'this site has'}: {some(listed)}" if listed else hint
    key = request.keys.get(option, "native" if option == "gres" else option)
    return SpecError(key, what, why=nearest(name, known) if wrong else "", hint=offered)


def associations(column: str, *, limit: float) -> list[str] | None:
    """Query sacctmgr for what the user's associations have in a column.

    Args:
        column: ``account`` or ``qos``.
        limit: Seconds that sacctmgr may take.

    Returns:
        The names in alphabetical order; None where sacctmgr does not answer.
    """
    options = ("--noheader", "--parsable2", "show", "associations", f"user={user_name(os.getuid())}")
    printed = slurm.try_run(["sacctmgr", *options, f"format={column}"], limit=limit)
    if printed is None:
        return None
    words = (line.split() for line in printed.splitlines())  # a site may print lines of its own, with blanks
    return sorted({name for line in words if len(line) == 1 for name in line[0].split(",") if name})


def _chosen(request: ComponentRequest, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions that a component may run in."""
    return offers.chosen(request.partitions, partitions)


def _refuse_partition(request: ComponentRequest, output: str, message: str, partitions: Sequence[Partition]) -> None:
    """Raise SpecError where sbatch refuses the partition: it does not exist, takes no jobs now, or not this user's."""
    named, names = ",".join(request.partitions), [partition.name for partition in partitions]
    unknown = [name for name in request.partitions if name not in names]
    if unknown and names and _BAD_PARTITION.search(output):
        hint = f"this site has: {list_partitions(partitions)}"
        what = f"there is no partition {unknown[0]!r}"
        raise SpecError(request.key("partition"), what, why=nearest(unknown[0], names), hint=hint)
    if refused := _NOT_OPEN.search(output):
        chosen = _chosen(request, partitions)
        others = list_partitions(one for one in partitions if one not in chosen and one.up == "up")
        key = who if (who := (refused[1] or "").lower()) in ("account", "qos") else "partition"
        why = f"partition {named}" if named else "no partition is named, so it is the default one"
        hint = f"write partition = …; others: {others}" if others else ""
        raise SpecError(request.key(key), message, why=why, hint=hint)


def _closed_now(chosen: Sequence[Partition]) -> str:
    if not chosen or any(partition.up == "up" for partition in chosen):
        return ""
    return f"the job waits until its partition is up: {list_partitions(chosen, lambda partition: partition.up)}"


Show = Callable[[Partition], str]
Judge = Callable[[ComponentRequest, Partition, Sequence[Partition]], SpecError | None]


def _refuse(request: ComponentRequest, partitions: Sequence[Partition], judges: Sequence[Judge]) -> None:
    """Raise SpecError when the request exceeds what every partition that the component may run in has or allows."""
    chosen = _chosen(request, partitions)
    if not chosen or len(chosen) < len(request.partitions):
        return
    problems = [
        next(filter(None, (judge(request, partition, partitions) for judge in judges)), None) for partition in chosen
    ]
    if problems[0] is not None and all(problems):  # of several partitions, one that fits is enough
        raise problems[0]


def _too_long(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    if request.time is None or partition.limit is None or request.time <= partition.limit or "qos" in request.keys:
        return None  # a QOS may allow more than its partition
    longer = [other for other in partitions if other.limit is None or other.limit >= request.time]
    limit, others = show_walltime(partition), _alternatives("allow it", longer, partitions, show_walltime)
    what = f"{format_walltime(request.time)} is more than partition {partition.name} allows ({limit})"
    why = "if a QOS allows more, request it, such as with --qos long"
    return SpecError(request.key("time"), what, why=why, hint=f"write time = {toml(limit)}; {others}")


def _too_much(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    """More nodes, or GPUs, CPUs or memory per node, than the partition has or allows."""
    nodes, tasks, gpus, cpus, mem = request.nodes, request.tasks, request.gpus, request.cpus, request.mem
    features = f"with {'&'.join(request.features)}" if request.features else ""
    excluded = {*hostlist.expand(request.options.get("exclude", ""))}
    counts, apart = ("exclude", " apart from those of exclude") if excluded else ("nodes", "")
    words = [*filter(None, (request.gpu_type, "GPUs", features))]
    kind, enough, a_node = " ".join(words), "have enough", ", nodes of partition {} have {}"
    needed = f"{tasks} tasks a node need {cpus} CPUs" if tasks > 1 else f"{cpus} CPUs a node requested"
    each = ", ".join(f"{n} {noun}" for n, noun in ((gpus, kind), (cpus, "CPUs"), (mem, "MiB of memory")) if n)
    # option of sbatch, amount, what is wrong, what partitions that have as much do; in the order of has()
    limits = (
        ("nodes", nodes, f"{nodes} nodes requested, partition {{}} has {{}}", enough),
        ("nodes", nodes, f"{nodes} nodes requested, partition {{}} allows at most {{}} a job", "allow it"),
        ("gpus", min(gpus, 1), f"no node of partition {{}} has {kind}", f"have {'such ' if words[1:] else ''}GPUs"),
        ("gpus", gpus, f"{gpus} {kind} a node requested{a_node}", enough),
        ("cpus-per-task", cpus, f"{needed}{a_node}", enough),
        ("mem", mem, f"{mem} MiB of memory a node requested{a_node}", enough),
        (counts, nodes, f"{nodes} nodes with {each} requested, partition {{}} has {{}} such nodes{apart}", enough),
    )

    def has(other: Partition) -> tuple[int, ...]:
        allowed, most_gpus = other.most_nodes or other.size, other.most(request.gpus_on)
        most_cpus, most_mem = other.most(lambda node: node.cpus), other.most(lambda node: node.mem)
        groups = [group.names for group in other.nodes if excluded and request.fits(group)]
        enough = other.fitting(request.fits) - len(excluded & {*hostlist.expand(",".join(groups))})
        return other.size, min(other.size, allowed), most_gpus, most_gpus, most_cpus, most_mem, enough

    def show(other: Partition) -> str:
        return show_gpus(other) if option == "gpus" else f"{has(other)[row]}{' MiB' if option == 'mem' else ''}"

    for row, (option, amount, problem, offer) in enumerate(limits):
        if amount > (most := has(partition)[row]):
            hint = _alternatives(offer, [other for other in partitions if has(other)[row] >= amount], partitions, show)
            if most and request.key(option) == "gpus":  # as Slurm, which spreads them over hosts
                hint = f"write nodes as well, of at most {most} GPUs each; {hint}"
            return SpecError(request.key(option), problem.format(partition.name, most), hint=hint)
    return None


def _alternatives(what: str, fitting: Sequence[Partition], partitions: Sequence[Partition], show: Show) -> str:
    """What the site offers instead: the partitions that fit, or if none does, what each partition has."""
    if fitting:
        return f"these partitions {what}: {list_partitions(fitting, show)}"
    singular = what.replace("have", "has").replace("allow", "allows")
    return f"no partition {singular}; there are: {list_partitions(partitions, lambda other: show(other) or 'none')}"
