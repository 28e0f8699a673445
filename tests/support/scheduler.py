"""A scheduler that only pretends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.base import CANCELLED, RUNNING, JobStatus, Plan


class FakeScheduler:
    """Takes every job and says of it what the test wants. Goes by the name of slurm."""

    name = "slurm"
    accounting_delay = 0.0

    def __init__(self) -> None:
        self.refuses = ""
        self.states: list[JobStatus] = [JobStatus(RUNNING)]
        self.notes: list[str] = []
        self.history: dict[str, JobStatus] = {}
        self.asked: list[list[str]] = []
        self.cancelled: list[str] = []
        self.count = 0
        self.lock = threading.Lock()

    def here(self, environ: object) -> bool:
        return True

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return (f"--job-name={plan.spec.title}",)

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("sbatch", str(RunDir(plan.run_dir).script))

    def check(self, plan: Plan) -> Sequence[str]:
        return self.notes

    def elements(self, spec: object) -> Sequence[str]:
        return ()

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return self.history

    def submit(self, plan: Plan) -> Record:
        if self.refuses:
            raise SchedulerError(self.refuses)
        assert RunDir(plan.run_dir).script.exists()
        with self.lock:
            self.count += 1
            return {"job_id": str(100 + self.count), "cluster": "c1"}

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        self.asked.append([record["job_id"] for record in submitted])
        if self.refuses:
            raise SchedulerError(self.refuses)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {record["job_id"]: state for record in submitted}

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        if self.refuses:
            raise SchedulerError(self.refuses)
        self.cancelled.append(submitted["job_id"])
        self.states = [JobStatus(CANCELLED, gone=True)]
