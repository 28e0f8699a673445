"""python sge_job.py launch|many|laggy|submit FOLDER: run by scripts/bench sge on its hosts, as an ordinary user.

All but submit are scripts of jobs on four hosts; submit runs on the login host.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import rounds
from marks import MANY, TASKS
from rounds import await_that, gridtf, output
from sge_ways import EACH_TASK, FANNED, FLOOR, NOSTDIN, PE, GridEngineWays, commands
from ways import GRIDTF, MPIRUN, WORLD

LAUNCHED = (FLOOR, NOSTDIN, FANNED, EACH_TASK, MPIRUN, GRIDTF, WORLD)
TO_KILL = (MPIRUN, GRIDTF)
DRMAA, QSUB = "drmaa", "qsub"  # how gridtf submits


def launch(folder: Path) -> None:
    job = rounds.Job(GridEngineWays(folder), _settle)
    job.launch(LAUNCHED, whole={FLOOR, NOSTDIN})
    job.to_be_killed(TO_KILL)


def many(folder: Path) -> None:
    rounds.Job(GridEngineWays(folder, MANY), _settle).launch((FANNED, GRIDTF), rounds=rounds.FEW, name="many")


def laggy(folder: Path) -> None:
    rounds.Job(GridEngineWays(folder), _settle).launch((GRIDTF,), name="laggy")


def submit(folder: Path) -> None:
    """Submit jobs that are held, and deleted after the measurement."""
    script = folder / "job.sh"
    options = ("sge", f"--pe={PE}", f"--slots={TASKS}", "--native=-h")
    script.write_text(output(gridtf("render", *options)))
    qsub = str(commands() / "qsub")
    ways = {
        "bare": [qsub, "-terse", "-o", "/dev/null", str(script)],
        "python": [sys.executable, "-c", "pass"],
        "jinja2": [sys.executable, "-c", "import jinja2"],
        "verify": [qsub, "-w", "v", str(script)],
        "render": gridtf("render", *options),
        **{way: ["env", f"GRIDTF_SGE_SUBMIT={way}", *gridtf("submit", *options)] for way in (DRMAA, QSUB)},
    }
    rounds.submit(folder, ways, _delete)


def _delete() -> None:
    output([str(commands() / "qdel"), "-u", os.environ["USER"]], may_fail=True)  # there may be no job


def _settle() -> None:
    """Wait until the qmaster lists no task of qrsh any more: their number per host is limited."""
    qstat = [str(commands() / "qstat"), "-xml", "-j", os.environ["JOB_ID"]]
    await_that(
        lambda: set(re.findall("<PET_id>(.*?)</PET_id>", output(qstat))) <= {"past_usage"}, "a task does not end"
    )
    time.sleep(0.1)


if __name__ == "__main__":
    verb, where = sys.argv[1:]
    {"launch": launch, "many": many, "laggy": laggy, "submit": submit}[verb](Path(where))
