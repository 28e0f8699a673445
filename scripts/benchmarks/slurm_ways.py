"""The ways to start tasks in a Slurm job on four hosts, each as a command. Runs on the hosts of the test bed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from marks import EACH, HOSTS
from ways import MPIRUN, Ways

FLOOR, BARE, PASTED, TORCHRUN = "floor", "bare", "pasted", "torchrun"
KILLED = "killed"  # srun --kill-on-bad-exit

# Lines found in many job scripts, for every task to run.
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


class SlurmWays(Ways):
    """As Ways; the commands are for a job's script."""

    def __init__(self, folder: Path, each: int = EACH) -> None:
        super().__init__(folder, each, scheduler="slurm", nodes=HOSTS, tasks_per_node=each)
        self._pasted = self.write("pasted.sh", _PASTED)

    def other(self, way: str, task: list[str]) -> list[str]:
        srun = ["srun", f"--nodes={HOSTS}", f"--ntasks={HOSTS * self.each}", "--overcommit"]
        if way == FLOOR:
            return [*srun, "true"]
        if way == BARE:
            return [*srun, *task]
        if way == KILLED:
            return [*srun, "--kill-on-bad-exit=1", *task]
        if way == PASTED:
            return [*srun, "bash", str(self._pasted), *task]
        if way == MPIRUN:
            return ["mpirun", "-np", str(HOSTS * self.each), *task]
        assert way == TORCHRUN, way
        return self._torchrun(task[1:])

    def _torchrun(self, task: list[str]) -> list[str]:
        meeting = f"{os.uname().nodename}:{29500 + self._count}"  # this host is the first one
        srun = ["srun", f"--nodes={HOSTS}", f"--ntasks={HOSTS}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={HOSTS}", f"--nproc-per-node={EACH}"]
        return [
            *(*srun, *torchrun, "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint={meeting}", f"--rdzv-id={self._count}", *task),
        ]
