"""Running the commands of a scheduler, with a time limit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from gridtf.errors import SchedulerError
from gridtf.files import unnamed
from gridtf.values import Value

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
    def text(self) -> str:
        """All that it has printed, standard error first."""
        return f"{self.err}\n{self.out}"

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
    argv: Sequence[str],
    *,
    limit: float,
    environ: Mapping[str, str] | None = None,
    text: str = "",
    cwd: str | None = None,
) -> Answer:
    """Run a command of a scheduler and wait for its end.

    Args:
        argv: The command.
        limit: Seconds that the command may take.
        environ: Environment of the command; None: this process's own, with messages in English.
        text: What it reads from standard input.
        cwd: Its working folder; None: that of this process.

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
            cwd=cwd,
            preexec_fn=prepare,
        )
    except FileNotFoundError:
        what = f"{argv[0]} not found on {os.uname().nodename}"
        raise SchedulerError(what, hint="is this a login node? `module load` may be needed") from None
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


def killed(command: str, answer: Answer) -> str:
    """What has ended a command whose exit code is negative, such as ``sbatch was killed by SIGPIPE``."""
    from gridtf.host.processes import signal_name

    return f"{command} was killed by {signal_name(-answer.code)}"


def which(program: str, environ: Mapping[str, str]) -> str | None:
    """Path of a program on the PATH of this environment, like shutil.which but without the cost of its import."""
    places = (Path(folder, program) for folder in environ.get("PATH", "").split(os.pathsep) if folder)
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def on_path(program: str, environ: Mapping[str, str]) -> bool:
    """Whether a program is on the PATH of this environment."""
    return which(program, environ) is not None


class Commands:
    """The commands of a scheduler, on the login node and inside a job.

    Attributes:
        title: The scheduler's name in messages.
        submit_limit: Time limit of the submit and the cancel command, in seconds.
        query_limit: Time limit of the queue command, in seconds.
    """

    title: ClassVar[str]
    submit_limit: ClassVar[float] = 60.0
    query_limit: ClassVar[float] = 20.0

    def locate(self, command: str) -> str:
        """Path of a command of the scheduler; its bare name if it is to be found on the PATH."""
        return command

    def environment(self) -> dict[str, str]:
        """Environment of all commands but the submit command: this process's own, with messages in English."""
        return {**os.environ, "LC_ALL": "C"}

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

    def need_set_up(self, command: str, answer: Answer) -> None:
        """Raise SchedulerError where a command could not begin, such as without its configuration or its libraries."""

    def no_answer(self, message: str) -> NoAnswerError:
        """The error for a server that does not answer."""
        return NoAnswerError(f"{self.title} does not answer: {message}", hint=TRY_LATER)

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
            environ = self.environment()
            answer = run_command([self.locate(argv[0]), *argv[1:]], limit=limit, environ=environ, text=text)
        except NoAnswerError as error:
            self.need_set_up(argv[0], Answer(1, error.out, error.err))
            raise self.no_answer(f"{argv[0]} has not answered within {limit:g} s") from None
        self.need_set_up(argv[0], answer)
        if answer.code < 0:
            hint = "try again; if it is killed again, ask the administrators"
            raise SchedulerError(killed(argv[0], answer), hint=hint)
        if answer.code and self.unreachable(answer):
            raise self.no_answer(self.message(answer))
        return answer

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
