"""Run directories with the records of a training that never ran: events, samples, logs, of any size, in no time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.run import jsonlines
from gridtf.run.rundir import Record, RunDir, write_record
from gridtf.states import JobState, TaskState
from tests.support.plans import NONCE, hosts, task_plan

BEGIN = 1_764_000_000.0
_GIB = 1 << 30


def make(
    path: Path,
    *,
    workers: int = 4,
    ps: int = 0,
    host_count: int = 2,
    gpus: int = 0,
    minutes: float = 10.0,
    interval: float = 5.0,
    state: str = JobState.COMPLETED,
    begin: float = BEGIN,
    lines: int = 20,
    reports: bool = True,
) -> RunDir:
    """Make the run directory of a job with one attempt; of a run directory that is there, the next attempt.

    Args:
        path: The run directory; the folder above it must exist.
        workers: Number of workers, placed on the hosts in turn.
        ps: Number of parameter servers.
        host_count: Number of hosts.
        gpus: GPUs of each host.
        minutes: How long the training took, or has taken so far.
        interval: Seconds between two samples.
        state: RUNNING, COMPLETED, or FAILED, where worker 0 failed at the end with exit code 1.
        begin: When it was submitted, in seconds since the epoch.
        lines: Lines that each task has printed.
        reports: Whether the tasks have called gridtf.progress.
    """
    roles = {"worker": {"count": workers}, **({"ps": {"count": ps}} if ps else {})}
    plan = task_plan(path, hosts(*([gpus or None] * host_count), slots=workers + ps), tasks=roles, name=path.name)
    run, attempt = plan.attempt.run, plan.attempt
    plan.write()
    if attempt.number == 1:
        _write_job(run, plan, begin)
    start, end = begin + 30, begin + 30 + minutes * 60
    names = [task.name for task in plan.tasks]
    where = {task.name: task.host for task in plan.tasks}
    ended = state != JobState.RUNNING
    happened = [
        {"time": begin, "event": "queued"},
        {"time": begin + 20, "event": "allocated", "hosts": list(plan.hosts)},
        *({"time": begin + 25, "event": "ready", "host": host} for host in plan.hosts),
        {"time": begin + 29, "event": "rendezvous"},
        *({"time": start, "event": "started", "task": name, "host": where[name]} for name in names),
    ]
    tasks: dict[str, Record] = {}
    for number, name in enumerate(names):
        failed = state == JobState.FAILED and name == "worker:0"
        how = TaskState.RUNNING if not ended else TaskState.FAILED if failed else TaskState.COMPLETED
        over = {"ended": end, "exit": int(failed), "signal": None}
        tasks[name] = {"state": str(how), "pid": 1000 + number, "started": start, **(over if ended else {})}
        if ended:
            happened.append({"event": "ended", "time": end, "task": name, "host": where[name], **_end(how, failed)})
    reason = "worker:0 on h0: exit code 1" if state == JobState.FAILED else "all training tasks have exited with 0"
    if ended:
        happened.append({"time": end, "event": "stopping", "text": reason})
        happened.append({"time": end + 1, "event": "verdict", "state": state, "text": reason})
    _write_lines(attempt.events, happened)
    count = int(minutes * 60 / interval)
    newest: dict[str, Record] = {}
    with attempt.samples.open("w") as file:
        file.write(jsonlines.head(NONCE))
        for number in range(count):
            for host in plan.hosts:
                mine = [name for name in names if where[name] == host]
                sample = _sample(host, mine, start + number * interval, number, count, gpus, reports=reports)
                newest[host] = sample
                file.write(jsonlines.line(sample))
    for name, record in tasks.items():
        sample = newest.get(where[name], {"tasks": {}})["tasks"].get(name, {})
        if "step" in sample:
            record["progress"] = {"step": sample["step"], "values": sample["values"], "time": end}
    summary = {
        host: {
            "host": host,
            "pid": 99,
            "gpus": {name: _gpus(names, where, name, gpus) for name in names if where[name] == host},
            "tasks": {name: tasks[name] for name in names if where[name] == host},
            **({"sample": newest[host]} if host in newest else {}),
        }
        for host in plan.hosts
    }
    write_record(attempt.summary, {"nonce": NONCE, "hosts": summary})
    running = {"phase": "running", "detail": f"{len(names)} tasks on {host_count} hosts"}
    phase = running if not ended else {"phase": "ended", "detail": reason}
    write_record(attempt.launcher, {"nonce": NONCE, "host": "h0", "pid": 98, "began": begin + 20, "time": end, **phase})
    times = []
    for name in names:
        text = [f"step {number} loss {1 / (number + 1):.4f} of {name}\n" for number in range(lines)]
        attempt.task_log(*_parts(name)).write_text("".join(text))
        pause = int((end - start) / max(1, lines) * 1000)
        then = [part for printed in text for part in (pause, len(printed))]
        times.append({"task": name, "time": start, "offset": 0, "then": then})
    _write_lines(attempt.log_times, times)
    if ended:
        cause = None
        if state == JobState.FAILED:
            log = attempt.task_log("worker", 0)
            tail = log.read_text().splitlines()[-3:]
            cause = {"task": "worker:0", "host": "h0", "exit": 1, "signal": None, "log": str(log), "tail": tail}
        verdict = {"state": state, "reason": reason, "hint": "", "cause": cause, "started": start, "ended": end + 1}
        write_record(attempt.verdict, {"nonce": NONCE, **verdict, "exit_code": int(state == JobState.FAILED)})
    return run


def describe(run: RunDir, sources: Mapping[str, str] = {}, origin: Mapping[str, str] = {}, **spec: object) -> RunDir:
    """Add to the specification of a job, and say where values came from; returns its run directory."""
    record = json.loads(run.job.read_text())
    described = {"spec": record["spec"] | spec, "sources": record["sources"] | sources, "origin": dict(origin)}
    write_record(run.job, {**record, **described}, mode=0o600)
    return run


def _write_job(run: RunDir, plan: AttemptPlan, begin: float) -> None:
    write_record(run.job, {"spec": plan.spec.to_dict(), "sources": {"name": "--name"}}, mode=0o600)
    named = {"scheduler": "local", "job_id": "4711", "name": run.path.name}
    write_record(run.submitted, {**named, "time": begin, "user": "ann", "host": "login1"})
    run.script.write_text("#!/bin/bash\nexec gridtf-bootstrap\n")
    run.log.write_text("gridtf: starting\n")


def _sample(host: str, names: list[str], time: float, number: int, count: int, gpus: int, *, reports: bool) -> Record:
    part = number / max(1, count)
    wave = 0.5 + 0.4 * math.sin(number / 7)
    tasks: dict[str, dict[str, object]] = {}
    for name in names:
        of_task: dict[str, object] = {"cpu": round(4 * wave, 3), "memory": int((1 + part) * _GIB), "read": 1e6 * wave}
        of_task |= {"written": 1000.0, "processes": 2, "threads": {"R": 3, "S": 40}}
        if reports and name.startswith("worker"):
            loss = round(2 * math.exp(-4 * part) + 0.05 * wave, 5)
            of_task |= {"step": number * 50, "values": {"loss": loss, "accuracy": 1 - loss / 3}, "rate": 10.0}
        tasks[name] = of_task
    devices = {
        str(index): {"use": round(95 * wave, 1), "memory": 60 * _GIB, "memory_total": 80 * _GIB, "power": 300 * wave}
        for index in range(gpus)
    }
    used = sum(float(str(task["cpu"])) for task in tasks.values())
    whole = {"cpus": 64, "cpu": used, "memory": 64 * _GIB, "memory_total": 256 * _GIB, "received": 1e5, "sent": 2e5}
    return {"time": time, "host": host, **whole, "gpus": devices, "tasks": tasks}


def _end(how: str, failed: bool) -> dict[str, object]:
    return {"state": str(how), "exit": int(failed), "signal": None}


def _gpus(names: list[str], where: dict[str, str], name: str, gpus: int) -> list[str]:
    mine = [one for one in names if where[one] == where[name] and one.startswith("worker")]
    return [str(mine.index(name))] if name in mine[:gpus] else []


def _parts(name: str) -> tuple[str, int]:
    kind, _, index = name.partition(":")
    return kind, int(index)


def _write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text(jsonlines.head(NONCE) + "".join(json.dumps(record) + "\n" for record in records))
