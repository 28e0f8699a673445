"""The ways to start 16 tasks in an allocation of four hosts, each as a command. Used on the hosts of the test bed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HOSTS, EACH = 4, 4
TASKS = HOSTS * EACH
FLOOR, BARE, PASTED, MPIRUN, TORCHRUN, GRIDTF = "floor", "bare", "pasted", "mpirun", "torchrun", "gridtf"
KILLED = "killed"  # srun, told to end all tasks when one fails

# A task notes the time in its first line, in a file of its own below the folder it is given.
_TASK = """\
import time; now = time.time()
import os, sys
with open(f"{sys.argv[1]}/.{os.uname().nodename}-{os.getpid()}", "w") as mark:
    mark.write(str(now))
os.rename(mark.name, mark.name.replace("/.", "/"))
time.sleep(float(sys.argv[2]))
"""

# What is found in many a job script, to be run by every task.
_PASTED = r"""
hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
each=$((SLURM_NTASKS / ${#hosts[@]}))
workers=
for ((i = 0; i < SLURM_NTASKS; i++)); do
    workers+="${workers:+, }\"${hosts[i / each]}:$((23450 + i % each))\""
done
task="{\"type\": \"worker\", \"index\": $SLURM_PROCID}"
export TF_CONFIG="{\"cluster\": {\"worker\": [$workers]}, \"task\": $task}"
exec "$@"
"""


class Ways:
    """folder: shared by the hosts; what the commands need is made there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._task = folder / "task.py"
        self._pasted = folder / "pasted.sh"
        self._task.write_text(_TASK)
        self._pasted.write_text(_PASTED)
        self._count = 0

    def command(self, way: str, marks: Path, stay: float = 0) -> list[str]:
        """marks: the folder where tasks note the time. stay: seconds for which they stay then."""
        task = [sys.executable, str(self._task), str(marks), str(stay)]
        srun = ["srun", f"--nodes={HOSTS}", f"--ntasks={TASKS}"]
        if way == FLOOR:
            return [*srun, "true"]
        if way == BARE:
            return [*srun, *task]
        if way == KILLED:
            return [*srun, "--kill-on-bad-exit=1", *task]
        if way == PASTED:
            return [*srun, "bash", str(self._pasted), *task]
        if way == MPIRUN:
            return ["mpirun", "-np", str(TASKS), *task]
        self._count += 1
        if way == TORCHRUN:
            return self._torchrun(task[1:])
        assert way == GRIDTF, way
        return ["bash", str(self._script(tuple(task)))]

    def _torchrun(self, task: list[str]) -> list[str]:
        meeting = f"{os.uname().nodename}:{29500 + self._count}"  # this host is the first one
        srun = ["srun", f"--nodes={HOSTS}", f"--ntasks={HOSTS}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={HOSTS}", f"--nproc-per-node={EACH}"]
        return [
            *(*srun, *torchrun, "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint={meeting}", f"--rdzv-id={self._count}", *task),
        ]

    def _script(self, command: tuple[str, ...]) -> Path:
        """A job script with its run directory, as `gridtf submit` makes them."""
        import gridtf
        from gridtf import jobrecords, submission
        from gridtf.rundir import RunDir

        run = RunDir(self.folder / f"run-{self._count}")
        spec = gridtf.JobSpec(
            command=command,
            name="bench",
            scheduler="slurm",
            nodes=HOSTS,
            tasks_per_node=EACH,
            chdir=str(self.folder),
            run_dir=str(run.path),
        )
        plan = submission.prepare(spec)
        run.output.mkdir(parents=True)
        jobrecords.write_job(run, plan.spec, plan.sources)
        run.script.write_text(submission.script(plan))
        return run.script

    def tidy(self) -> None:
        """Run directories make the listing of the folder above them longer, way by way."""
        for run in self.folder.glob("run-*"):
            shutil.rmtree(run, ignore_errors=True)
