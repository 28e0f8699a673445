"""Hand-written scripts and allocations on a test bed: alice's folders, her commands there, the output of her tasks."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gridtf.run.rundir import RunDir, read_record
from tests.support.cluster import CHECKOUT, PATH, SHARED, Bed
from tests.support.clusterjobs import PATIENCE
from tests.support.jobs import until
from tests.support.python import KERNEL_REPORTS_EXITS

HOME = f"{SHARED}/home/alice"
ENVIRON = {"PATH": f"{HOME}/bin:{PATH}", "PYTHONPATH": str(CHECKOUT), "GRIDTF_SITE_CONFIG": ""}
# Sets what a user's module or virtual environment would, for scripts that inherit no environment.
ENTER = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in ENVIRON.items())
# A shebang cannot contain a path with spaces. As pip does then: sh runs the second line, Python reads it as a string.
GRIDTF = f"""#!/bin/sh
'''exec' {shlex.quote(sys.executable)} "$0" "$@"
' '''
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from gridtf.cli import main
sys.exit(main())
"""
TELL = (
    'echo "task=$GRIDTF_TASK_TYPE:$GRIDTF_TASK_INDEX rank=$RANK/$WORLD_SIZE host=$SLURMD_NODENAME'
    ' gpu=$CUDA_VISIBLE_DEVICES rocr=$ROCR_VISIBLE_DEVICES granted=$SLURM_STEP_GPUS"'
)
TASK = f"bash -c '{TELL}'"
# The first lines of a script that calls gridtf_run.
RUN = 'set -euo pipefail\nsource "$(gridtf bootstrap-path)"\n'
SAVES = """\
trap 'echo told to end; sleep 0.5; echo saved; exit 0' TERM
trap 'echo time for a checkpoint' USR1
echo started
for _ in {1..600}; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Task:
    """A task's own output (TELL)."""

    host: str
    gpus: tuple[str, ...]
    rocr: tuple[str, ...]
    granted: tuple[str, ...]
    rank: str


def parse_tasks(text: str) -> dict[str, Task]:
    """Parse the lines that tasks print with TELL: task name -> Task."""
    tasks = {}
    for line in re.findall(r"task=.*", text):
        values = dict(word.split("=", 1) for word in line.split())
        values.setdefault("rocr", values["gpu"])  # not every scheduler sets it
        gpus, rocr, granted = (tuple(filter(None, values[name].split(","))) for name in ("gpu", "rocr", "granted"))
        tasks[values["task"]] = Task(values["host"], gpus, rocr, granted, values["rank"])
    return tasks


class Folder:
    """A folder in alice's home, and her commands there on the login host. Other schedulers' folders derive from it.

    Attributes:
        tell: A line of bash with which a task prints its host, rank and GPUs, for parse_tasks().
        from_stdin: The command that submits a script from standard input.
    """

    tell = TELL
    from_stdin = "sbatch --parsable"

    def __init__(self, bed: Bed, name: str) -> None:
        self.bed = bed
        self.path = bed.home() / name
        self.seen_as = bed.seen(self.path)
        install = f"mkdir -p ~/bin {name} && cat > ~/bin/gridtf && chmod +x ~/bin/gridtf"
        bed.run("login", "bash", "-c", install, stdin=GRIDTF)

    def run(self, *argv: str, **more: Any) -> str:
        """Run a command on the login host; returns its output."""
        more.setdefault("env", {**ENVIRON, "PATH": f"{HOME}/bin:{self.bed.path}"})
        return self.bed.run("login", *argv, cwd=self.seen_as, **more).stdout

    def sbatch(self, script: str, *options: str) -> Batch:
        """Submit a script: its text, or the name of a file in this folder."""
        text, name = (f"#!/bin/bash\n{script}\n", ()) if "\n" in script else (None, (script,))
        job_id = self.run("sbatch", "--parsable", *options, *name, stdin=text)
        return Batch(self, job_id.strip())

    def submit(self, script: str, *options: str) -> Batch:
        """Submit a script that inherits the login host's environment."""
        return self.sbatch(script, *options)

    def on_two_hosts(self, script: str, *options: str) -> Batch:
        """Submit RUN and a script for two hosts with a GPU each."""
        return self.sbatch(RUN + script, "--nodes=2", "--gpus-per-node=1", *options)

    def job(self, job_id: str) -> Batch:
        return Batch(self, job_id)

    def runs(self, job_id: str) -> list[RunDir]:
        """The run directories of a job, in the order in which they were made."""
        paths = [path for path in (self.path / "gridtf-runs").glob("*") if re.search(rf"-{job_id}(?!\d)", path.name)]
        return [RunDir(path) for path in sorted(paths, key=lambda path: path.name)]

    def verdicts(self, job_id: str) -> list[str]:
        """The states of the verdicts of a job's runs; empty for a run without a verdict."""
        records = [read_record(run.attempt(1).verdict) for run in self.runs(job_id)]
        return ["" if record is None else str(record["state"]) for record in records]

    def tasks(self, job_id: str) -> dict[str, Task]:
        """The tasks of the last run of a job, from their output."""
        return parse_tasks("\n".join(logs(self.runs(job_id)[-1])))


def joined_tasks_ended(folder: Folder, run: RunDir, known: str, by_job: str, *, code: int) -> None:
    """Check gridtf wait for tasks that called gridtf_join.

    Args:
        folder: Where it is called.
        run: The run directory.
        known: Its output where the kernel reports the tasks' exit status.
        by_job: Its output where the kernel does not, and the state of the job decides.
        code: Its exit code.
    """
    wait = ["bash", "-c", 'gridtf wait "$1"; echo "code=$?"', "-", folder.bed.seen(run.path)]
    output = folder.run(*wait)
    assert (known if KERNEL_REPORTS_EXITS else by_job) in output, output
    assert output.endswith(f"code={code}\n"), output
    for path in run.attempt(1).ranks.iterdir():
        path.write_text(re.sub(r'"state": *"(COMPLETED|FAILED)"', '"state": "ENDED"', path.read_text()))
    output = folder.run(*wait)
    assert by_job in output, output
    assert output.endswith(f"code={code}\n"), output


def logs(run: RunDir) -> list[str]:
    return [path.read_text(errors="replace") for path in sorted(run.attempt(1).logs.glob("*.log"))]


@dataclass(frozen=True)
class Batch:
    """A job that was submitted with sbatch. Other schedulers' jobs derive from it."""

    folder: Folder
    id: str

    @property
    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.path.glob(f"slurm-{self.id}*.out"))

    def states(self) -> list[tuple[str, str]]:
        """State and exit code of the job, or of all elements of the array."""
        output = self.folder.run("scontrol", "-o", "show", "job", self.id)
        return re.findall(r"JobState=(\w+) .*?ExitCode=(\S+)", output)

    def goes_on(self) -> bool:
        return any(state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") for state, _ in self.states())

    def well(self) -> bool:
        """Whether a job that has ended completed."""
        return {state for state, _ in self.states()} == {"COMPLETED"}

    def over(self, seconds: float = PATIENCE) -> Batch:
        """Wait until it has ended."""
        self.until(lambda: not self.goes_on(), f"the end of job {self.id}", seconds)
        return self

    def ended(self, seconds: float = PATIENCE) -> Batch:
        """Wait until it has completed."""
        self.over(seconds)
        everything = "".join("".join(logs(run)) for run in self.folder.runs(self.id))
        assert self.well(), self.output + everything
        return self

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        until(condition, what, seconds, lambda: f"{self.output}\n{self.folder.bed.about(self.id)}")

    def until_printed(self, word: str, count: int, seconds: float = PATIENCE) -> None:
        """Wait until ``count`` tasks have printed this."""

        def printed() -> bool:
            return sum(word in log for run in self.folder.runs(self.id) for log in logs(run)) >= count

        self.until(printed, f"{count} tasks to print {word!r}", seconds)


def one_gpu_each(tasks: dict[str, Task], count: int) -> None:
    """Check that there are ``count`` tasks, each with one of the GPUs granted on its host, no two with the same."""
    assert len(tasks) == count, tasks
    assert all(len(task.gpus) == 1 and set(task.gpus) <= set(task.granted) for task in tasks.values()), tasks
    assert all(task.rocr == task.gpus for task in tasks.values()), tasks
    assert len({(task.host, task.gpus) for task in tasks.values()}) == count, tasks
