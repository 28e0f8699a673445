"""What a job requests of Grid Engine: slots, resources, qsub's options, array elements: qsub(1), complex(5), sge_pe(5).
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gridtf.errors import SpecError
from gridtf.jobspec.request import Request, need_tasks_for_all
from gridtf.run.rundir import RunDir
from gridtf.schedulers import arrays, words
from gridtf.schedulers.api import Plan
from gridtf.schedulers.words import word
from gridtf.text import counted
from gridtf.values import Value

MEMORY = "mem_free"
HOST = "h"  # hostname
HOST_LISTS = {words.NODELIST.key: "", words.EXCLUDE.key: "!"}  # how their expressions begin

_MAIL = ("m", "ea")  # at its end, and when it is aborted or started again
_HOST_NAME = re.compile(r"[A-Za-z0-9_*?][\w.*?-]*", re.ASCII)  # sge_types(1): wildcards are allowed in an expression


# --- the user's raw options --------------------------------------------------------------------------------------


def parse_native(native: Sequence[str]) -> dict[str, str]:
    """Parse the user's raw options of qsub.

    Args:
        native: Options with their values, such as ``-pe mpi 8``.

    Returns:
        Option -> value: ``{"pe": "mpi 8", "q": "a.q,b.q", "t": "1-7:2", "notify": ""}``. The last of several equal
        options counts, as for qsub. Resources add up, so each has an entry of its own: ``-l gpu=1,arch=lx-amd64`` is
        ``{"l gpu": "1", "l arch": "lx-amd64"}``, and ``-l gpu`` requests an amount of 1. Resources and queues between
        ``-soft`` and ``-hard`` are named ``soft l gpu`` and ``soft q``.
    """
    options: dict[str, str] = {}
    name = prefix = ""
    for item in " ".join(native).split():
        if item in ("-hard", "-soft"):
            name, prefix = "", "soft " if item == "-soft" else ""
        elif re.match("-[A-Za-z]", item):
            name = prefix + item[1:] if item in ("-l", "-q") else item[1:]
            if item != "-l":
                options[name] = ""
        elif name == f"{prefix}l":
            pairs = (part.partition("=") for part in item.split(","))
            options.update({f"{name} {resource}": amount or "1" for resource, _, amount in pairs if resource})
        elif name:
            options[name] = f"{options[name]} {item}".strip()
    return options


def array_elements(native: Mapping[str, str]) -> tuple[str, ...]:
    """The elements of the job array that ``-t`` requests, such as 1 3 5 7 for ``-t 1-7:2``.

    Args:
        native: The user's raw options, from parse_native.

    Returns:
        The elements in order; empty for a single job.

    Raises:
        SpecError: For a value that is not a range of array tasks.
    """
    text = native.get("t")
    if not text:
        return ()
    return arrays.array_elements(text, f"-t {text}", "write a range from 1 on, such as -t 1-16", least=1)


def refuse_native(request: Request) -> None:
    """Refuse raw options for slots, and for GPUs in a job that requests none, of which gridtf would not know.

    Raises:
        SpecError: With what to write instead.
    """
    name = request.options["gpu_resource"]
    if (pe := request.native.get("pe")) is not None:
        words.refuse_native(f"-pe {pe}", "pe", pe)
    if native_has(request, name) and not request.gpus_per_task:
        amount = request.native.get(f"l {name}", "1")
        words.refuse_native(f"-l {name}={amount}", "gpus_per_task", amount)


def native_has(request: Request, resource: str) -> bool:
    """Whether the user's raw options request this resource, hard or soft."""
    return f"l {resource}" in request.native or f"soft l {resource}" in request.native


# --- slots -------------------------------------------------------------------------------------------------------


class Slots(Value):
    """The slots of a job, written as qsub takes them: ``8`` or ``4-8``.

    Attributes:
        low: The fewest slots that the job can run with.
        high: The most slots that it can use.
        per_task: Slots of each training task.
        non_training: Slots for the CPUs of all tasks that do not train (ps, evaluators), unless they are in per_task.
    """

    low: int
    high: int
    per_task: int = 1
    non_training: int = 0

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def slots(request: Request) -> Slots:
    """The slots to request: a slot is a CPU. A task whose CPUs are not specified has one slot.

    Where GPUs may be counted per slot, no slots are requested for tasks that do not train, since each would come with a
    part of a GPU: the slots of a training task include its share of their CPUs. A leader with more GPUs than a worker
    has more slots as well: each slot comes with as many GPUs as all others.

    Raises:
        SpecError: For too few slots, and for an empty range.
    """
    fewest, most = (request.shares or nodes * request.shares_per_node for nodes in request.nodes)
    cpus, non_training = request.task_cpus or 1, request.non_training_cpus
    if requests_gpus(request):
        cpus, non_training = cpus + -(-non_training // fewest), 0
    if (chosen := request.options.get("slots")) is not None:
        return _chosen_slots(str(chosen), request, fewest, cpus)
    more = non_training + request.spare_nodes * request.shares_per_node * cpus
    return Slots(fewest * cpus + more, most * cpus + more, cpus, non_training)


def slots_in_job(request: Request) -> Slots:
    """The slots that gridtf would have requested for the job it runs in.

    A hand-written script may have requested other slots: then only per_task and non_training hold.
    """
    try:
        return slots(request)
    except SpecError:  # gridtf would refuse this request, but a hand-written script made it
        return Slots(1, 1, request.task_cpus or 1)


def _chosen_slots(text: str, request: Request, fewest: int, cpus: int) -> Slots:
    """The slots that the user has chosen. Tasks have the slots of their CPUs, if there are as many; else they share.

    Args:
        text: ``8`` or ``4-8``.
        request: What the job requests.
        fewest: The fewest training tasks, as Request.shares counts them.
        cpus: The CPUs of one of them.
    """
    first, _, last = text.partition("-")
    low, high = int(first), int(last or first)
    training = request.shares
    if low > high:
        raise SpecError("slots", f"{low}-{high} is an empty range", hint="write the smaller number first")
    if training and low < training:
        gpus = "" if training == request.training else f", and a slot has {counted(request.gpu_share, 'GPU')}"
        what = f"{counted(low, 'slot')} for {request.training} training tasks"
        raise SpecError("slots", what, hint=f"a task needs a slot at least{gpus}: write slots = {training}")
    if request.task_cpus is not None and fewest * cpus <= low:
        return Slots(low, high, cpus)
    return Slots(low, high, low // training if training else 1)


# --- GPUs --------------------------------------------------------------------------------------------------------


class Resource(Value):
    """A row of the complex: complex(5).

    Attributes:
        name: Its name.
        shortcut: Its other name, which qsub takes as well.
        consumable: Whether Grid Engine counts it, and per what: ``NO``, ``YES`` (per slot), ``JOB`` or ``HOST``.
        kind: Its type: ``INT``, ``DOUBLE``, ``RSMAP``, …; empty when it is not known.
        forced: Whether every job must request it (requestable FORCED).
    """

    name: str
    shortcut: str
    consumable: str = "YES"
    kind: str = ""
    forced: bool = False

    @property
    def is_text(self) -> bool:
        """Whether its value is a text."""
        return self.kind.endswith("STRING")

    @property
    def divisible(self) -> bool:
        """Whether a slot can have a part of one. complex(5) allows that for DOUBLE only, but INT is counted as exactly
        (seen on Son of Grid Engine 8.1.9)."""
        return self.kind in ("DOUBLE", "INT", "")


class Site(Value):
    """What directives depend on at a site.

    Attributes:
        resources: The resources of the complex; empty where they are not known.
        models: The values that its hosts have in the resource which tells GPU models -> the number of hosts.
        fixed: The name of that resource, if the hosts have it whatever their load; empty if a load sensor reports it.
    """

    resources: Sequence[Resource] = ()
    models: Mapping[str, int] = {}
    fixed: str = ""


def model_resource(request: Request, resources: Sequence[Resource]) -> Resource | None:
    """How a site tells the requested model of GPUs from others: a resource to request in place of the one of all GPUs
    (a consumable of the model's name), a flag of hosts (BOOL), or a resource whose value is the model (STRING).

    Returns:
        The resource; None where there is none, or no model is requested.
    """
    model = request.components[0].gpu_model
    if not model or not request.gpus_per_task:
        return None
    if named := request.options.get("gpu_model_resource"):
        found = (one for one in resources if named in (one.name, one.shortcut))
        return next(found, Resource(named, named, "NO", "STRING"))
    of_model = re.compile(rf"(gpus?[_.-]?)?{re.escape(model)}([_.-]?gpus?)?", re.IGNORECASE)
    of_models = re.compile("gpu_?(type|model|card|name)", re.IGNORECASE)
    fitting = (
        [one for one in resources if one.consumable != "NO" and of_model.fullmatch(one.name)],
        [one for one in resources if one.kind == "BOOL" and of_model.fullmatch(one.name)],
        [one for one in resources if one.is_text and of_models.fullmatch(one.name)],
    )
    return next((one for group in fitting for one in group), None)


def _of_model(request: Request, site: Site) -> dict[str, str]:
    """The resource that selects the hosts with the requested model of GPUs, and its value; empty where none is needed.

    Raises:
        SpecError: Where the site has no such model, or it is not known how it is requested.
    """
    model, how = request.components[0].gpu_model, model_resource(request, site.resources)
    if not model or not request.gpus_per_task:
        return {}
    if how is None:
        likely = [one.name for one in site.resources if re.search("gpu|cuda|nvidia", one.name, re.IGNORECASE)]
        raise SpecError(
            "gpu_model",
            f"no resource of this site stands for GPUs of model {model}",
            why=f"`qconf -sc` has: {', '.join(likely) or 'none for GPUs'}" if site.resources else "",
            hint="name the resource that tells it: gpu_model_resource = …, or that of such GPUs: gpu_resource = …",
        )
    if how.consumable != "NO":
        return {}
    if not how.is_text:
        return {how.name: "TRUE"}
    own = next((word for word in site.models if word.lower() == model.lower()), "")
    if site.models and not own:
        offer = ", ".join(f"{word} ({counted(number, 'host')})" for word, number in sorted(site.models.items()))
        raise SpecError("gpu_model", f"no host has GPUs of model {model}", hint=f"this site has: {offer}")
    return {how.name: word("gpu_model", own or model)}


def requests_gpus(request: Request) -> bool:
    """Whether gridtf itself requests GPUs of Grid Engine; the user's raw options may do so instead."""
    return bool(request.gpus_per_task) and not native_has(request, request.options["gpu_resource"])


def gpu_resource(request: Request, resources: Sequence[Resource]) -> Resource | None:
    """How Grid Engine counts the GPUs that gridtf requests; None when it requests none, or the cell is unknown."""
    name = request.options["gpu_resource"]
    own = [one for one in resources if name in (one.name, one.shortcut)] if requests_gpus(request) else []
    return next(iter(own), None)


def gpu_amount(request: Request, wanted: Slots, gpu: Resource) -> str:
    """The amount of the GPU resource to request, as qsub takes it.

    Args:
        request: What the job requests.
        wanted: Its slots.
        gpu: How Grid Engine counts the resource.

    Raises:
        SpecError: For a part of a GPU per slot, where the resource has whole ones only; for GPUs that count per job,
            which all are on one host, and more hosts.
    """
    if gpu.consumable == "NO":  # compared with what each host has, and not counted
        return str(request.gpus_per_task)
    if gpu.consumable == "JOB" and (request.chosen("nodes") or (1, 1))[0] > 1:
        raise SpecError(
            "nodes",
            f"{request.nodes[0]} hosts, but {gpu.name} counts per job (consumable JOB): all GPUs are on the first host",
            hint="write nodes = 1, or ask your administrators for a GPU resource that counts per slot",
        )
    if gpu.consumable in ("JOB", "HOST"):
        by_slots = request.options.get("slots") is not None and request.training is None
        tasks = wanted.low // wanted.per_task if by_slots else request.shares_per_node
        return str(request.chosen("gpus_per_node") or tasks * request.gpu_share)
    whole, rest = divmod(request.gpu_share, wanted.per_task)
    if not rest:
        return str(whole)
    part = request.gpu_share * 10**6 // wanted.per_task  # rounded down, so that no GPU seems to be missing
    text = f"{part // 10**6}.{part % 10**6:06}".rstrip("0")
    if not gpu.divisible:
        raise SpecError(
            "slots" if request.options.get("slots") is not None else "cpus_per_task",
            f"{counted(request.gpu_share, 'GPU')} for {wanted.per_task} slots would be {gpu.name}={text} per slot, "
            f"and the resource has whole numbers only (type {gpu.kind})",
            hint=whole_slots(request, wanted),
        )
    return text


def whole_slots(request: Request, wanted: Slots) -> str:
    """A hint: how to request whole GPUs per slot."""
    tasks = Slots(wanted.low // wanted.per_task, wanted.high // wanted.per_task)
    without = "" if request.training else "leave out cpus_per_task, and "
    value = str(tasks) if tasks.low == tasks.high else f'"{tasks}"'
    return f"{without}write slots = {value}: a slot is then a task with its GPUs, and its other CPUs are not counted"


# --- options of qsub ---------------------------------------------------------------------------------------------


def directives(plan: Plan) -> tuple[str, ...]:
    """The options of qsub in the script's head, one a line, without ``#$``.

    Left out on purpose: -V, which copies the whole environment of the submitting shell into the job; -cwd and -wd,
    because the script itself changes to its folder and reports a folder that does not exist.

    Args:
        plan: The submission, with the resources of the complex as its site where they are known.

    Raises:
        SpecError: For what cannot be requested of Grid Engine.
    """
    request = plan.request
    _refuse_partitions(request)
    wanted = slots(request)
    pe, queue, account = request.options.get("pe"), request.options.get("partition"), request.options.get("account")
    if wanted.high > 1 and pe is None:
        what = f"{wanted.high} slots need a parallel environment"
        raise SpecError("pe", what, hint="name one with --pe; `qconf -spl` lists them")
    # -r y: start the job again when a host is lost, as Slurm does by default
    # -notify: USR2 some time before KILL, so that tasks can end in good order
    lines = [f"-N {_job_name(request)}", "-S /bin/bash", "-j y", "-r y", "-notify"]
    lines += [f"-pe {word('pe', pe)} {wanted}"] if pe is not None else []
    site = plan.site or Site()
    gpu = gpu_resource(request, site.resources)
    if gpu and gpu.consumable in ("JOB", "HOST") and "slots" not in request.options:  # else a slot has those of a task
        need_tasks_for_all(plan.spec, request, plan.scheduler.options)
    found = {**resources(request, wanted, gpu), **_of_model(request, site)}
    lines += [f"-l {resource}={amount}" for resource, amount in found.items()]
    lines += [f"-q {word('partition', queue)}"] if queue is not None else []
    lines += [f"-P {word('account', account)}"] if account is not None else []
    reservation = request.options.get(words.RESERVATION.key)
    lines += [f"-ar {word(words.RESERVATION.key, reservation)}"] if reservation else []
    others = ",".join(job.partition(".")[0] for job in plan.waits_for)  # which takes no elements of an array
    lines += [f"-hold_jid {others}"] if others else []
    lines += [f"-{option} {value}" for option, value in words.mail(request, _MAIL, "M").items()]
    lines += [f"-t {request.array}", f"-tc {request.at_once}"] if request.at_once else []
    native = words.native(plan.spec)
    # -soft holds to the end of its line in a script, and to the end of all options on a command line
    return (*lines, *([" ".join(native)] if "-soft" in " ".join(native).split() else native))


def resources(request: Request, wanted: Slots, gpu: Resource | None = None) -> dict[str, str]:
    """The hard resources to request, less those in the user's raw options: complex(5).

    Args:
        request: What the job requests.
        wanted: Its slots.
        gpu: How Grid Engine counts GPUs; None when it is not known: per slot.

    Returns:
        Name -> amount as qsub takes it; for memory per slot, for GPUs as they are counted.

    Raises:
        SpecError: For an invalid name of the GPU resource or of a host, and for GPUs that cannot be requested so.
    """
    found = {}
    if requests_gpus(request):
        name = request.options["gpu_resource"]
        if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise SpecError("gpu_resource", f"{name!r} is not the name of a resource", hint="see `qconf -sc`")
        found[name] = gpu_amount(request, wanted, gpu or Resource(name, name))
    if request.host_mem is not None and not native_has(request, MEMORY):
        found[MEMORY] = f"{-(-request.host_mem // (request.tasks_per_node * wanted.per_task))}M"
    if request.walltime is not None:
        hours, rest = divmod(request.walltime, 3600)
        found["h_rt"] = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    found.update({name: value for name, (value, _) in listed(request).items()})
    lists = {key: hosts for key in HOST_LISTS if (hosts := request.options.get(key))}
    return {**found, HOST: _hosts(lists, request)} if lists else found


def listed(request: Request) -> dict[str, tuple[str, str]]:
    """The resources in ``constraint``, such as ``ib,arch=lx-amd64``, and ``licenses``, such as ``matlab:2``.

    Returns:
        Name -> (value, the key that it is in).
    """
    found = {}
    for key, separator, default in ((words.CONSTRAINT.key, "=", "TRUE"), (words.LICENSES.key, ":", "1")):
        for part in filter(None, str(request.options.get(key) or "").split(",")):
            name, _, value = word(key, part).replace(separator, "=").partition("=")
            found[name] = value or default, key
    return found


def _hosts(lists: Mapping[str, Sequence[str]], request: Request) -> str:
    """One of the hosts in nodelist, and none in exclude, as an expression: sge_types(1). The script's head needs no
    quotes around it."""
    key = next(iter(lists))
    for name, hosts in lists.items():
        for host in hosts:
            if not _HOST_NAME.fullmatch(host):
                hint = "write names as in qhost, such as n3,n7, or n?"
                raise SpecError(name, f"{host!r} is not the name of a host", hint=hint)
    either = "&".join(f"{HOST_LISTS[name]}({'|'.join(hosts)})" for name, hosts in lists.items())
    if native_has(request, HOST) or native_has(request, "hostname"):
        what = "native requests hosts as well (-l h=…), of which Grid Engine takes one expression"
        raise SpecError(key, what, hint=f"leave {key} out, and write native = ['-l h=(…)&{either}']")
    return either


def submit_command(plan: Plan) -> tuple[str, ...]:
    """The qsub command, which reads the script from standard input, with the options that need the run directory.

    ``-w n`` is qsub's default. Sites may set, and DRMAA has, ``-w e``, which refuses all jobs that request what hosts
    report as their load, such as mem_free, and those that wait for hosts in exclusive use.

    Raises:
        SpecError: For a run directory whose path qsub would misread.
    """
    run = RunDir(plan.run_dir)
    if re.search(r"[,:$]", str(run.path)) or not str(run.path).isprintable():
        what = f"qsub cannot write a log into {str(run.path)!r}"
        hint = "choose another place with --run-dir or --run-root"
        why = "in the value of -o, commas and colons separate hosts and paths, and $ begins a variable"
        raise SpecError("run_dir", what, why=why, hint=hint)
    log = run.elements / "$TASK_ID" / run.log.name if plan.request.elements else run.log
    return "qsub", "-terse", "-w", "n", "-o", str(log)


def _refuse_partitions(request: Request) -> None:
    for other in request.components[1:]:
        what = "a Grid Engine job cannot request other hosts for some of its tasks"
        hint = "leave it out: these tasks then share the hosts of the other tasks"
        why = "a parallel job has one request, which applies to all of its slots"
        raise SpecError(other.key, what, why=why, hint=hint)


def _job_name(request: Request) -> str:
    if request.name[0].isdigit():
        what = f"{request.name!r} begins with a digit, which Grid Engine does not take"
        raise SpecError("name", what, hint="choose another with --name")
    return word("name", request.name)
