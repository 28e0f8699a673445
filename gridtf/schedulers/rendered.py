"""For a scheduler whose scripts this version renders and whose queue it does not talk to."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NoReturn

from gridtf.errors import SchedulerError
from gridtf.rundir import Record
from gridtf.schedulers.base import UNKNOWN, AgentCall, AgentHandle, Allocation, JobStatus, Plan, Wait
from gridtf.spec import JobSpec


class RenderedOnly:
    """The half of a scheduler that would talk to it. title: its name in messages."""

    title: str

    def check(self, plan: Plan) -> Sequence[str]:
        return ()

    def elements(self, spec: JobSpec) -> Sequence[str]:
        return ()

    def submit(self, plan: Plan) -> Record:
        self._refuse("submit to")

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        """UNKNOWN for every job."""
        return {record["job_id"]: JobStatus(UNKNOWN, f"{self.title} was not asked") for record in submitted}

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        return {}

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        self._refuse("cancel jobs of")

    def identity(self, environ: Mapping[str, str]) -> Record:
        self._refuse("run inside jobs of")

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        self._refuse("run inside jobs of")

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        self._refuse("start agents in jobs of")

    def ending(self, environ: Mapping[str, str]) -> JobStatus | None:
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise SchedulerError(
            f"this version of gridtf cannot {what} {self.title}; it renders job scripts for it",
            hint="`gridtf render` prints the script; --scheduler local runs the job on this machine",
        )
