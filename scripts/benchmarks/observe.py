"""What it costs to see a job: samples, their records, `gridtf list` among 1,000 runs, fifty commands that watch a job.

On a Slurm test bed, from outside: a job of eight tasks a host, with samples and without them, then watchers of it whose
questions to the controller are counted.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster import FOLDER, ROOT, Cluster, test_bed
from idle import cpu_seconds
from measure import table
from operations import Watch

HOSTS, EACH = 4, 8
SETTLE, PERIOD = 20.0, 60.0  # seconds
RUNS, WATCHERS = 1000, 50
SHARE, OPERATIONS, LIST, QUESTIONS = 0.5, 1.1, 0.5, 300  # percent of a core; a ratio; seconds; in a minute
_TASK = ROOT / "scripts/benchmarks/observe_task.py"
_LIMIT = 180.0
_GRIDTF = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "gridtf")
_WATCHES = (("status", "--watch"), ("wait",), ("logs", "-f"))  # in turn


def main() -> None:
    rows = [["", "", "aim"]]
    with test_bed("slurm", {}) as bed:
        without, _ = _job(bed, "without", ["--sample-interval=0"])
        count, share = _job(bed, "with", [], watched=rows)
    rows.append([f"sampling, {EACH} tasks a host", f"{share:.2f} % of a core", f"{SHARE:g} or less"])
    rows.append(["file operations of gridtf, a host and second", f"{count:.2f}", ""])
    ratio = f"{count / without:.2f} times"
    rows.append(["the same with samples against without", ratio, f"{OPERATIONS:g} or less"])
    rows.append([f"gridtf list with {RUNS} runs", f"{_list():.2f} s", f"{LIST:g} or less"])
    print(f"\nSeeing a job of {HOSTS * EACH} tasks on {HOSTS} hosts, and {RUNS} runs")
    table(rows)


def _job(bed: Cluster, name: str, options: list[str], watched: list[list[str]] | None = None) -> tuple[float, float]:
    """Run a job.

    Args:
        bed: The test bed.
        name: The name of the job.
        options: Of gridtf submit.
        watched: To which the questions of the watchers are added; None: there are none.

    Returns:
        File operations of gridtf for a host in a second; CPU time of the samplers, in percent of a core of each host.
    """
    request = ("--scheduler=slurm", f"--nodes={HOSTS}", f"--tasks-per-node={EACH}", f"--run-root={FOLDER}/runs")
    bed.on_login(*_GRIDTF, "submit", *request, f"--name={name}", *options, "--", sys.executable, str(_TASK))
    end = time.monotonic() + _LIMIT
    while sum(_is_task(pid) for pid in bed.processes()) < HOSTS * EACH:
        if time.monotonic() > end:
            raise SystemExit(f"not all tasks run after {_LIMIT:g} s")
        time.sleep(0.2)
    time.sleep(SETTLE)
    samplers = _samplers(bed)
    with Watch(bed.shared) as watch:
        before = sum(map(cpu_seconds, samplers))
        count = sum(watch.count(PERIOD, ignored=".log").values())  # tasks write those themselves
        used = sum(map(cpu_seconds, samplers)) - before
    if watched is not None:
        asked = _questions(bed, name)
        watched.append([f"questions of {WATCHERS} watchers in a minute", str(asked), f"{QUESTIONS} or less"])
    bed.on_login(*_GRIDTF, "cancel", name)
    return count / PERIOD / HOSTS, used / PERIOD / HOSTS * 100


def _samplers(bed: Cluster) -> list[int]:
    """The processes that sample: children of agents that are in the session of the agent, as no task is."""
    tasks = [pid for pid in bed.processes() if _is_task(pid)]
    agents = {_fields(pid)[1] for pid in tasks}
    return [pid for pid in bed.processes() if (found := _fields(pid))[1] in agents and found[3] != str(pid)]


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, process group, session."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""] * 4


def _is_task(pid: int) -> bool:
    try:
        return _TASK.name in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _questions(bed: Cluster, name: str) -> int:
    """How often the controller is asked in a minute, while many commands watch the job."""
    folder = f"{FOLDER}/counting"
    bed.on_login("mkdir", folder)
    for program in ("squeue", "sacct", "scontrol"):
        text = f'#!/bin/sh\necho {program} >>{folder}/calls\nexec /usr/bin/{program} "$@"\n'
        bed.on_login("bash", "-c", f"cat >{folder}/{program} && chmod 755 {folder}/{program}", text=text)
    watchers = [shlex.join((*_GRIDTF, *_WATCHES[number % len(_WATCHES)], name)) for number in range(WATCHERS)]
    commands = "".join(f"PATH={folder}:$PATH {words} >/dev/null 2>&1 &\n" for words in watchers)
    bed.on_login("bash", "-c", f"{commands}sleep {PERIOD:g}\nkill $(jobs -p)\nwait")
    return len((bed.folder / "counting" / "calls").read_text().splitlines())


def _list() -> float:
    """Seconds that `gridtf list` takes among many runs that have ended, the best of five."""
    sys.path.insert(0, str(ROOT))
    from gridtf.run import registry
    from tests.support import recordedruns

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
        for number in range(RUNS):
            run = recordedruns.make(folder / f"run-{number}", minutes=0.5)
            submitted = {"scheduler": "local", "job_id": str(number), "name": run.path.name, "time": recordedruns.BEGIN}
            registry.add(run.path, submitted, environ)
        best = float("inf")
        for _ in range(5):
            begin = time.monotonic()
            command = [sys.executable, "-m", "gridtf", "list", "--all"]
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
            best = min(best, time.monotonic() - begin)
        return best
