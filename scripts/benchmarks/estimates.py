"""What `gridtf when` says on a filled Slurm test bed, against when Slurm starts the job.

Each bed is filled by a row of the table below; then jobs are asked about and submitted, one after another. An estimate
is right within a minute, or a fifth of the wait. BEDS="holes gpus" takes some rows alone, VERSION=20.11 another Slurm.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from cluster import ROOT, Cluster, test_bed, tool
from measure import table

_VERSION = os.environ.get("VERSION", "24.11")
_NEAR, _SHARE = 60.0, 0.2  # seconds; of the wait
_PLANNED = 8.0  # seconds until backfill has planned what waits
_ALL = "-N 4 --exclusive"
# Name -> the jobs that fill the bed (options of sbatch, and seconds for which the job sleeps in place of its walltime),
# commands of root before them, and what is asked about: options of gridtf, which sbatch knows as well; after "hole" a
# job that fits what the jobs before it leave.
_Row = tuple[Sequence[tuple[str, int]], Sequence[str], Sequence[str]]
_FILLED: Mapping[str, _Row] = {
    "holes": (
        [("-N 3 --exclusive -t 4", 0), (f"{_ALL} -t 2", 0), (f"{_ALL} -t 1", 0)],
        [],
        ["hole -N 1 -t 1", "hole -N 1 -t 2", "-N 1 -t 6", "-N 2 -t 1", "hole -N 1 -t 1", "-N 3 -t 1"],
    ),
    "shared": (
        [("-N 4 --ntasks-per-node=6 -t 3", 0), ("-N 4 --ntasks-per-node=6 -t 2", 0)],
        [],
        ["hole -N 1 -c 2 -t 2", "hole -N 2 -c 2 -t 1", "-N 1 -c 3 -t 4", "-N 2 -c 2 -t 5", "-N 4 -c 8 -t 1"],
    ),
    "gpus": (
        [("-N 4 --gpus-per-node=3 -t 3", 0), ("-N 2 --gpus-per-node=4 -t 2", 0)],
        [],
        [
            *("hole -N 1 --gpus-per-node=1 -t 2", "hole -N 1 --gpus-per-node=1 -t 1", "-N 2 --gpus-per-node=2 -t 1"),
            *("-N 4 --gpus-per-node=2 -t 1", "hole -N 1 -t 2", "-N 1 --gpus-per-node=4 -t 1"),
        ],
    ),
    "priorities": (
        [(f"{_ALL} -t 2", 0), ("-N 2 --exclusive -t 2 --nice=50", 0), ("-N 3 --exclusive -t 1", 0)],
        [],
        ["-N 1 -t 1", "-N 2 -t 1", "-N 1 -t 2", "-N 4 -t 1", "-N 1 -t 1"],
    ),
    "array": (
        [("-N 2 --exclusive -t 4", 0), ("-N 2 --exclusive -t 1 --array=0-3", 0), (f"{_ALL} -t 1", 0)],
        [],
        ["-N 1 -t 1", "-N 2 -t 1", "-N 1 -t 3", "-N 4 -t 1"],
    ),
    "reservation": (
        [("-N 2 --exclusive -t 2", 0)],
        ["create reservation reservationname=m starttime=now+4minutes duration=2 users=root nodes=n[1-4] flags=maint"],
        ["hole -N 1 -t 2", "hole -N 1 -t 3", "-N 1 -t 5", "-N 3 -t 1", "-N 2 -t 5"],
    ),
    "preemption": (
        [(f"-p scavenge {_ALL} -t 4", 0), ("-p gpu -N 2 --exclusive -t 2", 0), ("-p gpu -N 4 --exclusive -t 1", 0)],
        [],
        [
            "hole -p gpu -N 1 -t 1",
            "hole -p gpu -N 2 -t 1",
            "-p gpu -N 1 -t 4",
            "-p scavenge -N 1 -t 1",
            "-p gpu -N 2 -t 1",
        ],
    ),
    "partitions": (
        [("-p gpu -N 3 --exclusive -t 3", 0), (f"-p short {_ALL} -t 2", 0), ("-p cpu -N 1 -n 8 -t 2", 0)],
        [],
        [
            *("hole -p gpu -N 1 -t 1", "hole -p short -N 1 -t 1", "-p cpu -N 1 -t 1", "-p short -N 1 -t 5"),
            *("-p gpu -N 2 -t 1", "-p cpu -N 1 -c 8 -t 1"),
        ],
    ),
    "early": (
        [("-N 3 --exclusive -t 5", 200), (f"{_ALL} -t 2", 60)],
        [],
        ["hole -N 1 -t 2", "-N 1 -t 5", "-N 2 -t 1"],
    ),
}


def main() -> None:
    rows: list[list[object]] = []
    for name in os.environ.get("BEDS", " ".join(_FILLED)).split():
        with test_bed("slurm", {}, f"--version={_VERSION}") as bed:
            rows += _measure(bed, name, *_FILLED[name])
    right, holes = sum(bool(row[-1]) for row in rows), [row for row in rows if row[2]]
    print(f"\nEstimates on filled beds of Slurm {_VERSION}, in seconds: {right} of {len(rows)} right; ", end="")
    print(f"{sum(row[3] == 'now' for row in holes)} of {len(holes)} holes said now")
    table([["bed", "job", "hole", "told", "waited", "right"], *rows])


def _measure(
    bed: Cluster, name: str, jobs: Sequence[tuple[str, int]], before: Sequence[str], asked: Sequence[str]
) -> list[list[object]]:
    for command in before:
        tool("slurm", "exec", "--root", "ctl", "scontrol", *command.split())
    for options, seconds in jobs:
        _sbatch(bed, options, seconds)
    told: dict[str, tuple[str, float, float | None]] = {}
    for row in asked:
        time.sleep(_PLANNED)
        options = row.removeprefix("hole ")
        words = options if "-p " in options else f"-p gpu {options}"
        at, start = time.time(), _told(bed, words)
        told[_sbatch(bed, words, 0)] = row, at, start
    starts: dict[str, float] = {}  # jobs that have ended are forgotten after five minutes
    squeue = ("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "--states=all", "-o", "%i %t %S")
    while {*told} - {*starts}:
        shown = [line.split() for line in bed.on_login(*squeue).splitlines()]
        starts |= {job: float(start) for job, state, start in shown if state not in ("PD", "RQ", "CF")}
        time.sleep(2)
    rows: list[list[object]] = []
    for job, (row, at, start) in told.items():
        waited, wait = starts[job] - at, None if start is None else start - at
        near = wait is not None and abs(wait - waited) <= max(_NEAR, _SHARE * waited)
        said = "unknown" if wait is None else "now" if wait < 5 else f"{wait:.0f}"
        hole = "yes" * row.startswith("hole")
        rows.append([name, row.removeprefix("hole "), hole, said, f"{waited:.0f}", "yes" * near])
    return rows


def _sbatch(bed: Cluster, options: str, seconds: int) -> str:
    """Submit a job that sleeps for so long, or until just before its walltime; returns its id."""
    words = options.split()
    minutes = int(words[words.index("-t") + 1])
    command = f"exec sleep {seconds or minutes * 60 - 2}"
    return bed.on_login("sbatch", "--parsable", "--output=/dev/null", *words, f"--wrap={command}").strip()


def _told(bed: Cluster, words: str) -> float | None:
    """When gridtf says that a job would start; None: only the latest moment, or nothing."""
    options = words.replace("-c ", "--cpus-per-task ").split()
    gridtf = (
        "env",
        f"PYTHONPATH={ROOT}",
        "XDG_RUNTIME_DIR=/nowhere",
        "TMPDIR=/nowhere",
        sys.executable,
        "-m",
        "gridtf",
    )
    (row,) = json.loads(bed.on_login(*gridtf, "when", "--json", "--scheduler=slurm", *options))
    return None if row["at_most"] or row["start"] is None else float(row["start"])
