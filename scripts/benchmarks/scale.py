"""A whole attempt on many simulated hosts: the launcher is real, its agents say what real ones say.

From the start to the rendezvous, half a minute in which nothing happens, the failure of a task, and the end. The run
directory is on a local disk, and what is done to its files is counted from outside.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from measure import scratch, table
from scale_files import FileWatch

SIZES = (16, 64, 256, 1024, 4096)  # the last one where so many files may be open
TASKS = 8
_FILES = 3  # open files of the launcher for each host
_LOOK = 0.05  # seconds between two looks at the files
_LIMIT = 300.0  # seconds for one attempt

Marks = Mapping[str, Mapping[str, float]]


class Result:
    """What was measured with one number of hosts.

    Args:
        hosts: The number of hosts.
        marks: What scale_job.py has noted.
        files: (time, operations until then) of the run directory.
        memory: The launcher's peak, in MiB.
        verdict: When the verdict was written, by the monotonic clock.
        summary: Bytes of the record of all hosts.
    """

    def __init__(
        self, hosts: int, marks: Marks, files: list[tuple[float, int]], memory: float, verdict: float, summary: int
    ) -> None:
        self.hosts = hosts
        self._marks = marks
        self._files = files
        self.memory = memory
        self.summary = summary
        begin, failed = self._at("begin"), self._at("agents failed")
        self.seconds = {
            "plan": self._at("agents plan") - begin,
            "rendezvous": self._at("agents rendezvous") - begin,
            "all states": self._at("known") - begin,
            "last told": self._at("agents stop") - failed,
            "verdict": verdict - failed,
        }
        self.idle = self._at("idle") - self._at("settled")

    def _at(self, phase: str) -> float:
        return self._marks[phase]["at"]

    def of(self, what: str, first: str, last: str) -> float:
        """How much of something was used or sent between the ends of two phases."""
        return self._marks[last][what] - self._marks[first][what]

    def files(self, first: str, last: str) -> int:
        """The operations on files between the ends of two phases."""
        return self._until(last) - self._until(first)

    def _until(self, phase: str) -> int:
        if phase == "end":
            return self._files[-1][1]
        return max(count for when, count in self._files if when <= self._at(phase))


def main() -> None:
    results = []
    with scratch() as folder:
        for size in SIZES:
            if _FILES * size > 0.9 * resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
                print(f"Not with {size} hosts: that needs {_FILES * size} open files (ulimit -Hn)")
            else:
                results.append(once(folder, size))
    cores = len(os.sched_getaffinity(0))
    report(results, f"{cores} cores, which simulate the agents as well")


def once(folder: Path, size: int) -> Result:
    """Run one attempt."""
    run, marks = folder / f"run-{size}", folder / f"marks-{size}"
    run.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("scale_job.py")), str(run), str(size), str(marks)]
    log = folder / f"log-{size}"
    with log.open("wb") as output:
        job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
        assert job.stdin is not None and job.stdout is not None
        if job.stdout.readline() != b"ready\n":
            raise SystemExit(f"the launcher did not start:\n{log.read_text()}")
        watch, files = FileWatch(run), [(time.monotonic(), 0)]
        try:
            deadline = time.monotonic() + _LIMIT
            job.stdin.write(b"\n")
            job.stdin.flush()
            running = True
            while running:
                running = job.poll() is None
                counts, when = watch.look(), time.monotonic()
                files.append((when, sum(counts.values()) - counts["created"]))  # what is created is opened as well
                time.sleep(_LOOK)
                if time.monotonic() > deadline:
                    raise SystemExit(f"{size} hosts: no end after {_LIMIT:.0f} s:\n{log.read_text()[-2000:]}")
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
            watch.close()
    if not marks.exists():
        raise SystemExit(f"{size} hosts: the launcher has failed:\n{log.read_text()[-2000:]}")
    found = json.loads(marks.read_text())
    ended = json.loads((run / "attempt-1/verdict.json").read_text())
    if ended["cause"] is None or ended["cause"]["task"] != "worker:0":
        raise SystemExit(f"{size} hosts: not the failure that was ordered: {ended}")
    attempt = run / "attempt-1"
    verdict = (attempt / "verdict.json").stat().st_mtime - time.time() + time.monotonic()
    return Result(size, found, files, found["memory"]["MiB"], verdict, (attempt / "state/hosts.json").stat().st_size)


def report(results: list[Result], where: str) -> None:
    """Print what was measured."""
    print(f"One attempt on simulated hosts with {TASKS} tasks each, on {where}")
    print("\nSeconds from the start until the last host or the launcher has them; from a failure until all know it")
    table(
        [["hosts", *results[0].seconds], *([one.hosts, *(f"{s:.2f}" for s in one.seconds.values())] for one in results)]
    )

    print("\nThe launcher: CPU seconds until all states are known, and for the end; share of a core while idle; memory")
    rows: list[list[object]] = [["hosts", "start CPU s", "end CPU s", "idle % of a core", "peak MiB"]]
    for one in results:
        cpu = f"{one.of('cpu', 'begin', 'known'):.2f}", f"{one.of('cpu', 'idle', 'end'):.2f}"
        rows.append([one.hosts, *cpu, f"{100 * one.of('cpu', 'settled', 'idle') / one.idle:.2f}", f"{one.memory:.0f}"])
    table(rows)

    print("\nThe launcher's messages and MB, sent and received: start, idle per second (kB), end")
    rows = [["hosts", "sent", "MB", "received", "MB", "idle sent/s", "kB/s", "received/s", "kB/s", "end", "MB"]]
    for one in results:
        start = [one.of(what, "begin", "known") for what in ("sent", "sent B", "received", "received B")]
        idle = [one.of(what, "settled", "idle") / one.idle for what in ("sent", "sent B", "received", "received B")]
        end = [one.of(f"sent{unit}", "idle", "end") + one.of(f"received{unit}", "idle", "end") for unit in ("", " B")]
        row = [one.hosts, f"{start[0]:.0f}", f"{start[1] / 1e6:.2f}", f"{start[2]:.0f}", f"{start[3] / 1e6:.2f}"]
        row += [f"{idle[0]:.1f}", f"{idle[1] / 1e3:.1f}", f"{idle[2]:.1f}", f"{idle[3] / 1e3:.1f}"]
        rows.append([*row, f"{end[0]:.0f}", f"{end[1] / 1e6:.2f}"])
    table(rows)

    print("\nOperations on the run directory, of all processes: files opened, folders listed, renamed, deleted")
    rows = [["hosts", "start", "a host", "idle in all", "idle /s", "idle /host/s", "aim", "end", "hosts.json kB"]]
    for one in results:
        opened, while_idle = one.files("begin", "known"), one.files("settled", "idle")
        rate = while_idle / one.idle
        row = [one.hosts, opened, f"{opened / one.hosts:.1f}", while_idle, f"{rate:.2f}", f"{rate / one.hosts:.5f}"]
        rows.append([*row, "0.2 or less", one.files("idle", "end"), f"{one.summary / 1e3:.0f}"])
    table(rows)

    print("\nGrowth from size to size, with four times the hosts; aim: x 4 or less")
    rows = [["", *(f"{a.hosts} to {b.hosts}" for a, b in pairwise(results))]]
    for name, values in grown(results):
        rows.append([name, *(f"x {b / a:.1f}" if a else "" for a, b in pairwise(values))])
    table(rows)
    print("  * every host is told the cluster, host:port of every task: that grows by the square, 16 times")


def grown(results: list[Result]) -> list[tuple[str, list[float]]]:
    """(name, value of each result) of what may grow with the hosts."""
    return [
        ("to all states", [one.seconds["all states"] for one in results]),
        ("failure to last told", [one.seconds["last told"] for one in results]),
        ("failure to verdict", [one.seconds["verdict"] for one in results]),
        ("CPU of the start", [one.of("cpu", "begin", "known") for one in results]),
        ("CPU while idle", [100 * one.of("cpu", "settled", "idle") / one.idle for one in results]),
        ("memory", [one.memory for one in results]),
        ("bytes sent at the start *", [one.of("sent B", "begin", "known") / 1e6 for one in results]),
        ("file operations, idle", [float(one.files("settled", "idle")) / one.idle for one in results]),
    ]
