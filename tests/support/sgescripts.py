"""Scripts of the user's own on a Grid Engine test bed: what alice does with qsub, and what her tasks say."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tests.support import clusterscripts
from tests.support.cluster import Bed
from tests.support.clusterscripts import ENVIRON, told

TELL = (
    'echo "task=$GRIDTF_TASK_TYPE:$GRIDTF_TASK_INDEX rank=$RANK/$WORLD_SIZE host=$(uname -n)'
    ' gpu=$CUDA_VISIBLE_DEVICES granted=$GRIDTF_LOCAL_GPUS"'
)
TASK = f"bash -c '{TELL}'"
# For scripts that are handed over as text: bash, as alice's module or virtual environment leaves it, and its exit code.
HEAD = f"""\
#$ -S /bin/bash -cwd -j y -v {",".join(ENVIRON)}
trap 'echo "the script ends with $?"' EXIT
"""
HOSTFILE = 'sed "s/^/hostfile: /" "$PE_HOSTFILE"\n'


class Folder(clusterscripts.Folder):
    """A folder in alice's home, and what she does there on the login host."""

    tell = TELL
    from_stdin = "qsub -terse -v PYTHONPATH"

    def qsub(self, script: str, *options: str, head: str = HEAD) -> Job:
        """Hand over a script: its text, or the name of a file that is there. head: the first lines of a text."""
        text, name = (f"#!/bin/bash\n{head}{script}\n", ()) if "\n" in script else (None, (script,))
        said = self.run("qsub", "-terse", *(("-N", "job") if text else ()), *options, *name, stdin=text)
        return Job(self, re.split(r"[.\s]", said)[0])  # 12.1-3:1 where it is an array

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
    """A job that was handed over with qsub."""

    @property
    def output(self) -> str:
        files = sorted(
            path for path in self.folder.path.glob("*.o*") if re.search(rf"\.o{self.id}(\.\d+)?$", path.name)
        )
        return "".join(path.read_text(errors="replace") for path in files)

    def states(self) -> list[tuple[str, str]]:
        """Job and state, such as r or Eqw, of what qstat shows of it."""
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
        """The exit codes that scripts with HEAD have told."""
        return re.findall(r"the script ends with (\d+)", self.output)

    @property
    def slots(self) -> dict[str, int]:
        """Host -> slots, in the order of the PE_HOSTFILE that a script with HOSTFILE has shown."""
        found: Counter[str] = Counter()
        for host, count in re.findall(r"hostfile: (\S+) (\d+)", self.output):
            found[host] += int(count)
        return dict(found)

    def layout(self) -> dict[str, int]:
        """Host -> training tasks of its last run, in the order of their ranks."""
        tasks = told("\n".join(clusterscripts.logs(self.folder.runs(self.id)[-1])))
        ranked = sorted((int(task.rank.split("/")[0]), task.host) for task in tasks.values() if task.rank[0] != "/")
        return dict(Counter(host for _, host in ranked))
