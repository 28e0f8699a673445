"""What schedulers with a submit, a queue and a cancel command share: base classes, running commands with a time limit,
job arrays, values of directive lines, and checks that folders are shared."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from gridtf.errors import MaybeSubmittedError, SchedulerError, SpecError
from gridtf.host.mounts import SHARED_HINT, not_shared
from gridtf.host.names import same_host
from gridtf.jobspec.options import Option, of_scheduler
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    JobIdentity,
    JobStatus,
    Plan,
    Scheduler,
    SubmitResult,
)
from gridtf.schedulers.commands import TRY_LATER, Answer, NoAnswerError, run_command, which
from gridtf.states import JobState

# For schedulers that can keep a job off some hosts.
EXCLUDE = of_scheduler("exclude", "--exclude -x", "HOST[,HOST]", "hosts that the job must not use", kind="words")
# For schedulers that send mail.
NOTIFY = of_scheduler("notify", "--notify", "mail[:ADDRESS]", "have the scheduler send mail when the job ends")


class CommandScheduler(Scheduler):
    """A scheduler with a command to submit, one to list jobs, and one to cancel.

    Attributes:
        list_command: Command that lists the user's own jobs, for messages.
        submit_patience: Time limit of the submit and the cancel command, in seconds.
        query_patience: Time limit of the queue command, in seconds.
        server_variables: Variables by which users choose the server that the commands ask.
    """

    options: ClassVar[tuple[Option, ...]] = (
        of_scheduler("partition", "--partition -p --queue -q", "NAME", "Slurm's partition, Grid Engine's queue"),
        of_scheduler("account", "--account -A --project", "NAME", "Slurm's account, Grid Engine's project"),
    )
    list_command: ClassVar[str] = ""
    submit_patience: ClassVar[float] = 60.0
    query_patience: ClassVar[float] = 20.0
    server_variables: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parse_job_id(self, output: str) -> str:
        """Find the job id in the output of the submit command. Pure.

        Args:
            output: Standard output of the command, to which a site may add lines of its own.

        Returns:
            The id; empty if there is none.
        """

    def parse_job_details(self, output: str) -> Mapping[str, str]:
        """Find what the queue and the cancel command need besides the id in the submit command's output. Pure.

        Args:
            output: As for parse_job_id.

        Returns:
            JobIdentity.details: plain JSON values by name.
        """
        return {}

    @abstractmethod
    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        """The command that lists these jobs. Pure."""

    @abstractmethod
    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """Parse the output of the queue command. Pure, unless the queue has to be queried once more for a job.

        Args:
            output: Standard output of the command.
            jobs: The jobs that it was run for.

        Returns:
            Job id -> status; jobs that are not listed are missing.
        """

    @abstractmethod
    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        """The command that ends a job. Pure.

        Args:
            job: The job.
            force: The job did not end after a first call.
        """

    def locate(self, command: str) -> str:
        """Path of a command of the scheduler; its bare name if it is to be found on the PATH."""
        return command

    def unreachable(self, answer: Answer) -> bool:
        """Whether a failed command reports that the scheduler's server does not answer. Pure."""
        return False

    def unknown_job(self, answer: Answer) -> bool:
        """Whether a failed command reports that the scheduler does not, or no longer, know the job. Pure."""
        return False

    def outcome_unknown(self, answer: Answer) -> bool:
        """Whether it is unknown, after a failed submit command, if the job was submitted. Pure."""
        return False

    def message(self, answer: Answer) -> str:
        """The line of a failed command's output that states the error. Pure."""
        return answer.last_line

    def remarks(self, answer: Answer) -> Sequence[str]:
        """What the submit command says about a job that it has submitted, one note each. Pure."""
        return ()

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        """Look in the queue for this plan's job, by its log in the run directory, where it is unknown if there is one.

        Returns:
            The job; None if the queue does not have it.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return None

    def command_environment(self) -> dict[str, str]:
        """Environment of all commands but the submit command: this process's own, with messages in English."""
        return {**os.environ, "LC_ALL": "C"}

    def run(self, argv: Sequence[str], *, limit: float, text: str = "") -> Answer:
        """Run a command of the scheduler.

        Args:
            argv: The command.
            limit: Seconds that the command may take.
            text: What it reads from standard input.

        Returns:
            Its exit code, which need not be 0, and output.

        Raises:
            NoAnswerError: When the command does not end in time, or the server does not answer.
            SchedulerError: When the command cannot be run, or is killed.
        """
        try:
            environ = self.command_environment()
            answer = run_command([self.locate(argv[0]), *argv[1:]], limit=limit, environ=environ, text=text)
        except NoAnswerError as error:
            self.need_set_up(argv[0], Answer(1, error.out, error.err))
            raise self.no_answer(f"{argv[0]} has not answered within {limit:g} s") from None
        self.need_set_up(argv[0], answer)
        if answer.code < 0:
            from gridtf.host.processes import signal_name

            raise SchedulerError(f"{argv[0]} was killed by {signal_name(-answer.code)}")
        if answer.code and self.unreachable(answer):
            raise self.no_answer(self.message(answer))
        return answer

    def need_set_up(self, command: str, answer: Answer) -> None:
        """Raise SchedulerError where a command could not begin, such as without its configuration or its libraries."""

    def printed(self, argv: Sequence[str], *, limit: float) -> str:
        """Run a command of the scheduler that must succeed.

        Args:
            argv: The command.
            limit: Seconds that the command may take.

        Returns:
            Its standard output.

        Raises:
            SchedulerError: As for run, and when the command fails.
        """
        answer = self.run(argv, limit=limit)
        if answer.code:
            raise SchedulerError(f"{argv[0]} has failed: {self.message(answer)}")
        return answer.out

    def no_answer(self, message: str) -> NoAnswerError:
        """The error for a server that does not answer."""
        return NoAnswerError(f"{self.title} does not answer: {message}", hint=TRY_LATER)

    def submit(self, plan: Plan) -> SubmitResult:
        command = self.submit_command(plan)
        try:
            # with the user's own environment, which some schedulers pass on to the job
            argv = [self.locate(command[0]), *command[1:]]
            answer = run_command(argv, limit=self.submit_patience, environ=os.environ, text=plan.script)
        except NoAnswerError:
            return self.look_for(plan, f"{command[0]} has not answered within {self.submit_patience:g} s")
        if answer.code:
            return self.not_submitted(plan, answer)
        if job_id := self.parse_job_id(answer.out):
            return SubmitResult(JobIdentity(job_id, self.parse_job_details(answer.out)), tuple(self.remarks(answer)))
        return self.look_for(plan, f"{command[0]} ended with 0 and printed no job id, but: {answer.last_line}")

    def not_submitted(self, plan: Plan, answer: Answer) -> SubmitResult:
        """Handle a submit command that ended with an error.

        Args:
            plan: What was submitted.
            answer: Exit code and output of the command.

        Returns:
            The job, if there is one in spite of the error.

        Raises:
            SchedulerError: When the scheduler has refused the job, or does not answer.
            MaybeSubmittedError: When it is not known whether there is a job.
        """
        if self.parse_job_id(answer.out) or self.outcome_unknown(answer):
            return self.look_for(plan, self.message(answer))
        if self.unreachable(answer):
            raise self.no_answer(self.message(answer))
        raise SchedulerError(f"{self.title} has refused the job: {self.message(answer)}")

    def look_for(self, plan: Plan, message: str) -> SubmitResult:
        """Look in the queue for the job of a submission with an unknown outcome.

        Args:
            plan: What was submitted.
            message: Why the outcome is unknown, in one line.

        Returns:
            The job.

        Raises:
            MaybeSubmittedError: When the queue does not have it, or does not answer.
        """
        with contextlib.suppress(SchedulerError):
            job = self.find_submitted(plan)
            if job is not None:
                return SubmitResult(job)
        raise MaybeSubmittedError(
            f"{self.title} may have taken the job, or may not: {message}",
            why=f"its run directory is kept: {plan.run_dir}",
            hint=f"look for {plan.spec.title} in `{self.list_command}` before you submit it again",
        )

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        if not jobs:
            return {}
        answer = self.run(self.query_command(jobs), limit=self.query_patience)
        if answer.code and not self.unknown_job(answer):
            raise SchedulerError(f"{self.query_command(jobs)[0]} has failed: {self.message(answer)}")
        found = self.parse_query(answer.out, jobs)
        purged = JobStatus(JobState.UNKNOWN, f"{self.title} no longer knows it", purged=True)
        return {job.job_id: found.get(job.job_id, purged) for job in jobs}

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        # a site may have a set of commands for each of its clusters
        words = self.list_command.split()
        program = self.locate(words[0]) if words else ""
        chosen = (f"{name}={environ.get(name, '')}" for name in self.server_variables)
        return "\n".join((self.name, (program and which(program, environ)) or program, *chosen))

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        answer = self.run(self.cancel_command(job, force), limit=self.submit_patience)
        if answer.code and not self.unknown_job(answer):
            raise SchedulerError(f"{self.title} does not cancel job {job.job_id}: {self.message(answer)}")


class BatchScheduler(CommandScheduler):
    """A scheduler whose agents on other hosts are started by one command per host."""

    @abstractmethod
    def agent_command(self, host: str, call: AgentCall, environ: Mapping[str, str]) -> Sequence[str]:
        """The command that starts the agent of another host of the job and runs until the agent has ended. Pure.

        If the command forwards its standard input, the agent stops at the end of the input, as well as when the
        launcher says so. If the command does not pass on the environment, it has to set agents.NEEDS_ENVIRONMENT to 1
        for the agent, which then receives the environment from the launcher.

        Args:
            host: Name of the host in the allocation.
            call: How an agent is started.
            environ: The job's environment.

        Returns:
            The command. It exits with the agent's exit code.
        """

    def agent_end(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        """Tell from the end of agent_command how the agent has ended. Pure.

        Args:
            host: The agent's host.
            code: Exit code of the command, or minus the number of the signal that ended it.
            printed: Output lines of the command and the agent.

        Returns:
            The agent's exit code, host and last lines.
        """
        return AgentEnd(code if code <= 128 else 128 - code, host, tuple(printed[-3:]))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """Fork the agent of this host, and start agent_command for each other host, all at the same time."""
        from gridtf.schedulers.agents import StartedAgents, fork_agent

        here = self.this_host(environ)
        others = [host.name for host in allocation.hosts if not same_host(host.name, here)]
        # forked first, so that it does not hold on to the pipes whose end tells the others to stop
        handles: list[AgentHandle] = [
            fork_agent(host.name, call.arguments, call.main) for host in allocation.hosts if same_host(host.name, here)
        ]
        return handles + [
            StartedAgents(
                self.agent_command(name, call, environ), environ, call.log, partial(self.agent_end, name), self.warnings
            )
            for name in others
        ]


def check_shared(plan: Plan, mounts: str | None = None) -> None:
    """Refuse a run directory or a working folder in this host's memory, which other hosts cannot see.

    Args:
        plan: The submission.
        mounts: Content of /proc/self/mounts; None: read that file.

    Raises:
        SpecError: For such a folder; it names the key that sets the folder.
    """
    run_key = "run_dir" if plan.spec.run_dir else "run_root"
    for key, folder in (("chdir", Path(plan.spec.chdir or "/")), (run_key, plan.run_dir)):
        if why := not_shared(folder, mounts):
            raise SpecError(key, f"{folder} cannot be seen by other hosts", why=why, hint=SHARED_HINT)
