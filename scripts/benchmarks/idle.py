"""A job that does nothing, 16 tasks on four hosts: what it costs the file server, and the cores of its hosts.

On a Slurm and on a Grid Engine test bed, counted from outside, hence whatever gridtf is made of: operations in the
whole shared folder, of all processes together, and CPU time of all processes but tasks and the scheduler's own.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from cluster import FOLDER, ROOT, Cluster, test_bed
from marks import EACH, HOSTS, TASKS
from measure import table
from operations import Watch
from sge_ways import PE

BEDS = {  # scheduler -> the request
    "slurm": (f"--nodes={HOSTS}", f"--tasks-per-node={EACH}"),
    "sge": (f"--pe={PE}", f"--slots={TASKS}"),
}
SETTLE, PERIOD = 15.0, 60.0  # seconds
OPERATIONS, CPU = 1.0, 10.0  # a second; seconds an hour
_TASK = "sleep"
_NOT_GRIDTF = {_TASK, "srun", "qrsh", "qrsh_starter"}
_LIMIT = 120.0


def main() -> None:
    for kind, request in BEDS.items():
        with test_bed(kind, {}) as bed:
            _submit(bed, kind, request)
            time.sleep(SETTLE)
            counts, used = _measure(bed)
        print(f"\nAn idle job of {TASKS} tasks on {HOSTS} hosts, for {PERIOD:g} s: {kind}")
        rows = [["", "", "aim"]]
        rows += [[f"{name} a second", f"{count / PERIOD:.2f}", ""] for name, count in counts.items()]
        rows.append(["operations a second, in all", f"{sum(counts.values()) / PERIOD:.2f}", f"{OPERATIONS:g} or less"])
        rows.append(["CPU-seconds an hour", f"{used * 3600 / PERIOD:.1f}", f"{CPU:g} or less"])
        table(rows)


def _submit(bed: Cluster, kind: str, request: tuple[str, ...]) -> None:
    """Submit the job, and wait until all its tasks run."""
    gridtf = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "gridtf")
    options = (f"--scheduler={kind}", *request, f"--run-root={FOLDER}/runs", "--name=idle")
    bed.on_login(*gridtf, "submit", *options, "--", _TASK, "1000")
    end = time.monotonic() + _LIMIT
    while sum(_name(pid) == _TASK for pid in bed.processes()) < TASKS:
        if time.monotonic() > end:
            logs = "".join(path.read_text(errors="replace") for path in bed.folder.glob("runs/*/job.log"))
            raise SystemExit(f"not all tasks run after {_LIMIT:g} s: {logs}")
        time.sleep(0.1)


def _measure(bed: Cluster) -> tuple[dict[str, int], float]:
    """Operation -> count, and the CPU-seconds used, in PERIOD."""
    with Watch(bed.shared) as watch:
        before = _used(bed)
        counts = watch.count(PERIOD)
        return counts, _used(bed) - before


def _used(bed: Cluster) -> float:
    """The CPU-seconds that gridtf's processes have used so far."""
    return sum(cpu_seconds(pid) for pid in bed.processes() if _name(pid) not in _NOT_GRIDTF)


def cpu_seconds(pid: int) -> float:
    """The CPU-seconds of a process, all its threads, and its children that have ended; 0 when it is gone.

    Its own come from schedstat, in nanoseconds (kernel: Documentation/scheduler/sched-stats.rst): an hour's ten seconds
    are too few for the hundredths in stat, which only the children are taken from (proc(5): cutime, cstime).
    """
    own = children = 0.0
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = (int(fields[13]) + int(fields[14])) / 100
        threads = Path(f"/proc/{pid}/task").iterdir()
        own = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    return own + children


def _name(pid: int) -> str:
    """The name of a process's program; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
