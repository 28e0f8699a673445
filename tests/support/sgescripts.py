"""Hand-written scripts on a Grid Engine test bed: alice's use of qsub, and the output of her tasks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tests.support import clusterscripts
from tests.support.cluster import Bed
from tests.support.clusterscripts import ENVIRON, parse_tasks

TELL = (
    'echo "task=$GRIDTF_TASK_TYPE:$GRIDTF_TASK_INDEX rank=$RANK/$WORLD_SIZE host=$(uname -n)'
    ' gpu=$CUDA_VISIBLE_DEVICES granted=$GRIDTF_LOCAL_GPUS"'
)
TASK = f"bash -c '{TELL}'"
# For scripts that are submitted as text: bash, alice's environment, and a line with the exit code at the end.
HEAD = f"""\
#$ -S /bin/bash -cwd -j y -v {",".join(ENVIRON)}
trap 'echo "the script ends with $?"' EXIT
"""
HOSTFILE = 'sed "s/^/hostfile: /" "$PE_HOSTFILE"\n'


class Folder(clusterscripts.Folder):
    """A folder in alice's home, and her commands there on the login host."""

    tell = TELL
    from_stdin = "qsub -terse -v PYTHONPATH"

    def qsub(self, script: str, *options: str, head: str = HEAD) -> Job:
        """Submit a script: its text, which ``head`` precedes, or the name of a file in this folder."""
        text, name = (f"#!/bin/bash\n{head}{script}\n", ()) if "\n" in script else (None, (script,))
        output = self.run("qsub", "-terse", *(("-N", "job") if text else ()), *options, *name, stdin=text)
        return Job(self, re.split(r"[.\s]", output)[0])  # 12.1-3:1 for an array

    def submit(self, script: str, *options: str) -> Job:
        return self.qsub(script, "-v", ",".join(ENVIRON), *options)

    def on_two_hosts(self, script: str, *options: str) -> Job:
        return self.qsub(clusterscripts.RUN + script, "-pe", "one", "2", "-l", "gpu=1", *options)

    def job(self, job_id: str) -> Job:
        return Job(self, job_id)


def folder_on(bed: Bed, name: str) -> clusterscripts.Folder:
    """A folder in alice's home on a bed of any scheduler."""
    return Folder(bed, name) if bed.kind == "sge" else clusterscripts.Folder(bed, name)


@dataclass(frozen=True)
class Job(clusterscripts.Batch):
    """A job that was submitted with qsub."""

    @property
    def output(self) -> str:
        files = sorted(
            path for path in self.folder.path.glob("*.o*") if re.search(rf"\.o{self.id}(\.\d+)?$", path.name)
        )
        return "".join(path.read_text(errors="replace") for path in files)

    def states(self) -> list[tuple[str, str]]:
        """(job id, state) of each line of qstat on this job; states such as r or Eqw."""
        lines = self.folder.run("qstat", "-u", "alice").splitlines()
        return [(words[0], words[4]) for line in lines if (words := line.split()) and words[0] == self.id]

    def goes_on(self) -> bool:
        stuck = [state for _, state in self.states() if "E" in state]
        assert not stuck, self.folder.run("qstat", "-j", self.id)
        return bool(self.states())

    def well(self) -> bool:
        return set(self.codes) == {"0"}

    @property
    def codes(self) -> list[str]:
        """The exit codes that scripts with HEAD have printed."""
        return re.findall(r"the script ends with (\d+)", self.output)

    @property
    def slots(self) -> dict[str, int]:
        """Host -> slots, in the order of the PE_HOSTFILE that a script with HOSTFILE has printed."""
        slots: Counter[str] = Counter()
        for host, count in re.findall(r"hostfile: (\S+) (\d+)", self.output):
            slots[host] += int(count)
        return dict(slots)

    def layout(self) -> dict[str, int]:
        """Host -> training tasks of its last run, in the order of their ranks."""
        tasks = parse_tasks("\n".join(clusterscripts.logs(self.folder.runs(self.id)[-1])))
        ranked = sorted((int(task.rank.split("/")[0]), task.host) for task in tasks.values() if task.rank[0] != "/")
        return dict(Counter(host for _, host in ranked))
