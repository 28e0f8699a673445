"""From a plan to sbatch: #SBATCH lines, the command, and what it prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gridtf.errors import SpecError
from gridtf.jobspec.request import Component, Request
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import JobIdentity, Plan
from gridtf.schedulers.batch import native, word

# Not compiled until they are used: rendering has no use for them.
# --parsable: the id, and in a federation the cluster; a wrapper of the site's may drop that option
_PARSABLE = r"(?a)(\d+)(?:;(\S+))?"
_PLAIN = r"(?a)Submitted batch job (\d+)(?: on cluster (\S+))?"

# --- the script: sbatch(1) ---------------------------------------------------------------------------------------

_LONG = r"--([a-z][a-z-]*)(?:=(.*))?"
_SHORT = {
    "A": "account",
    "a": "array",
    "c": "cpus-per-task",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
}


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of sbatch, one a line.

    A Slurm task is a training task, so that --ntasks-per-node says in this script what it says in a hand-written
    one, and site defaults such as DefCpuPerGPU apply; one agent a node is a matter of the launcher's srun. Room
    for tasks that ride along is made by requesting some more CPUs a task.

    Tasks with a partition of their own are components of a heterogeneous job. From the first component sbatch hands
    on --time, --account, --qos, --mem, --output and most of what is no matter of nodes; CPUs, GPUs, --mem-per-cpu,
    --mem-per-gpu, --constraint, --exclusive and the like it does not.

    Raises:
        SpecError: For values that an #SBATCH line cannot carry, and an array of heterogeneous jobs.
    """
    spec, request = plan.spec, plan.request
    low, high = request.nodes
    others = request.components[1:]
    lines = [
        f"--job-name={word('name', request.name)}",
        f"--nodes={low}" if low == high else f"--nodes={low}-{high}",
        # without it, -N4 -n8 may be laid out 5,1,1,1
        f"--ntasks-per-node={request.tasks_per_node}",
    ]
    cpus = cpus_per_task(request)
    if cpus is not None:
        lines.append(f"--cpus-per-task={cpus}")
    if request.gpus_per_node:
        lines.append(f"--gpus-per-node={request.gpus_per_node}")
    lines += [f"--{option}={mib}M" for option, mib in memory(request).items()]
    if request.walltime is not None:
        lines.append(f"--time={format_walltime(request.walltime)}")
    lines += [f"--{key}={word(key, value)}" for key, value in request.options.items()]
    lines.append("--open-mode=append")  # a requeued job goes on in the same log
    lines += native(spec)
    if others and request.elements:
        raise SpecError(
            f"tasks.{others[0].types[0]}.partition",
            "the elements of a job array cannot have tasks on another partition",
            why="Slurm has no arrays of heterogeneous jobs",
            hint="leave it out, or submit jobs instead of an array",
        )
    for component in others:
        lines += ["hetjob", *_component(component)]
    return tuple(lines)


def cpus_per_task(request: Request) -> int | None:
    """--cpus-per-task of the job's own partition; None where the user has not said."""
    if request.task_cpus is None:
        return None
    return request.task_cpus + -(-request.host_non_training_cpus // request.tasks_per_node)


def memory(request: Request) -> dict[str, int]:
    """Memory of the job's own partition as an option of sbatch -> MiB; empty where the user has not said."""
    if request.host_mem is None:
        return {}
    if len(request.components) == 1:
        return {"mem": request.host_mem}
    # sbatch would hand --mem on to the other components, and there refuse the --mem-per-cpu beside it
    if request.gpus_per_node:
        return {"mem-per-gpu": -(-request.host_mem // request.gpus_per_node)}
    return {"mem-per-cpu": -(-request.host_mem // (request.tasks_per_node * (cpus_per_task(request) or 1)))}


def _component(component: Component) -> list[str]:
    """The lines of one of the other components. How its tasks share nodes is left to what Slurm finds free."""
    lines = [
        f"--partition={word(f'tasks.{component.types[0]}.partition', component.partition or '')}",
        "--nodes=1" if component.count == 1 else f"--nodes=1-{component.count}",
        f"--ntasks={component.count}",
    ]
    if component.cpus is not None:
        lines.append(f"--cpus-per-task={component.cpus}")
    if component.mem is not None:
        lines.append(f"--mem-per-cpu={-(-component.mem // (component.cpus or 1))}M")
    return lines


def submit_command(plan: Plan) -> tuple[str, ...]:
    """sbatch with the options that need the run directory to exist.

    Raises:
        SpecError: For a path that sbatch would misread.
    """
    run = RunDir(plan.run_dir)
    if "\\" in str(run.path):
        raise SpecError(
            "run_dir",
            f"sbatch cannot write a log into {str(run.path)!r}",
            why="it drops backslashes from its --output",
            hint="choose another place with --run-dir or --run-root",
        )
    # % begins a pattern there, and %a is the element of an array: sbatch(1), FILENAME PATTERN
    log = str(run.log).replace("%", "%%")
    if plan.request.elements:
        folder = str(run.elements).replace("%", "%%")
        log = f"{folder}/%a/{run.log.name}"
    return "sbatch", "--parsable", f"--output={log}", str(run.script)


def parse_native(lines: Sequence[str]) -> dict[str, str]:
    """The user's raw options as long name -> value; of one that is there twice, the last.

    sbatch takes ``--x=1``, ``--x 1``, ``-x 1`` and ``-x1``, quotes, and after # a comment.
    """
    found: dict[str, str] = {}
    waiting = ""
    for text in (text for line in lines for text in _words(line)):
        if match := re.fullmatch(_LONG, text, re.DOTALL):
            found[match[1]] = match[2] or ""
            waiting = "" if match[2] is not None else match[1]
        elif re.match(r"-[A-Za-z]", text):
            name = _SHORT.get(text[1], text[1])
            found[name] = text[2:].removeprefix("=")
            waiting = "" if text[2:] else name
        elif waiting:
            found[waiting] = text
            waiting = ""
    return found


def _words(line: str) -> list[str]:
    import shlex

    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that is not closed, which is sbatch's to judge
        return line.split()


# --- what sbatch and squeue print --------------------------------------------------------------------------------


def parse_submitted(output: str) -> tuple[str, str]:
    """(job id, cluster) of the job that sbatch has printed, in its last line or in words; a site may print lines of its
    own beside it. Empty without an id, or outside a federation."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = re.fullmatch(_PARSABLE, lines[-1]) if lines else None
    match = last or next((found for line in reversed(lines) if (found := re.search(_PLAIN, line))), None)
    return (match[1], match[2] or "") if match else ("", "")


def parse_scripts(output: str, script: Path) -> JobIdentity | None:
    """The job that runs this script, from lines ``4711|/path/job.sh``."""
    rows = (line.strip().partition("|") for line in output.splitlines())
    ids = [int(number) for number, _, command in rows if command == str(script) and number.isdecimal()]
    return JobIdentity(str(min(ids))) if ids else None  # of a heterogeneous job, the first component has the script
