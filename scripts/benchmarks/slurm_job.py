"""python slurm_job.py launch|many|laggy|submit FOLDER: run by scripts/bench slurm on its hosts, as an ordinary user.

All but submit are scripts of jobs on four hosts; submit runs on the login host.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import rounds
from marks import EACH, HOSTS, MANY
from rounds import await_that, gridtf, output
from slurm_ways import BARE, FLOOR, KILLED, PASTED, TORCHRUN, SlurmWays
from ways import GRIDTF, MPIRUN, WORLD

LAUNCHED = (FLOOR, BARE, PASTED, MPIRUN, GRIDTF, WORLD, TORCHRUN)
TO_KILL = (KILLED, MPIRUN, GRIDTF)


def launch(folder: Path) -> None:
    job = rounds.Job(SlurmWays(folder), _settle)
    job.launch(LAUNCHED, whole={FLOOR}, seldom={TORCHRUN})  # which takes much longer
    job.to_be_killed(TO_KILL)


def many(folder: Path) -> None:
    rounds.Job(SlurmWays(folder, MANY), _settle).launch((BARE, GRIDTF), rounds=rounds.FEW, name="many")


def laggy(folder: Path) -> None:
    rounds.Job(SlurmWays(folder), _settle).launch((GRIDTF,), name="laggy")


def submit(folder: Path) -> None:
    """Submit jobs that are held, and cancelled after the measurement."""
    script = folder / "job.sh"
    options = ("slurm", f"--nodes={HOSTS}", f"--tasks-per-node={EACH}", "--native=--hold")
    script.write_text(output(gridtf("render", *options)))
    ways = {
        "sbatch": ["sbatch", "--parsable", "--output=/dev/null", str(script)],
        "python": [sys.executable, "-c", "pass"],
        "jinja2": [sys.executable, "-c", "import jinja2"],
        "test": ["sbatch", "--test-only", str(script)],
        "sinfo": ["sinfo", "--noheader"],
        "render": gridtf("render", *options),
        GRIDTF: gridtf("submit", *options),
    }
    rounds.submit(folder, ways, _cancel_held)


def _cancel_held() -> None:
    output(["scancel", f"--user={os.environ['USER']}", "--state=PENDING"])


def _settle() -> None:
    """Wait until Slurm has cleaned up after the steps: the next one would wait for their CPUs."""
    steps = ["squeue", "--noheader", "--steps", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%i"]
    await_that(
        lambda: all(step.endswith((".batch", ".extern")) for step in output(steps).split()), "a step does not end"
    )
    time.sleep(0.1)


if __name__ == "__main__":
    verb, where = sys.argv[1:]
    {"launch": launch, "many": many, "laggy": laggy, "submit": submit}[verb](Path(where))
