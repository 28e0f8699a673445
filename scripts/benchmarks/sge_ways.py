"""The ways to start tasks in a Grid Engine job on four hosts, each as a command. Runs on the test bed's hosts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from marks import EACH, HOSTS
from ways import MPIRUN, Ways

PE = "rr"
FLOOR, NOSTDIN = "floor", "nostdin"
FANNED, EACH_TASK = "fanned", "each-task"

# $1: number of tasks per host; then options of qrsh, up to --, and a command. qrsh is not called in a loop that reads
# the hosts from standard input, which qrsh would read as well. `wait` alone returns 0, even where commands have failed.
_ON_ALL = r"""
count=$1 options=() started=() code=0
shift
while [[ $1 != -- ]]; do options+=("$1"); shift; done
shift
mapfile -t lines <"$PE_HOSTFILE"
for line in "${lines[@]}"; do
    for ((i = 0; i < count; i++)); do
        "$SGE_BINARY_PATH/qrsh" -inherit "${options[@]}" "${line%% *}" "$@" </dev/null &
        started+=($!)
    done
done
for pid in "${started[@]}"; do wait "$pid" || code=$?; done
exit "$code"
"""
_SEVERAL = r"""
count=$1 started=() code=0
shift
for ((i = 0; i < count; i++)); do "$@" & started+=($!); done
for pid in "${started[@]}"; do wait "$pid" || code=$?; done
exit "$code"
"""


class GridEngineWays(Ways):
    """As Ways; the commands are for a job's script."""

    def __init__(self, folder: Path, each: int = EACH) -> None:
        super().__init__(folder, each, scheduler="sge", pe=PE, slots=HOSTS * each)
        self._on_all = self.write("on_all.sh", _ON_ALL)
        self._several = self.write("several.sh", _SEVERAL)

    def other(self, way: str, task: list[str]) -> list[str]:
        if way == FLOOR:
            return self._qrsh(1, [], ["true"])
        if way == NOSTDIN:
            return self._qrsh(1, ["-nostdin"], ["true"])
        if way == FANNED:
            return self._qrsh(1, ["-nostdin"], ["bash", str(self._several), str(self.each), *task])
        if way == EACH_TASK:
            return self._qrsh(self.each, ["-nostdin"], task)
        assert way == MPIRUN, way
        return ["mpirun", "-np", str(HOSTS * self.each), *task]

    def _qrsh(self, count: int, options: list[str], command: list[str]) -> list[str]:
        words = map(shlex.quote, command)  # a shell on the other host parses them once more
        return ["bash", str(self._on_all), str(count), *options, "--", *words]


def commands() -> Path:
    """The folder of Grid Engine's own commands: those on the PATH may be a distribution's slow shell scripts."""
    return next(Path(os.environ["SGE_ROOT"], "bin").glob("*/qsub")).parent
