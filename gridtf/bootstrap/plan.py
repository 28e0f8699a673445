"""The plan of an attempt: what the launcher decided and every agent reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gridtf.bootstrap.placement import PlacedTask
from gridtf.errors import RendezvousError
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, need_kind, read_record, shown, write_record

FORMAT = 1


@dataclass(frozen=True)
class TaskPlan:
    """hosts: name -> address that the other hosts reach it by. python: runs entry functions and served tasks.
    cwd: the working folder of the tasks."""

    attempt: Attempt
    nonce: str
    job_id: str
    scheduler: str
    spec: JobSpec
    hosts: dict[str, str]
    tasks: tuple[PlacedTask, ...]
    python: str
    cwd: Path

    def on(self, host: str) -> list[PlacedTask]:
        """The tasks of one host."""
        return self._by_host.get(host, [])

    @cached_property
    def _by_host(self) -> dict[str, list[PlacedTask]]:
        found: dict[str, list[PlacedTask]] = {}
        for task in self.tasks:
            found.setdefault(task.host, []).append(task)
        return found

    @cached_property
    def world_size(self) -> int:
        """How many tasks have a rank."""
        return sum(task.rank is not None for task in self.tasks)

    def write(self) -> None:
        record: Record = {
            "format": FORMAT,
            "job": {"id": self.job_id, "name": self.spec.title, "scheduler": self.scheduler},
            "attempt": self.attempt.number,
            "nonce": self.nonce,
            "hosts": self.hosts,
            "tasks": [task.to_dict() for task in self.tasks],
            "python": self.python,
            "cwd": str(self.cwd),
            "spec": self.spec.to_dict(),
        }
        # for its owner alone: the job's own variables are in it, and people keep keys in those
        write_record(self.attempt.plan, record, indent=1 if len(self.tasks) <= 256 else None, mode=0o600)


def read_plan(run: RunDir, number: int, nonce: str) -> TaskPlan | None:
    """The plan of this attempt; None while a listing does not show it or what is there is another attempt's."""
    attempt = run.attempt(number)
    if not shown(attempt.plan, run.path):
        return None
    record = read_record(attempt.plan, nonce=nonce, listed=True, own=True)
    if record is None:
        return None
    if record.get("format") != FORMAT:
        found, here = record.get("format"), os.uname().nodename
        raise RendezvousError(
            f"the launcher's plan has format {found!r}, the agent on {here} reads {FORMAT}",
            hint="all hosts of a job need the same version of gridtf: install it where all of them see it",
        )
    need_kind(record, recordtypes.Plan, attempt.plan)
    return TaskPlan(
        attempt=attempt,
        nonce=nonce,
        job_id=record["job"]["id"],
        scheduler=record["job"]["scheduler"],
        spec=JobSpec.from_dict(record["spec"]),
        hosts=record["hosts"],
        tasks=tuple(PlacedTask.from_dict(task) for task in record["tasks"]),
        python=record["python"],
        cwd=Path(record["cwd"]),
    )
