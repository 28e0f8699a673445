"""What schedulers with a submit, a queue and a cancel command share: base classes, running commands with a time limit,
job arrays, values of directive lines, and checks that folders are shared."""

from __future__ import annotations

import contextlib
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, ClassVar

from gridtf.errors import MaybeSubmittedError, SchedulerError, SpecError
from gridtf.files import unnamed
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
from gridtf.states import JobState
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# --- running a scheduler's commands

TRY_LATER = "running jobs go on; try again later, or ask the administrators"


class Answer(Value):
    """Exit code and output of a command.

    Attributes:
        code: Exit code, or minus the number of the signal that ended the command.
        out: Standard output.
        err: Standard error.
    """

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of standard error, else of standard output, else ``exit code N``."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


class NoAnswerError(SchedulerError):
    """A command that did not end in time, or a server that does not answer.

    Attributes:
        out: Its standard output until then.
        err: Its standard error until then.
    """

    out = ""
    err = ""


def run_command(
    argv: Sequence[str], *, limit: float, environ: Mapping[str, str] | None = None, text: str = ""
) -> Answer:
    """Run a command of a scheduler and wait for its end.

    Args:
        argv: The command.
        limit: Seconds that the command may take.
        environ: Environment of the command; None: this process's own, with messages in English.
        text: What it reads from standard input.

    Returns:
        Its exit code, which need not be 0, and output.

    Raises:
        NoAnswerError: When the command does not end in time.
        SchedulerError: When the command cannot be run.
    """
    import signal
    import subprocess

    from gridtf.host import processes  # not in each child

    def prepare() -> None:
        # A scheduler announces a job's end by signals to all of its processes, as a terminal does a Ctrl-C, and they
        # must not end the command: Grid Engine's USR1 and USR2, Slurm's TERM, such as while an agent's
        # `scontrol requeue` is still about to exit. Launchers and agents have them blocked; where one ends gridtf, it
        # ends the command as well.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        processes.ignore_signals(processes.PASSED_ON | (blocked & processes.TO_ALL))
        processes.unblock_signals()  # a launcher blocks signals, and the command would inherit that

    try:
        stdin = unnamed(text) if text else None
    except OSError as error:
        raise SchedulerError(f"cannot write a temporary file: {error.strerror}") from None
    try:
        done = subprocess.run(
            list(argv),
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
            check=False,
            env={**os.environ, "LC_ALL": "C"} if environ is None else environ,
            preexec_fn=prepare,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{argv[0]} not found on {os.uname().nodename}", hint="is this a login node? `module load` may be needed"
        ) from None
    except OSError as error:
        raise SchedulerError(f"cannot run {argv[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired as expired:
        silent = NoAnswerError(
            f"{argv[0]} has not answered within {limit:g} s", hint="the scheduler may be down or overloaded: try later"
        )
        silent.out = (expired.stdout or b"").decode("utf-8", "replace")  # bytes, even with an encoding
        silent.err = (expired.stderr or b"").decode("utf-8", "replace")
        raise silent from None
    finally:
        if stdin is not None:
            stdin.close()
    return Answer(done.returncode, done.stdout, done.stderr)


def which(program: str, environ: Mapping[str, str]) -> str | None:
    """Path of a program on the PATH of this environment, like shutil.which but without the cost of its import."""
    places = (Path(folder, program) for folder in environ.get("PATH", "").split(os.pathsep) if folder)
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def on_path(program: str, environ: Mapping[str, str]) -> bool:
    """Whether a program is on the PATH of this environment."""
    return which(program, environ) is not None


# --- the base class


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


def short_name(name: str) -> str:
    """A host's name without its domain, in lower case."""
    return name.split(".", 1)[0].lower()


def same_host(one: str, other: str) -> bool:
    """Whether two names mean the same host: they are equal, or one is the other without its domain."""
    one, other = one.lower(), other.lower()
    return one == other or (("." in one) != ("." in other) and short_name(one) == short_name(other))


# --- job arrays

_MOST_ELEMENTS = 4_000_001  # the largest MaxArraySize that Slurm accepts; Grid Engine's arrays are smaller
_INDICES = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
# The worst state of its parts is the state of a job.
WORST_FIRST = (
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.UNKNOWN,
    JobState.COMPLETED,
)


def indices(text: str) -> range | None:
    """Parse elements of a job array as schedulers write them, ``3``, ``0-6`` or ``0-6:2``; None for other text."""
    match = _INDICES.fullmatch(text)
    if match is None:
        return None
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low or high - low > _MOST_ELEMENTS or step < 1:
        return None
    return range(low, high + 1, step)


def array_elements(text: str, complaint: Callable[[str], SpecError], *, least: int = 0) -> tuple[str, ...]:
    """Parse a list of array elements such as ``0-6:2,9``.

    Args:
        text: The list.
        complaint: Returns the error to raise for a part that is not an index or a range.
        least: Lowest index that the scheduler accepts.

    Returns:
        The elements in numerical order, each once.

    Raises:
        SpecError: The one that complaint returned.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        span = indices(part)
        if span is None or span.start < least:
            raise complaint(part)
        numbers.update(span)
    return tuple(str(number) for number in sorted(numbers))


def array_status(parts: Iterable[tuple[JobStatus, int]], known: str, *, always: bool = False) -> JobStatus:
    """Combine the status of an array's elements: RUNNING if one runs, PENDING if one is pending, else the worst state.

    Args:
        parts: (status, number of elements that have it).
        known: A phrase that limits which elements are counted, such as ``that Slurm still knows``, for the reason of an
            array that has ended.
        always: Put the phrase into the reason of an array that has not ended, too.

    Returns:
        The array's status; its reason has the number of elements by state.
    """
    parts = list(parts)
    counts: Counter[JobState] = Counter()
    for status, count in parts:
        counts[status.state] += count
    in_order = [JobState.RUNNING, JobState.PENDING, *WORST_FIRST]
    words = ", ".join(f"{counts[state]} {state}" for state in in_order if counts[state])
    worst = next(state for state in in_order if counts[state])
    why = next((status.reason for status, _ in parts if status.state == worst and status.reason), "")
    live = counts[JobState.RUNNING] or counts[JobState.PENDING]
    which = f" {known}" if always or not live else ""
    starts = [status.expected for status, _ in parts if status.expected is not None]
    first = min(starts, default=None) if worst == JobState.PENDING else None
    return JobStatus(worst, f"elements of the array{which}: {words}" + (f" ({why})" if why else ""), expected=first)


# --- values in directive lines

# Quotes, backslashes and # have a meaning in some scheduler's directives; whitespace ends a value.
_WORD = re.compile(r"""[^\s'"`\\#-][^\s'"`\\#]*""")


def word(key: str, value: str) -> str:
    """Check a value for a directive line, which no shell reads and which each scheduler parses in its own way.

    Args:
        key: Key of the job file that the value comes from.
        value: The value.

    Returns:
        The value, unchanged.

    Raises:
        SpecError: When a directive line cannot contain the value; it names the key.
    """
    if not value.isprintable() or not _WORD.fullmatch(value):
        raise SpecError(
            key,
            f"a directive line cannot contain {value!r}",
            why="whitespace, quotes, backslashes and # end or change a value there, and a dash begins an option",
            hint="if you need it, pass the whole option with native, quoted as the scheduler's manual says",
        )
    return value


def mail(request: Request, when: tuple[str, str], to: str) -> dict[str, str]:
    """The scheduler's options that have it send mail, less those that the user's raw options have.

    Args:
        request: What the job requests.
        when: The option for the events that it reports, without dashes, and its value.
        to: The option for the recipient, without dashes.

    Returns:
        Option, without dashes -> its value; without a recipient, schedulers send it to the user who submits.

    Raises:
        SpecError: When a directive line cannot contain the address.
    """
    if NOTIFY.key not in request.options:
        return {}
    _, _, address = request.options[NOTIFY.key].partition(":")
    found = {when[0]: when[1], **({to: word(NOTIFY.key, address)} if address else {})}
    return {option: value for option, value in found.items() if option not in request.native}


def native(spec: JobSpec) -> tuple[str, ...]:
    """The user's raw options, one per directive line.

    Raises:
        SpecError: For text that is not one line beginning with a dash.
    """
    for option in spec.native:
        if not option.startswith("-") or not option.isprintable():
            hint = "write one option per string, such as '--qos=high'"
            raise SpecError("native", f"{option!r} is not an option", hint=hint)
    return tuple(spec.native)


def whole(text: str) -> int | None:
    """Parse a whole number in a scheduler's output or files, such as ``16``; None for other text.

    Stricter than int(), which accepts digits of other scripts and fails on numbers of thousands of digits.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


# --- folders that all hosts see

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})  # file systems in the memory of a host
SHARED_HINT = "choose a folder on a file system that all hosts share"


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


def not_shared(folder: Path, mounts: str | None = None) -> str:
    """Explain why other hosts cannot see a folder.

    Args:
        folder: Absolute path.
        mounts: Content of /proc/self/mounts; None: read that file.

    Returns:
        One line; empty for a folder on a disk or network file system, which other hosts may mount.
    """
    mount, kind = file_system(folder, own_mounts() if mounts is None else mounts)
    return f"{mount} is a {kind}, which lies in the memory of this host" if kind in MEMORY else ""


def of_one_host(folder: Path, mounts: str | None = None) -> str:
    """Explain why each host has a folder of that name for itself: by not_shared, and by where hosts have theirs.

    Args:
        folder: As not_shared.
        mounts: As not_shared.

    Returns:
        As not_shared.
    """
    from gridtf.jobspec import precheck

    place = next((place for place in precheck.OF_A_HOST if folder.is_relative_to(place)), "")
    return not_shared(folder, mounts) or (f"each host has its own {place}" if place else "")


def own_mounts() -> str:
    """Content of /proc/self/mounts."""
    return Path("/proc/self/mounts").read_text(errors="replace")


def file_system(folder: Path, mounts: str) -> tuple[str, str]:
    """Find the file system that a folder lies on.

    Args:
        folder: Absolute path.
        mounts: Content of /proc/self/mounts, in the format of fstab(5).

    Returns:
        (mount point, type), such as ("/home", "nfs4").
    """
    nearest = ("/", "")
    for line in mounts.splitlines():
        _, raw, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), raw)  # \040 is a space
        # of two mounts on the same folder, the later one hides the other
        if PurePosixPath(folder).is_relative_to(point) and len(point) >= len(nearest[0]):
            nearest = (point, kind)
    return nearest
