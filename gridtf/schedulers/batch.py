"""What schedulers with a submit command, a queue command and a cancel command share: the base class for them, running
their commands with patience, and the values that a directive line can carry."""

from __future__ import annotations

import contextlib
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, ClassVar

from gridtf.errors import MaybeSubmittedError, SchedulerError, SpecError
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

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec

# --- running a scheduler's commands

TRY_LATER = "jobs that run go on; try again later, or ask the administrators"


@dataclass(frozen=True)
class Answer:
    """What a command has printed.

    Attributes:
        code: Its exit code, or minus the signal that ended it.
        out: Its standard output.
        err: Its standard error.
    """

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of its complaints, else of its output, else its exit code in words."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


class NoAnswerError(SchedulerError):
    """A command that did not end in time. out: what it had printed until then."""

    out = ""


def run_command(argv: Sequence[str], *, limit: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Run a command of a scheduler and wait for its end, whatever its exit code.

    Args:
        argv: The command.
        limit: Seconds that it may take.
        environ: Its environment; None: this process's own, with messages in English.

    Raises:
        NoAnswerError: When it does not end in time.
        SchedulerError: When it cannot be run.
    """
    import subprocess

    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
            check=False,
            env={**os.environ, "LC_ALL": "C"} if environ is None else environ,
            preexec_fn=_prepare_child,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{argv[0]} is not there on {os.uname().nodename}", hint="is this a login node? `module load` may be needed"
        ) from None
    except OSError as error:
        raise SchedulerError(f"cannot run {argv[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired as expired:
        silent = NoAnswerError(
            f"{argv[0]} has not answered within {limit:g} s", hint="the scheduler may be down or overloaded: try later"
        )
        silent.out = (expired.stdout or b"").decode("utf-8", "replace")  # bytes, also where text was asked for
        raise silent from None
    return Answer(done.returncode, done.stdout, done.stderr)


def _prepare_child() -> None:
    from gridtf.host import processes

    # Grid Engine warns of a job's end by a signal to all processes of the job: the command must not die of that.
    processes.ignore_signals(processes.PASSED_ON)
    processes.unblock_signals()  # a launcher blocks signals, and the command would inherit that


def on_path(program: str, environ: Mapping[str, str]) -> bool:
    """Whether PATH leads to this program (as shutil.which, at a fraction of its import)."""
    folders = environ.get("PATH", "").split(os.pathsep)
    return any(os.access(Path(folder, program), os.X_OK) for folder in folders if folder)


# --- the base class


class CommandScheduler(Scheduler):
    """A scheduler with a command to submit, one to list jobs, and one to cancel.

    Attributes:
        list_command: What lists the user's own jobs, for messages.
        submit_patience: Seconds that the submit and the cancel command may take.
        query_patience: Seconds that the queue command may take.
    """

    options: ClassVar[tuple[Option, ...]] = (
        of_scheduler("partition", "--partition -p --queue -q", "NAME", "Slurm's partition, Grid Engine's queue"),
        of_scheduler("account", "--account -A --project", "NAME", "Slurm's account, Grid Engine's project"),
    )
    list_command: ClassVar[str] = ""
    submit_patience: ClassVar[float] = 60.0
    query_patience: ClassVar[float] = 20.0

    @abstractmethod
    def parse_job_id(self, output: str) -> str:
        """The id of the job in what the submit command has printed; empty without one. Pure."""

    def parse_job_details(self, output: str) -> Mapping[str, str]:
        """What else the queue and the cancel command need, from the same output: JobIdentity.details. Pure."""
        return {}

    @abstractmethod
    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        """The command that lists these jobs. Pure."""

    @abstractmethod
    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """How these jobs stand, by job id, from what the queue command has printed; without those that it does not
        list. Pure, unless the queue has to be asked once more to tell."""

    @abstractmethod
    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        """The command that ends a job; force: one that did not heed the first call. Pure."""

    def locate(self, command: str) -> str:
        """Where a command of the scheduler lies; its bare name: where PATH leads to."""
        return command

    def unreachable(self, answer: Answer) -> bool:
        """Whether a command says that the scheduler's server does not answer. Pure."""
        return False

    def unknown_job(self, answer: Answer) -> bool:
        """Whether a command says that the scheduler does not know the job, or no longer. Pure."""
        return False

    def outcome_unknown(self, answer: Answer) -> bool:
        """Whether a failed submit command leaves it open whether there is a job now. Pure."""
        return False

    def message(self, answer: Answer) -> str:
        """The line of a command's complaints that says what is wrong. Pure."""
        return answer.last_line

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        """The job in the queue that runs this plan's script, after a submission whose outcome is not known.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return None

    def command_environment(self) -> dict[str, str]:
        """The environment of the scheduler's commands, but for the submit command: messages are in English."""
        return {**os.environ, "LC_ALL": "C"}

    def run(self, argv: Sequence[str], *, limit: float) -> Answer:
        """Run a command of the scheduler, whatever its exit code.

        Raises:
            SchedulerError: In one line, when the command is not there, or the server does not answer.
        """
        try:
            environ = self.command_environment()
            answer = run_command([self.locate(argv[0]), *argv[1:]], limit=limit, environ=environ)
        except NoAnswerError:
            raise self.no_answer(f"{argv[0]} has waited for {limit:g} s") from None
        if answer.code and self.unreachable(answer):
            raise self.no_answer(self.message(answer))
        return answer

    def no_answer(self, message: str) -> SchedulerError:
        """The error for a server that does not answer."""
        return SchedulerError(f"{self.title} does not answer: {message}", hint=TRY_LATER)

    def submit(self, plan: Plan) -> SubmitResult:
        command = self.submit_command(plan)
        try:
            # with its own environment, which some schedulers make the job's
            argv = [self.locate(command[0]), *command[1:]]
            answer = run_command(argv, limit=self.submit_patience, environ=os.environ)
        except NoAnswerError:
            return self.look_for(plan, f"{command[0]} has not answered within {self.submit_patience:g} s")
        if answer.code:
            return self.not_submitted(plan, answer)
        if job_id := self.parse_job_id(answer.out):
            return SubmitResult(JobIdentity(job_id, self.parse_job_details(answer.out)))
        return self.look_for(plan, f"{command[0]} ended with 0 and printed no job id, but: {answer.last_line}")

    def not_submitted(self, plan: Plan, answer: Answer) -> SubmitResult:
        """After a submission that seems to have failed: the job, if there is one nevertheless.

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
        """The job of a submission whose outcome is not known, if the queue has it.

        Args:
            plan: What was submitted.
            message: What is known of it.

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

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        answer = self.run(self.cancel_command(job, force), limit=self.submit_patience)
        if answer.code and not self.unknown_job(answer):
            raise SchedulerError(f"{self.title} does not cancel job {job.job_id}: {self.message(answer)}")


class BatchScheduler(CommandScheduler):
    """One whose agents on other hosts are started by a command for each of them."""

    @abstractmethod
    def agent_command(self, host: str, call: AgentCall, environ: Mapping[str, str]) -> Sequence[str]:
        """The command that starts the agent of another host of the job and stays until the agent has ended. Pure.

        Where it passes its standard input on, the end of that tells the agent to stop; where it does not, the agent
        hears of it through the run directory.
        """

    def this_host(self, environ: Mapping[str, str]) -> str:
        """What the scheduler calls this host."""
        return os.uname().nodename

    def blame(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        """How an agent on another host has ended, from the exit code of what had started it and the lines that this has
        printed. Pure."""
        return AgentEnd(code if code < 128 else 128 - code, host, tuple(printed[-3:]))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """One agent forked on this host, and one agent_command for each of the others, all at once."""
        from gridtf.schedulers.agents import StartedAgents, fork_agent

        here = self.this_host(environ)
        others = [host.name for host in allocation.hosts if not same_host(host.name, here)]
        if others:
            call.write_environment(environ)
        # forked first, so that it does not hold on to the pipes whose end tells the others to stop
        handles: list[AgentHandle] = [
            fork_agent(host.name, call.arguments, call.main) for host in allocation.hosts if same_host(host.name, here)
        ]
        return handles + [
            StartedAgents(
                self.agent_command(name, call, environ), environ, call.log, partial(self.blame, name), self.warnings
            )
            for name in others
        ]


def short_name(name: str) -> str:
    """The first part of a host's name, in lower case."""
    return name.split(".", 1)[0].lower()


def same_host(one: str, other: str) -> bool:
    """Whether two names mean one host: they are alike, or one of them is the other without its domain."""
    one, other = one.lower(), other.lower()
    return one == other or (("." in one) != ("." in other) and short_name(one) == short_name(other))


# --- job arrays

_MOST_ELEMENTS = 4_000_001  # the largest MaxArraySize that Slurm takes; Grid Engine's arrays are smaller
_INDICES = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
# Of several parts of a job the worst state is that of the whole.
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
    """Elements of a job array as schedulers write them, ``3``, ``0-6`` or ``0-6:2``; None for anything else."""
    match = _INDICES.fullmatch(text)
    if match is None:
        return None
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low or high - low > _MOST_ELEMENTS or step < 1:
        return None
    return range(low, high + 1, step)


def array_elements(text: str, complaint: Callable[[str], SpecError], *, least: int = 0) -> tuple[str, ...]:
    """The elements of a list such as ``0-6:2,9``.

    Args:
        text: The list.
        complaint: Makes the error for a part that is no index.
        least: The lowest index that the scheduler takes.

    Raises:
        SpecError: As complaint made it.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        span = indices(part)
        if span is None or span.start < least:
            raise complaint(part)
        numbers.update(span)
    return tuple(str(number) for number in sorted(numbers))


def array_status(parts: Iterable[tuple[JobStatus, int]], known: str, *, always: bool = False) -> JobStatus:
    """The status of an array: running if an element runs, waiting if one waits, else the worst that became of one.

    Args:
        parts: (status, number of elements that it holds for).
        known: Who still knows these elements, for the message about an array that has ended.
        always: The message says that of an array that has not ended, too.
    """
    found = list(parts)
    counts: Counter[JobState] = Counter()
    for status, count in found:
        counts[status.state] += count
    in_order = [JobState.RUNNING, JobState.PENDING, *WORST_FIRST]
    words = ", ".join(f"{counts[state]} {state}" for state in in_order if counts[state])
    worst = next(state for state in in_order if counts[state])
    why = next((status.reason for status, _ in found if status.state == worst and status.reason), "")
    live = counts[JobState.RUNNING] or counts[JobState.PENDING]
    which = f" {known}" if always or not live else ""
    return JobStatus(worst, f"elements of the array{which}: {words}" + (f" ({why})" if why else ""))


# --- values in directive lines

# Quotes, backslashes and # mean something to the one scheduler or the other; whitespace ends a word.
_WORD = re.compile(r"""[^\s'"`\\#-][^\s'"`\\#]*""")


def word(key: str, value: str) -> str:
    """value for a directive line, which no shell reads and each scheduler parses in its own way.

    Raises:
        SpecError: With the key, for a value that cannot stand there.
    """
    if not value.isprintable() or not _WORD.fullmatch(value):
        raise SpecError(
            key,
            f"{value!r} cannot stand in a directive line",
            why="whitespace, quotes, backslashes and # there end a value or change it, and a dash begins an option",
            hint="if it has to be, give the whole option with native, written as the scheduler's manual says",
        )
    return value


def native(spec: JobSpec) -> tuple[str, ...]:
    """The user's raw options, one a line.

    Raises:
        SpecError: For what is not an option on a line of its own.
    """
    for option in spec.native:
        if not option.startswith("-") or not option.isprintable():
            raise SpecError("native", f"{option!r} is not an option", hint="one option a string, such as '--qos=high'")
    return tuple(spec.native)


def whole(text: str) -> int | None:
    """A whole number as commands and files of schedulers have it, such as ``16``; None for anything else.

    ``²`` is a digit for Python, too, and numbers of thousands of digits are an error.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


# --- folders that all hosts see

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
SHARED_HINT = "choose a folder on a file system that all hosts share"


def check_shared(plan: Plan, mounts: str | None = None) -> None:
    """Check that other hosts can see the run directory and the working folder, as far as this host can tell.

    Args:
        plan: The submission.
        mounts: The content of /proc/self/mounts; None: it is read.

    Raises:
        SpecError: When one of them lies in this host's memory.
    """
    run_key = "run_dir" if plan.spec.run_dir else "run_root"
    for key, folder in (("chdir", Path(plan.spec.chdir or "/")), (run_key, plan.run_dir)):
        why = not_shared(folder, mounts)
        if why:
            raise SpecError(key, f"{folder} cannot be seen by other hosts", why=why, hint=SHARED_HINT)


def not_shared(folder: Path, mounts: str | None = None) -> str:
    """Why other hosts cannot see a folder; empty for one on a disk, which they may mount. mounts: see check_shared."""
    text = Path("/proc/self/mounts").read_text(errors="replace") if mounts is None else mounts
    mount, kind = file_system(folder, text)
    return f"{mount} is a {kind}: it lies in the memory of this one" if kind in _MEMORY else ""


def file_system(folder: Path, mounts: str) -> tuple[str, str]:
    """(mount point, type) of the file system that a folder lies on. mounts: as in fstab(5)."""
    found = ("/", "")
    for line in mounts.splitlines():
        _, raw, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), raw)  # \040 is a space
        # of two mounts on the same folder the later one is seen
        if PurePosixPath(folder).is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found
