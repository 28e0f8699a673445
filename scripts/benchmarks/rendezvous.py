"""Rendezvous of many simulated hosts: from the first host record to the last host that has its tasks' TF_CONFIG.

One process is the launcher; as many processes as there are cores simulate the hosts, each host with its own record, its
own polling (with the agent's pauses) and its own reading of the rendezvous file. Only the ports are invented.
"""

from __future__ import annotations

import heapq
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from measure import scratch, table

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.run.rundir import Attempt

SIZES = (16, 64, 256, 1024)
TASKS = 8
ROUNDS = 5
NONCE = "bench"
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.002, 1.3, 0.25  # the agent's and the launcher's


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    rows: list[list[object]] = [["hosts", "tasks", "gathered s", "all know s", "growth", "aim", "a host's plan ms"]]
    medians: list[float] = []
    with scratch() as folder:
        for size in SIZES:
            rounds = [once(folder / f"{size}-{number}", size, cores) for number in range(ROUNDS)]
            gathered, known, plan = (statistics.median(times) for times in zip(*rounds, strict=True))
            growth = f"x {known / medians[-1]:.1f}" if medians else ""
            aim = "under 2 s" if size == SIZES[-1] else ""
            rows.append([size, size * TASKS, f"{gathered:.3f}", f"{known:.3f}", growth, aim, f"{plan * 1000:.1f}"])
            medians.append(known)
    print(f"Rendezvous of simulated hosts on {cores} cores, median of {ROUNDS}")
    table(rows)
    print(f"  from {SIZES[0]} to {SIZES[-1]} hosts: x {SIZES[-1] // SIZES[0]}, time x {medians[-1] / medians[0]:.0f}")


def once(folder: Path, size: int, cores: int) -> tuple[float, float, float]:
    """Seconds until the launcher has all records, until all hosts know, and for one host to read the plan."""
    from gridtf.bootstrap import placement
    from gridtf.bootstrap.rendezvous import AttemptPlan, read_plan
    from gridtf.jobspec.request import resolve
    from gridtf.jobspec.spec import JobSpec
    from gridtf.run.rundir import RunDir
    from gridtf.schedulers.api import Allocation, Host

    folder.mkdir()
    attempt = RunDir(folder).new_attempt()
    spec = JobSpec(command=("true",), tasks_per_node=TASKS)
    hosts = {f"n{number:04}": f"10.{number // 256}.{number % 256}.1" for number in range(size)}
    request = resolve(spec, "local", memory=False)
    tasks = placement.place(Allocation(tuple(Host(name, TASKS) for name in hosts)), request)
    AttemptPlan(attempt, NONCE, "1", spec, request, hosts, tasks, "python", folder).write()

    begin = time.monotonic()
    assert read_plan(attempt.run, attempt.number, NONCE) is not None
    reading = time.monotonic() - begin

    go = time.monotonic() + 0.05 + size / 5000  # all simulating processes have been forked by then
    players = [play(attempt, list(itertools.islice(hosts.items(), core, None, cores)), go) for core in range(cores)]
    time.sleep(max(0.0, go - time.monotonic()))
    begin = time.monotonic()
    gather(attempt, tasks, hosts)
    gathered = time.monotonic() - begin
    for pid in players:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"a process that simulates hosts ended with {status}"
    return gathered, time.monotonic() - begin, reading


def gather(attempt: Attempt, tasks: Sequence[PlacedTask], hosts: dict[str, str]) -> None:
    """Gather the hosts' records and publish the rendezvous, as the launcher does."""
    from gridtf.bootstrap import rendezvous

    collector = rendezvous.Collector(attempt, NONCE, hosts)
    pause = FIRST_PAUSE
    while not collector.poll():
        time.sleep(pause)
        pause = min(pause * GROWTH, LONGEST_PAUSE)
    rendezvous.publish(attempt, "1", NONCE, rendezvous.merge(tasks, collector.records))


def play(attempt: Attempt, hosts: list[tuple[str, str]], go: float) -> int:
    """Fork a process that simulates these hosts from the time ``go`` on; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        time.sleep(max(0.0, go - time.monotonic()))
        be(attempt, hosts)
        code = 0
    finally:
        os._exit(code)


def be(attempt: Attempt, hosts: list[tuple[str, str]]) -> None:
    from gridtf.bootstrap import rendezvous
    from gridtf.run.rundir import write_record

    queue: list[tuple[float, float, str]] = []  # time of the next poll, the pause after it, host
    for name, address in hosts:
        first = int(name[1:]) * TASKS
        ports = {f"worker:{first + task}": 20000 + task for task in range(TASKS)}
        record = {"nonce": NONCE, "host": name, "address": address, "ports": ports, "master_port": 30000}
        write_record(attempt.host_record(name), record)
        heapq.heappush(queue, (time.monotonic(), FIRST_PAUSE, name))
    while queue:
        when, pause, name = heapq.heappop(queue)
        time.sleep(max(0.0, when - time.monotonic()))
        meeting = rendezvous.read(attempt, NONCE)
        if meeting is None:
            heapq.heappush(queue, (time.monotonic() + pause, min(pause * GROWTH, LONGEST_PAUSE), name))
            continue
        first = int(name[1:]) * TASKS
        for task in range(TASKS):
            meeting.config("worker", first + task)
