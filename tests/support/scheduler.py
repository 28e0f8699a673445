"""A fake scheduler."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from gridtf.errors import SchedulerError
from gridtf.jobspec.request import Request
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import (
    AgentCall,
    AgentHandle,
    Allocation,
    JobIdentity,
    JobStatus,
    Plan,
    Scheduler,
    SubmitResult,
    Wait,
)
from gridtf.schedulers.injob import InJob
from gridtf.schedulers.login import Login
from gridtf.states import JobState


class FakeScheduler(Scheduler, Login, InJob):
    """Accepts every job and reports the state that the test sets: both halves in one. Its name is slurm."""

    name = "slurm"
    title = "Slurm"
    directive_prefix = "#SBATCH"

    @property
    def login(self) -> FakeScheduler:
        return self

    @property
    def injob(self) -> FakeScheduler:
        return self

    def __init__(self) -> None:
        self.scheduler = self
        self.refuses = ""
        self.states: list[JobStatus] = [JobStatus(JobState.RUNNING)]
        self.notes: list[str] = []
        self.history: dict[str, JobStatus] = {}
        self.queried: list[list[str]] = []
        self.cancelled: list[str] = []
        self.count = 0
        self.lock = threading.Lock()

    def is_available(self, environ: object) -> bool:
        return True

    def is_current(self, environ: object) -> bool:
        return False

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return (f"--job-name={plan.spec.title}",)

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return ("sbatch", "--parsable")

    def check(self, plan: Plan) -> Sequence[str]:
        return self.notes

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        return self.history

    def submit(self, plan: Plan) -> SubmitResult:
        if self.refuses:
            raise SchedulerError(self.refuses)
        assert RunDir(plan.run_dir).script.read_bytes() == plan.script.encode(errors="surrogateescape")
        with self.lock:
            self.count += 1
            return SubmitResult(JobIdentity(str(100 + self.count), {"cluster": "c1"}))

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        self.queried.append([job.job_id for job in jobs])
        if self.refuses:
            raise SchedulerError(self.refuses)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {job.job_id: state for job in jobs}

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        if self.refuses:
            raise SchedulerError(self.refuses)
        self.cancelled.append(job.job_id)
        self.states = [JobStatus(JobState.CANCELLED, purged=True)]

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        return JobIdentity("101")

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        return Allocation(())

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        return []
