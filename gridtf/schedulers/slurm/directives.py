"""What sbatch(1) is asked for: the #SBATCH lines of a script's head, and the command that hands it over. Pure."""

from __future__ import annotations

from gridtf.errors import SpecError
from gridtf.layout import request
from gridtf.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import native, needs, word
from gridtf.units import format_walltime


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of sbatch. Raises SpecError for values that an #SBATCH line cannot carry.

    A Slurm task is a training task, so that --ntasks-per-node says in this script what it says in a hand-written
    one, and site defaults such as DefCpuPerGPU apply; one agent a node is a matter of the launcher's srun. Room
    for tasks that ride along is made by asking for some more CPUs a task.
    """
    spec, asked = plan.spec, request(plan.spec)
    needed = needs(spec, asked)
    low, high = asked.nodes
    lines = [
        f"--job-name={word('name', spec.title)}",
        f"--nodes={low}" if low == high else f"--nodes={low}-{high}",
        # without it, -N4 -n8 may be laid out 5,1,1,1
        f"--ntasks-per-node={asked.tasks_per_node}",
    ]
    if needed.task_cpus is not None:
        cpus = asked.tasks_per_node * needed.task_cpus + needed.host_rider_cpus
        lines.append(f"--cpus-per-task={-(-cpus // asked.tasks_per_node)}")
    if asked.gpus_per_node:
        lines.append(f"--gpus-per-node={asked.gpus_per_node}")
    if needed.host_mem is not None:
        lines.append(f"--mem={needed.host_mem}M")
    if spec.walltime is not None:
        lines.append(f"--time={format_walltime(spec.walltime)}")
    if spec.partition is not None:
        lines.append(f"--partition={word('partition', spec.partition)}")
    if spec.account is not None:
        lines.append(f"--account={word('account', spec.account)}")
    lines.append("--open-mode=append")  # a requeued job goes on in the same log
    return (*lines, *native(spec))


def submit_command(plan: Plan) -> tuple[str, ...]:
    """sbatch with what needs the run directory to exist. Raises SpecError for a path that sbatch would misread."""
    run = RunDir(plan.run_dir)
    if "\\" in str(run.path):
        raise SpecError(
            "run_dir",
            f"sbatch cannot write a log into {str(run.path)!r}",
            why="it drops backslashes from its --output",
            hint="choose another place with --run-dir or --run-root",
        )
    log = str(run.log).replace("%", "%%")  # % begins a pattern there: sbatch(1), FILENAME PATTERN
    return "sbatch", "--parsable", f"--output={log}", str(run.script)
