"""From a plan to a job in the queue: #SBATCH lines, job arrays, sbatch and scancel. Rendering runs no command."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gridtf.errors import SchedulerError, SpecError
from gridtf.jobspec.layout import Component, Request, components, request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import Needs, indices, looked_for, native, needs, rider_needs, word

_ARRAY = re.compile(r"(?:--array[= ]\s*|-a\s*)(\S+)")
_PATIENCE = 60.0  # for a controller that is busy; sbatch itself gives up sooner when there is none
_QUEUE_PATIENCE = 20.0
# Not compiled until a job is submitted: rendering has no use for them.
# sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = r"(?i)socket timed out|zero bytes were transmitted"
# --parsable: the id, and in a federation the cluster; a wrapper of the site's may drop that option
_PARSABLE = r"(?a)(\d+)(?:;(\S+))?"
_PLAIN = r"(?a)Submitted batch job (\d+)(?: on cluster (\S+))?"


# --- the script: sbatch(1), pure ---------------------------------------------------------------------------------


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of sbatch. Raises SpecError for values that an #SBATCH line cannot carry.

    A Slurm task is a training task, so that --ntasks-per-node says in this script what it says in a hand-written
    one, and site defaults such as DefCpuPerGPU apply; one agent a node is a matter of the launcher's srun. Room
    for tasks that ride along is made by asking for some more CPUs a task.

    Tasks with a partition of their own are components of a heterogeneous job. From the first component sbatch hands
    on --time, --account, --qos, --mem, --output and most of what is no matter of nodes; CPUs, GPUs, --mem-per-cpu,
    --mem-per-gpu, --constraint, --exclusive and the like it does not.
    """
    spec, asked = plan.spec, request(plan.spec)
    needed = needs(spec, asked)
    parts = components(spec)
    low, high = asked.nodes
    lines = [
        f"--job-name={word('name', spec.title)}",
        f"--nodes={low}" if low == high else f"--nodes={low}-{high}",
        # without it, -N4 -n8 may be laid out 5,1,1,1
        f"--ntasks-per-node={asked.tasks_per_node}",
    ]
    cpus = _cpus_per_task(needed, asked)
    if cpus is not None:
        lines.append(f"--cpus-per-task={cpus}")
    if asked.gpus_per_node:
        lines.append(f"--gpus-per-node={asked.gpus_per_node}")
    if needed.host_mem is not None:
        lines.append(_memory(needed.host_mem, asked, cpus or 1, alone=len(parts) == 1))
    if spec.walltime is not None:
        lines.append(f"--time={format_walltime(spec.walltime)}")
    if spec.partition is not None:
        lines.append(f"--partition={word('partition', spec.partition)}")
    if spec.account is not None:
        lines.append(f"--account={word('account', spec.account)}")
    lines.append("--open-mode=append")  # a requeued job goes on in the same log
    lines += native(spec)
    if len(parts) > 1 and elements(spec.native):
        raise SpecError(
            f"tasks.{parts[1].types[0]}.partition",
            "the elements of a job array cannot have tasks on another partition",
            why="Slurm has no arrays of heterogeneous jobs",
            hint="leave it out, or submit jobs instead of an array",
        )
    for part in parts[1:]:
        lines += ["hetjob", *_component(part, spec)]
    return tuple(lines)


def _cpus_per_task(needed: Needs, asked: Request) -> int | None:
    if needed.task_cpus is None:
        return None
    cpus = asked.tasks_per_node * needed.task_cpus + needed.host_rider_cpus
    return -(-cpus // asked.tasks_per_node)


def _memory(host_mem: int, asked: Request, cpus_per_task: int, *, alone: bool) -> str:
    """The option for so many MiB on a host of the first component."""
    if alone:
        return f"--mem={host_mem}M"
    # sbatch would hand --mem on to the other components, and there refuse the --mem-per-cpu beside it
    if asked.gpus_per_node:
        return f"--mem-per-gpu={-(-host_mem // asked.gpus_per_node)}M"
    return f"--mem-per-cpu={-(-host_mem // (asked.tasks_per_node * cpus_per_task))}M"


def _component(part: Component, spec: JobSpec) -> list[str]:
    """The lines of one of the other components. How its tasks share nodes is left to what Slurm finds free."""
    needed = rider_needs(spec, part)
    lines = [
        f"--partition={word(f'tasks.{part.types[0]}.partition', part.partition or '')}",
        "--nodes=1" if needed.count == 1 else f"--nodes=1-{needed.count}",
        f"--ntasks={needed.count}",
    ]
    if needed.cpus is not None:
        lines.append(f"--cpus-per-task={needed.cpus}")
    if needed.mem is not None:
        lines.append(f"--mem-per-cpu={-(-needed.mem // (needed.cpus or 1))}M")
    return lines


def overridden(plan: Plan) -> tuple[str, ...]:
    """A note on what the user's own options ask for and do not get."""
    own = [option for option in plan.spec.native if re.match(r"--output\b|-o", option)]
    where = RunDir(plan.run_dir).log
    return (f"native {own[-1]} has no effect: what the script prints is in {where}",) if own else ()


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
    # % begins a pattern there, and %a is the element of an array: sbatch(1), FILENAME PATTERN
    log = str(run.log).replace("%", "%%")
    if elements(plan.spec.native):
        folder = str(run.elements).replace("%", "%%")
        log = f"{folder}/%a/{run.log.name}"
    return "sbatch", "--parsable", f"--output={log}", str(run.script)


def elements(native: Sequence[str]) -> tuple[str, ...]:
    """``--array=0-6:2,9%4`` -> 0 2 4 6 9; none without such an option. Raises SpecError."""
    found = [match for option in native if (match := _ARRAY.fullmatch(option.strip()))]
    if not found:
        return ()
    text = found[-1][1].strip("'\"").partition("%")[0]  # %4: so many at a time
    numbers: set[int] = set()
    for part in text.split(","):
        some = indices(part)
        if some is None:
            raise SpecError("native", f"{found[-1][0]!r}: {part!r} is no array index", hint="such as --array=0-15%4")
        numbers.update(some)
    return tuple(str(number) for number in sorted(numbers))


# --- the job -----------------------------------------------------------------------------------------------------


def submit(plan: Plan, command: Sequence[str]) -> Record:
    """Hand plan.run_dir/job.sh over; gives ``job_id``, and in a federation ``cluster``.

    command: sbatch's. Raises SchedulerError, and MaybeSubmittedError when nobody knows whether there is a job now.
    """
    from gridtf.schedulers.client import NoAnswerError, ask
    from gridtf.schedulers.slurm import client

    try:
        answer = ask(command, limit=_PATIENCE, environ=os.environ)  # its own environment: it becomes the job's
    except NoAnswerError:
        return _find_or_raise(plan, f"sbatch has not answered within {_PATIENCE:g} s")
    job = parse_job_id(answer.out)
    if answer.code == 0:
        return job or _find_or_raise(plan, f"sbatch ended with 0 and printed no job id, but: {answer.last_word}")
    # sbatch --wait prints the id, and ends as the job does
    if job is not None or re.search(_ANSWER_LOST, answer.err):
        return _find_or_raise(plan, client.message(answer))
    if client.is_unreachable(answer.err):
        raise client.unreachable(client.message(answer), blame=True)
    raise SchedulerError(f"Slurm has refused the job: {client.message(answer)}")


def parse_job_id(out: str) -> Record | None:
    """The job that sbatch has printed, in its last line or in words; a site may print lines of its own beside it."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    last = re.fullmatch(_PARSABLE, lines[-1]) if lines else None
    match = last or next((found for line in reversed(lines) if (found := re.search(_PLAIN, line))), None)
    return _job(*match.groups()) if match else None


def _job(job_id: str, cluster: str | None = None) -> Record:
    return {"job_id": job_id, **({"cluster": cluster} if cluster else {})}


def _find_or_raise(plan: Plan, words: str) -> Record:
    return looked_for(plan, "Slurm", words, "squeue --me", lambda: _in_queue(str(RunDir(plan.run_dir).script)))


def _in_queue(script: str) -> Record | None:
    """The job of ours that runs this script. Raises SchedulerError when the controller does not answer."""
    from gridtf.schedulers.slurm import client

    options = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}", "--format=%F|%o")
    answer = client.run(["squeue", *options], limit=_QUEUE_PATIENCE)
    rows = (line.strip().partition("|") for line in answer.out.splitlines())
    ids = [int(number) for number, _, command in rows if command == script and number.isdecimal()]
    return _job(str(min(ids))) if ids else None  # of a heterogeneous job, the first component has the script


def cancel(submitted: Record, *, force: bool = False) -> None:
    """Cancel this job with scancel(1); no error if it has ended already.

    Args:
        submitted: as returned by `submit`.
        force: send KILL at once, to the batch script as well.

    Raises:
        SchedulerError: Slurm does not answer, or refuses.
    """
    from gridtf.schedulers.slurm import client

    options = [*client.cluster_option(submitted), *(["--signal=KILL", "--full"] if force else [])]
    answer = client.run(["scancel", *options, "--", submitted["job_id"]], limit=_PATIENCE)
    if answer.code and "Invalid job id" not in answer.err:  # that one has ended, and is forgotten
        raise SchedulerError(f"Slurm does not cancel job {submitted['job_id']}: {client.message(answer)}")
