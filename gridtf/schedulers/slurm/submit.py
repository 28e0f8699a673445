"""From a plan to sbatch: #SBATCH lines, the submit command, and parsing its output. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridtf.errors import SpecError
from gridtf.jobspec.request import Component, Request
from gridtf.jobspec.units import format_walltime, parse_nodes
from gridtf.run.rundir import RunDir, run_dirs_of
from gridtf.schedulers import words
from gridtf.schedulers.api import JobIdentity, Plan
from gridtf.schedulers.slurm import offers
from gridtf.schedulers.slurm.commands import joined
from gridtf.schedulers.words import CONSTRAINT, EXCLUDE, GPU_MODEL, NODELIST, NOTIFY, mail, native, word

# Compiled only when used: rendering does not need them.
# --parsable: the id, and in a federation the cluster; a site's wrapper may drop that option
_PARSABLE = r"(?a)(\d+)(?:;(\S+))?"
_PLAIN = r"(?a)Submitted batch job (\d+)(?: on cluster (\S+))?"

# --- the script: sbatch(1) ---------------------------------------------------------------------------------------

_MAIL = ("mail-type", "END,FAIL,REQUEUE")  # END: also at the time limit, and when the job is cancelled
_LONG = r"--([a-z][a-z-]*)(?:=(.*))?"
_LETTERS = (
    "A=account C=constraint G=gpus L=licenses M=clusters a=array c=cpus-per-task N=nodes n=ntasks o=output p=partition "
    "q=qos t=time w=nodelist x=exclude"
)
_SHAPE = re.compile(
    r"(nodes|ntasks(-per-(node|gpu|tres))?|gpus.*|cpus-per-(task|gpu)|tres-per-task)=.*|"
    r"(gres|tres-per-node)=.*\bgpu\b.*",
    re.DOTALL,
)
# these are no line as they are
_OTHERWISE = ("time_min", *(option.key for option in (CONSTRAINT, GPU_MODEL, NODELIST, EXCLUDE, NOTIFY)))
_SHORT = dict(pair.split("=") for pair in _LETTERS.split())
_LONGEST_WARNING = 65535  # seconds of --signal


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of sbatch for a plan.

    A Slurm task is a training task, so that --ntasks-per-node means the same as in a hand-written script, and site
    defaults such as DefCpuPerGPU apply; the launcher's srun starts one agent per node whatever it is. Non-training
    tasks find room because more CPUs per task are requested.

    Tasks with a partition, or a model of GPUs, of their own are components of a heterogeneous job. sbatch copies
    --time, --account, --qos, --mem, --output and most options that are not about nodes from the first component to the
    others, but not CPUs, GPUs, --exclude, --mem-per-cpu, --mem-per-gpu, --constraint, --exclusive and the like.

    Returns:
        One option per line, without ``#SBATCH``; the line ``hetjob`` stands between components.

    Raises:
        SpecError: For values that an #SBATCH line cannot contain, and for an array of heterogeneous jobs.
    """
    spec, request = plan.spec, plan.request
    low, high = request.allocated_nodes
    others = request.components[1:]
    lines = [
        f"--job-name={word('name', request.name)}",
        f"--nodes={low}" if low == high else f"--nodes={low}-{high}",
        # without it, Slurm may distribute -N4 -n8 as 5,1,1,1
        f"--ntasks-per-node={request.tasks_per_node}",
    ]
    cpus = cpus_per_task(request)
    if cpus is not None:
        lines.append(f"--cpus-per-task={cpus}")
    lines += _gpus(request.gpus_per_node, request.components[0], plan)
    lines += [f"--{option}={mib}M" for option, mib in memory(request).items()]
    if request.walltime is not None:
        lines.append(f"--time={format_walltime(request.walltime)}")
    if spec.least_walltime is not None:
        lines.append(f"--time-min={format_walltime(spec.least_walltime)}")
    texts = {key: value for key, value in request.options.items() if key not in _OTHERWISE}
    lines += [f"--{key}={word(key, value)}" for key, value in texts.items()]
    lists = {key: ",".join(request.options.get(key, ())) for key in (NODELIST.key, EXCLUDE.key)}
    named = {key: f"--{key}={word(key, hosts)}" for key, hosts in lists.items() if hosts}
    lines += named.values()
    without = [line for key, line in named.items() if key == EXCLUDE.key]
    lines.append("--open-mode=append")  # a requeued job continues the same log
    if spec.restarts and high > 1:
        lines.append("--no-kill")  # a node that is lost does not end the job
    if spec.seconds_to_save and "signal" not in request.native:  # also when the limit is made shorter than it was
        lines.append(f"--signal=B:USR1@{min(spec.seconds_to_save, _LONGEST_WARNING)}")
    if spec.continuations:
        lines.append("--requeue")  # also where the site's default is JobRequeue=0
    if plan.waits_for:  # how they end is gridtf's to judge
        lines.append(f"--dependency=afterany:{':'.join(plan.waits_for)}")
    lines += [f"--{option}={value}" for option, value in mail(request, _MAIL, "mail-user").items()]
    lines += [f"--array={request.array}%{request.at_once}"] if request.at_once else []
    lines += native(spec)
    if others and request.elements:
        what = "the elements of a job array cannot have tasks on another partition, or with another model of GPUs"
        hint = "leave it out, or submit jobs instead of an array"
        why = "Slurm has no arrays of heterogeneous jobs"
        raise SpecError(others[0].key, what, why=why, hint=hint)
    for component in others:
        lines += ["hetjob", *_component(component, plan), *without]
    return tuple(lines)


def _gpus(number: int, component: Component, plan: Plan) -> list[str]:
    """The GPUs of each node of a component, and the features of these nodes: GPUs of a model are a type of their own at
    some sites, at others a feature of the nodes that have them."""
    constraint = plan.request.options.get(CONSTRAINT.key)
    kind = feature = ""
    if number and component.gpu_model:
        names = (component.partition or "").split(",") if component.partition else []
        kind, feature = offers.spelled(word("gpu_model", component.gpu_model), names, plan.site or ())
    lines = [f"--gpus-per-node={kind}{':' if kind else ''}{number}"] if number else []
    if constraint and feature:
        if re.search(r"[\[*]", constraint):
            what = (
                f"{constraint!r} cannot be joined with the feature {feature}, which stands for the model of GPUs here"
            )
            raise SpecError(CONSTRAINT.key, what, hint="leave gpu_model out, and name the feature in constraint")
        constraint = f"({constraint})" if "|" in constraint else constraint
    both = "&".join(filter(None, (constraint and word(CONSTRAINT.key, constraint), feature)))
    return [*lines, *([f"--constraint={both}"] if both else [])]


def cpus_per_task(request: Request) -> int | None:
    """--cpus-per-task of the first component; None where the user has not set CPUs."""
    if request.task_cpus is None:
        return None
    return request.task_cpus + -(-request.host_non_training_cpus // request.tasks_per_node)


def memory(request: Request) -> dict[str, int]:
    """The memory of the job's own partition: option of sbatch -> MiB; empty if the user has not requested any."""
    if request.host_mem is None:
        return {}
    if len(request.components) == 1:
        return {"mem": request.host_mem}
    # sbatch would copy --mem to the other components and refuse it there together with their --mem-per-cpu
    if request.gpus_per_node:
        return {"mem-per-gpu": -(-request.host_mem // request.gpus_per_node)}
    return {"mem-per-cpu": -(-request.host_mem // (request.tasks_per_node * (cpus_per_task(request) or 1)))}


def _component(component: Component, plan: Plan) -> list[str]:
    """Lines of another component. Slurm decides, by what is free, how its tasks share nodes."""
    partition = component.partition
    lines = [
        *([f"--partition={word(f'tasks.{component.types[0]}.partition', partition)}"] if partition else []),
        "--nodes=1" if component.count == 1 else f"--nodes=1-{component.count}",
        f"--ntasks={component.count}",
        *_gpus(component.gpus, component, plan),
    ]
    if component.cpus is not None:
        lines.append(f"--cpus-per-task={component.cpus}")
    if component.mem is not None:
        lines.append(f"--mem-per-cpu={-(-component.mem // (component.cpus or 1))}M")
    return lines


def submit_command(plan: Plan) -> tuple[str, ...]:
    """The sbatch command, with the options that name the run directory.

    Args:
        plan: The submission; its run directory need not exist.

    Returns:
        The command, which reads the script from standard input.

    Raises:
        SpecError: For a run directory that sbatch would misread.
    """
    run = RunDir(plan.run_dir)
    if "\\" in str(run.path):
        what = f"sbatch cannot write a log into {str(run.path)!r}"
        hint = "choose another place with --run-dir or --run-root"
        raise SpecError("run_dir", what, why="it drops backslashes from its --output", hint=hint)
    # % begins a pattern there, and %a is the element of an array: sbatch(1), FILENAME PATTERN
    log = str(run.log).replace("%", "%%")
    if plan.request.elements:
        folder = str(run.elements).replace("%", "%%")
        log = f"{folder}/%a/{run.log.name}"
    return "sbatch", "--parsable", f"--output={log}"


def parse_native(native: Sequence[str]) -> dict[str, str]:
    """Parse the user's raw options.

    Args:
        native: Options as sbatch reads them from a directive: ``--x=1``, ``--x 1``, ``-x 1`` or ``-x1``, with quotes
            and comments after #.

    Returns:
        Long name without dashes -> value, "" for an option without one; of a repeated option, the last value.
    """
    options: dict[str, str] = {}
    without_value = ""
    for text in native_words(native):
        if match := re.fullmatch(_LONG, text, re.DOTALL):
            options[match[1]] = match[2] or ""
            without_value = "" if match[2] is not None else match[1]
        elif re.match(r"-[A-Za-z]", text):
            name = _SHORT.get(text[1], text[1])
            options[name] = text[2:].removeprefix("=")
            without_value = "" if text[2:] else name
        elif without_value:
            options[without_value] = text
            without_value = ""
    return options


def clusters(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """The clusters that a job may be submitted to, where the environment of sbatch or an option names some."""
    variables = environ.get("SBATCH_CLUSTERS") or environ.get("SLURM_CLUSTERS")
    return [name for name in (variables or plan.request.native.get("clusters", "")).split(",") if name]


def refuse_native(request: Request) -> None:
    """Refuse raw options for hosts, tasks, GPUs and CPUs of tasks, of which gridtf would not know, though it places the
    tasks and says how many there are. A number of nodes within the requested range is a choice among them.

    Raises:
        SpecError: With what to write instead.
    """
    low, high = request.allocated_nodes
    for option, value in request.native.items():
        nodes = offers.parsed(parse_nodes, value) if option == "nodes" else None
        if not is_shape(option, value) or (nodes and low <= nodes[0] <= nodes[1] <= high):
            continue
        words.refuse_native(f"--{option}={value}" if value else f"--{option}", option, value)


def is_shape(option: str, value: str) -> bool:
    """Whether an option of sbatch requests hosts, tasks, GPUs or CPUs of tasks."""
    return _SHAPE.fullmatch(f"{option}={value}") is not None


def native_words(native: Sequence[str]) -> list[str]:
    """The words of the user's raw options, as sbatch reads them from a directive, with quotes and comments after #."""
    import shlex

    def split(line: str) -> list[str]:
        try:
            return shlex.split(line, comments=True)
        except ValueError:  # an unclosed quote: sbatch will refuse it
            return line.split()

    return [text for line in native for text in split(line)]


# --- parsing the output of sbatch and squeue ---------------------------------------------------------------------


def parse_submitted(output: str) -> tuple[str, str]:
    """Find the job in the output of sbatch, to which a site may add lines of its own.

    Args:
        output: Has one line ``4711`` or ``4711;cluster``, or ``Submitted batch job 4711 on cluster east``.

    Returns:
        (job id, cluster); the id is empty if there is none, or several; the cluster outside a federation.
    """
    lines = (line.strip() for line in output.splitlines())
    matches = (re.fullmatch(_PARSABLE, line) or re.search(_PLAIN, line) for line in lines)
    found = {(match[1], match[2] or "") for match in matches if match}
    return found.pop() if len(found) == 1 else ("", "")


def remarks(output: str) -> str:
    """Find what Slurm and the site's plugins say about an accepted job, in one line; empty if they say nothing.

    Args:
        output: Standard error of sbatch, such as ``sbatch: Your project has 300 hours left.``
    """
    return joined(re.findall(r"(?m)^sbatch: (?!debug)(.*\w.*?)\s*$", output))


def parse_logs(output: str, run_dir: Path, components: int = 1) -> JobIdentity | None:
    """Find the latest job that has its log in a run directory in lines of squeue.

    The lines are such as ``4711 /runs/x/job.log``, or ``4711 east /runs/x/job.log`` with the name of the job's cluster.

    Args:
        output: The lines; ended jobs may be among them, also of a run directory that has been removed.
        run_dir: The run directory.
        components: How many the job has. They have ids one after the other, the first of which is the job's.
    """
    rows = re.findall(r"(?am)^ *(\d+) +(?:([^\s/]+) +)?(/.*?) *$", output)
    ours = [row for row in rows if run_dir in run_dirs_of(Path(row[2].replace("%%", "%")))]
    if not ours:
        return None
    number, cluster, _ = max(ours, key=lambda row: int(row[0]))
    return JobIdentity(str(int(number) - components + 1), {"cluster": cluster} if cluster else {})
