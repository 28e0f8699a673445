"""Seconds from a fault until no process of the job is left, with each scheduler; on test beds as seen from outside.

Jobs of 16 tasks, on the four hosts of a bed, that heed SIGTERM; all hosts share this machine's cores.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from cluster import FOLDER, ROOT, Cluster, test_bed, tool
from marks import EACH, HOSTS, TASKS
from measure import scratch, table
from sge_ways import PE

REQUESTS = {  # scheduler -> the request
    "slurm": (f"--nodes={HOSTS}", f"--tasks-per-node={EACH}", "--native=--no-requeue"),
    "sge": (f"--pe={PE}", f"--slots={TASKS}", "--native=-r n"),
}
NAMES = {"local": "local", "slurm": "Slurm", "sge": "Grid Engine"}
AIMS = {"local": 3.0, "slurm": 3.0, "sge": 5.0}  # seconds
ROUNDS = 5
TIMEOUT = 10.0  # heartbeat_timeout where a link is cut, in seconds
TASK, AGENT, LAUNCHER, LINK = "a task is killed", "an agent is killed", "the launcher is killed", "a link is cut"
_COMMAND = ("sleep", "1000")
_SETTLE = 1.0  # seconds for the start to finish
_LIMIT = 120.0


def main() -> None:
    print(f"From a fault until no process of the job is left: {TASKS} tasks, median of {ROUNDS}")
    rows = [["", "s", "from", "to", "aim"]]
    for scheduler, found in (("local", _local()), *((kind, _on_bed(kind)) for kind in REQUESTS)):
        for fault, seconds in found.items():
            aim = AIMS[scheduler] + (TIMEOUT if fault == LINK else 0.0)
            figures = [f"{value:.2f}" for value in (statistics.median(seconds), min(seconds), max(seconds))]
            rows.append([f"{NAMES[scheduler]}: {fault}", *figures, f"{aim:g} or less"])
    table(rows)
    print(f"A link is cut once, with a heartbeat_timeout of {TIMEOUT:g} s; nobody is left on either side of it.")


def _local() -> dict[str, list[float]]:
    """Fault -> seconds of each round, with the local scheduler."""
    with scratch() as folder:
        return {fault: [_here(folder, fault) for _ in range(ROUNDS)] for fault in (TASK, AGENT, LAUNCHER)}


def _here(folder: Path, fault: str) -> float:
    import gridtf
    from gridtf.host.procfs import alive, descendants, start_time

    spec = gridtf.JobSpec(
        command=_COMMAND,
        name="fault",
        scheduler="local",
        tasks={"worker": gridtf.TaskSpec(count=TASKS)},
        tasks_per_node=TASKS,
        gpus_per_task=0,
        run_root=str(folder / "runs"),
    )
    job = gridtf.submit(spec)
    _, victim = _process(job.run_dir, fault)
    runner = int(job.id.partition(".")[0])
    family = [(pid, start_time(pid)) for pid in (runner, *descendants(runner))]
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while any(alive(pid, started) for pid, started in family):
        time.sleep(0.005)
    return time.monotonic() - begin


def _on_bed(kind: str) -> dict[str, list[float]]:
    """Fault -> seconds of each round, on a test bed whose shared folder goes over the hosts' links."""
    with test_bed(kind, {}, "--shared=remote") as bed:
        found = {fault: [_there(bed, kind, fault) for _ in range(ROUNDS)] for fault in (TASK, AGENT, LAUNCHER)}
        found[LINK] = [_there(bed, kind, LINK)]
        return found


def _there(bed: Cluster, kind: str, fault: str) -> float:
    gridtf = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "gridtf")
    options = [f"--scheduler={kind}", *REQUESTS[kind], f"--run-root={FOLDER}/runs", "--name=fault"]
    options += [f"--heartbeat-timeout={TIMEOUT:g}"] * (fault == LINK)
    answer = json.loads(bed.on_login(*gridtf, "submit", "--json", *options, "--", *_COMMAND))
    host, pid = _process(bed.folder / Path(answer["run_dir"]).relative_to(FOLDER), fault)
    kill = partial(os.kill, bed.outer_pid(host, pid), signal.SIGKILL)
    act = kill if fault != LINK else partial(tool, kind, "cut", host)
    begin = time.monotonic()
    act()
    while left := bed.processes():
        if time.monotonic() - begin > _LIMIT:
            raise SystemExit(f"{NAMES[kind]}, {fault}: processes are left after {_LIMIT:g} s: {left}")
        time.sleep(0.005)
    return time.monotonic() - begin


def _process(run: Path, fault: str) -> tuple[str, int]:
    """Wait until all tasks of a job run; returns host and process id of what a fault befalls, not on the first host."""
    from gridtf.run.rundir import RunDir, read_record

    end = time.monotonic() + _LIMIT
    while True:
        attempt = RunDir(run).latest()
        hosts = (read_record(attempt.summary) or {}).get("hosts", {}) if attempt else {}
        states = [task["state"] for host in hosts.values() for task in host["tasks"].values()]
        if states == ["RUNNING"] * TASKS:
            break
        if time.monotonic() > end:
            raise SystemExit(f"not all tasks run after {_LIMIT:g} s: {states}")
        time.sleep(0.1)
    time.sleep(_SETTLE)
    assert attempt is not None
    if fault == LAUNCHER:
        launcher = read_record(attempt.launcher) or {}
        return launcher["host"], launcher["pid"]
    host = max(hosts)
    tasks = hosts[host]["tasks"]
    return host, next(iter(tasks.values()))["pid"] if fault == TASK else hosts[host]["pid"]
