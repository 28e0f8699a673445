"""The half of a scheduler on the login node: a script's directives, its submission, the status and the end of jobs."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf.errors import MaybeSubmittedError, SchedulerError, SpecError
from gridtf.host.mounts import SHARED_HINT, not_shared
from gridtf.schedulers.api import Estimate, JobIdentity, JobStatus, Place, Plan, Scheduler, SubmitResult
from gridtf.schedulers.commands import Answer, Commands, NoAnswerError, killed, run_command, which
from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

_AT_ONCE = 200  # jobs that a command ends at most


class Login(ABC):
    """What a scheduler does on the login node.

    Attributes:
        scheduler: The scheduler that this is a half of.
        directive_prefix: Beginning of the lines in a script's head that the scheduler reads, such as ``#SBATCH``.
        template: Path of the scheduler's own template of the job script; None: job.sh.j2.
        requests_memory: Whether memory is requested from the scheduler.
        requests_hosts: Whether hosts are requested with all GPUs of gpus_per_node, and not slots with those of a task.
        takes_native: Whether the scheduler accepts the user's raw options.
        inherits_environment: Whether a job inherits the environment of the shell that submits it.
        accounting_delay: Seconds after the end of a job until the accounting has it; 0: at once, or no accounting.
        out_of_service: The command by which staff takes a bad host out of service, with {host} and {reason}; or empty.
    """

    directive_prefix: ClassVar[str] = ""
    template: ClassVar[Path | None] = None
    requests_memory: ClassVar[bool] = True
    requests_hosts: ClassVar[bool] = True
    takes_native: ClassVar[bool] = True
    inherits_environment: ClassVar[bool] = True
    accounting_delay: float = 0.0
    out_of_service: ClassVar[tuple[str, ...]] = ()

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def version(self) -> str:
        """What the scheduler's commands call themselves: ``slurm-wlm 22.05.8``, ``SGE 8.1.9``; empty: not known."""
        return ""

    def with_site(self, plan: Plan) -> Plan:
        """The plan with ``site``: what its directives and its check depend on at this site, without a question if
        it is there already. Called once for a plan."""
        return plan

    @abstractmethod
    def directives(self, plan: Plan) -> tuple[str, ...]:
        """The options in the head of the job script. Pure.

        Returns:
            One option per line, without the prefix.

        Raises:
            SpecError: For a request that the scheduler does not support.
        """

    def slots(self, request: Request) -> str:
        """The number of slots that a job requests of a scheduler that chooses hosts for slots: ``8``, ``4-8``. Pure.

        Args:
            request: What the job requests.

        Returns:
            The number or range; empty where the job requests hosts.

        Raises:
            SpecError: For a request that the scheduler does not support.
        """
        return ""

    @abstractmethod
    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """The command that submits the job script, which it reads from standard input. Pure.

        Raises:
            SpecError: For a run directory that the command would misread.
        """

    @abstractmethod
    def submit(self, plan: Plan) -> SubmitResult:
        """Submit plan.script: its text, since another user may exchange a folder above job.sh.

        Returns:
            The job, and notes for the user.

        Raises:
            SchedulerError: When the scheduler refuses the job, or does not answer.
            MaybeSubmittedError: When it is not known whether the job was submitted.
        """

    @abstractmethod
    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """Query the status of jobs, all in one call.

        Returns:
            Job id -> status. A job that the scheduler no longer knows is ``purged``.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """

    @abstractmethod
    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        """End a job. It is no error if the job has already ended.

        Args:
            force: The job did not end after a first call.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
        """

    def cancel_all(self, jobs: Sequence[JobIdentity], *, force: bool = False) -> Iterator[SchedulerError | None]:
        """End jobs of one server. No more is asked of one that does not answer.

        Args:
            force: As for cancel.

        Yields:
            For each job in this order, why the scheduler does not end it; None: it does, or the job has ended.
        """
        silent: SchedulerError | None = None
        for first in range(0, len(jobs), _AT_ONCE):
            group = jobs[first : first + _AT_ONCE]
            singly = {job.job_id for job in group}
            try:
                if silent is None and group[1:]:
                    singly = {job.job_id for job in self.cancel_together(group, force=force)}
            except SchedulerError as error:
                silent = error
            for job in group:
                refused = silent if job.job_id in singly else None
                if silent is None and job.job_id in singly:
                    try:
                        self.cancel(job, force=force)
                    except NoAnswerError as error:
                        silent = refused = error
                    except SchedulerError as error:
                        refused = error
                yield refused

    def cancel_together(self, jobs: Sequence[JobIdentity], *, force: bool = False) -> Sequence[JobIdentity]:
        """End jobs of one server by one command, if there is one that takes several.

        Args:
            jobs: At least two.
            force: As for cancel.

        Returns:
            Those that were not ended, or may not be: they are cancelled one by one, which tells why.

        Raises:
            SchedulerError: When the command cannot be run, or the scheduler does not answer.
        """
        return jobs

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        """Work out the resources to request from this scheduler. Pure.

        Args:
            spec: The user's specification.
            in_job: Whether this runs inside the job: then memory, raw options and array elements are left out.

        Returns:
            The request: hosts, tasks, GPUs, CPUs, memory and walltime.

        Raises:
            SpecError: When the specification contradicts itself, or the scheduler cannot provide it.
        """
        from gridtf.jobspec import request  # `gridtf list` and `status` need none of it

        memory = self.requests_memory and not in_job
        made = request.resolve(spec, self.scheduler.name, options=self.scheduler.options, memory=memory)
        if in_job:
            return made
        if self.requests_hosts:
            request.need_tasks_for_all(spec, made, self.scheduler.options)
        if made.spare_nodes and made.nodes[1] == 1:
            what = "a job of one host cannot go on without the host, which its launcher is on"
            raise SpecError("spare_nodes", what, hint="leave it out, or request more nodes or workers")
        native = self.parse_native(spec.native)
        return made.replace(native=native, elements=self.array_elements(native))

    def parse_native(self, native: Sequence[str]) -> Mapping[str, str]:
        """Parse the user's raw options. Pure.

        Args:
            native: Raw options as the user wrote them, one or several a string.

        Returns:
            Option -> value, in a form of the scheduler's own; it becomes Request.native.

        Raises:
            SpecError: For text that is not an option.
        """
        return {}

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        """The elements of the job array that the raw options request. Pure.

        Args:
            native: As parse_native returned it.

        Returns:
            The elements in order; empty for a single job.

        Raises:
            SpecError: When the list of elements cannot be parsed.
        """
        return ()

    def check(self, plan: Plan) -> Sequence[str]:
        """Check, before the submission, whether the site can run plan.script.

        Returns:
            Notes for the user, one line each.

        Raises:
            SpecError: For a request that the site can never fulfil, with what it offers instead.
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def places(self) -> Sequence[Place]:
        """Where jobs may run at this site, the default one first; empty where that is not known.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def foreseen(self, plan: Plan, places: Sequence[Place]) -> Estimate | None:
        """What is known of a job's start without a question to the scheduler; None: it has to be asked.

        Args:
            places: As places returned them.
        """
        return Estimate(why=f"{self.scheduler.title} gives no estimate")

    def estimate(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        """Ask the scheduler when a job would start, by plan.script, without submitting it.

        Args:
            places: As for foreseen.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return Estimate(why=f"{self.scheduler.title} gives no estimate")

    def balance(self, plan: Plan) -> str:
        """What the account of a job has left, in one line; empty where the scheduler does not tell at once."""
        return ""

    def cluster(self, environ: Mapping[str, str]) -> str:
        """What tells the hosts of this scheduler from hosts of other clusters that have the same names. Called on the
        login node and in jobs.

        Args:
            environ: The environment of the commands, or of the job.

        Returns:
            The scheduler's name, a colon, and a name that may be unknown, as in ``slurm:``; empty where nothing is to
            be remembered of its hosts, such as this machine.
        """
        return ""

    def room(self, plan: Plan) -> tuple[dict[str, int], int]:
        """Ask the scheduler for the hosts that may run a job, those that are in use included.

        Returns:
            Host -> how much of the job it has room for, in hosts or slots, 0 while it is out of service; and how much
            the job needs at least. No hosts where that is not known.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return {}, 0

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        """What tells the server that query and accounting ask about a job from others that the same commands may ask.

        Commands of a user share the answers of a server (answers.py), since it serves all users. Pure.

        Args:
            environ: The environment of the commands.

        Returns:
            Any text; empty where they ask no server, as on this machine: then each command asks for itself.
        """
        return ""

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """Query the accounting for the status of jobs that query no longer knows, all in one call.

        Returns:
            Job id -> status; jobs that the accounting does not have are missing.
        """
        return {}

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        """Find where the run directory of a job may be that is not in this user's index of runs.

        Returns:
            Possible paths, the most likely one first; empty for an unknown job.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def beside(self, job: JobIdentity, host: str) -> Sequence[str]:
        """The command with which another one runs on a host of a running job, with these standard streams.

        Args:
            host: As the scheduler calls it.

        Returns:
            The words before the other command; empty: there is none.
        """
        return ()

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        """Examine, for `gridtf doctor`, the site's scheduler as far as this machine shows it.

        Args:
            given: What the site's file, the user's file and variables set: that needs no other setting.

        Returns:
            Findings, and the settings that jobs need here. `gridtf doctor` gives it eight seconds.

        Raises:
            SchedulerError: When the scheduler does not answer. It becomes a finding.
        """
        from gridtf.findings import Examination

        return Examination()


class CommandLogin(Login):
    """A scheduler with a command to submit, one to list jobs, and one to cancel.

    Attributes:
        commands: Runs them.
        list_command: Command that lists the user's own jobs, for messages.
        version_command: Command whose first line of output has the version; empty: none.
        server_variables: Variables by which users choose the server that the commands ask.
    """

    commands: ClassVar[Commands]
    list_command: ClassVar[str] = ""
    version_command: ClassVar[tuple[str, ...]] = ()
    server_variables: ClassVar[tuple[str, ...]] = ()

    def version(self) -> str:
        with contextlib.suppress(SchedulerError):
            if self.version_command:
                said = self.commands.run(self.version_command, limit=self.commands.query_limit).out
                return said.strip().partition("\n")[0]
        return ""

    def submit(self, plan: Plan) -> SubmitResult:
        command = self.submit_command(plan)
        try:
            # with the user's own environment, which some schedulers pass on to the job
            argv = [self.commands.locate(command[0]), *command[1:]]
            answer = run_command(argv, limit=self.commands.submit_limit, environ=os.environ, text=plan.script)
        except NoAnswerError:
            return self.look_for(plan, f"{command[0]} has not answered within {self.commands.submit_limit:g} s")
        if answer.code < 0:
            return self.look_for(plan, killed(command[0], answer))
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
        if self.parse_job_id(answer.out) or self.commands.outcome_unknown(answer):
            return self.look_for(plan, self.commands.message(answer))
        if self.commands.unreachable(answer):
            raise self.commands.no_answer(self.commands.message(answer))
        raise SchedulerError(f"{self.scheduler.title} has refused the job: {self.commands.message(answer)}")

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
        what = f"{self.scheduler.title} may have taken the job, or may not: {message}"
        hint = f"look for {plan.spec.title} in `{self.list_command}` before you submit it again"
        raise MaybeSubmittedError(what, why=f"its run directory is kept: {plan.run_dir}", hint=hint)

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        """Look in the queue for this plan's job, by its log in the run directory, where it is unknown if there is one.

        Returns:
            The job; None if the queue does not have it.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return None

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

    def remarks(self, answer: Answer) -> Sequence[str]:
        """What the submit command says about a job that it has submitted, one note each. Pure."""
        return ()

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        if not jobs:
            return {}
        answer = self.commands.run(self.query_command(jobs), limit=self.commands.query_limit)
        if answer.code and not self.commands.unknown_job(answer):
            raise SchedulerError(f"{self.query_command(jobs)[0]} has failed: {self.commands.message(answer)}")
        found = self.parse_query(answer.out, jobs)
        purged = JobStatus(JobState.UNKNOWN, f"{self.scheduler.title} no longer knows it", purged=True)
        return {job.job_id: found.get(job.job_id, purged) for job in jobs}

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

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        # a site may have a set of commands for each of its clusters
        words = self.list_command.split()
        program = self.commands.locate(words[0]) if words else ""
        chosen = (f"{name}={environ.get(name, '')}" for name in self.server_variables)
        return "\n".join((self.scheduler.name, (program and which(program, environ)) or program, *chosen))

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        answer = self.commands.run(self.cancel_command(job, force), limit=self.commands.submit_limit)
        if answer.code and not self.commands.unknown_job(answer):
            what = f"{self.scheduler.title} does not cancel job {job.job_id}: {self.commands.message(answer)}"
            raise SchedulerError(what)

    @abstractmethod
    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        """The command that ends a job. Pure.

        Args:
            force: The job did not end after a first call.
        """

    def cancel_together(self, jobs: Sequence[JobIdentity], *, force: bool = False) -> Sequence[JobIdentity]:
        command = self.cancel_together_command(jobs, force)
        if not command:
            return jobs
        answer = self.commands.run(command, limit=self.commands.submit_limit)
        return self.not_cancelled(jobs, answer) if answer.code else ()

    def cancel_together_command(self, jobs: Sequence[JobIdentity], force: bool) -> Sequence[str]:
        """The command that ends several jobs of one server; empty: each needs one of its own. Pure.

        Args:
            force: As for cancel_command.
        """
        return ()

    def not_cancelled(self, jobs: Sequence[JobIdentity], answer: Answer) -> Sequence[JobIdentity]:
        """The jobs that such a command, which has failed, may not have ended; each gets a command of its own. Pure."""
        return jobs


def check_shared(plan: Plan, mounts: str | None = None) -> None:
    """Refuse a run directory or a working folder in this host's memory, which other hosts cannot see.

    Args:
        mounts: Content of /proc/self/mounts; None: read that file.

    Raises:
        SpecError: For such a folder; it names the key that sets the folder.
    """
    run_key = "run_dir" if plan.spec.run_dir else "run_root"
    for key, folder in (("chdir", Path(plan.spec.chdir or "/")), (run_key, plan.run_dir)):
        if why := not_shared(folder, mounts):
            raise SpecError(key, f"{folder} cannot be seen by other hosts", why=why, hint=SHARED_HINT)
