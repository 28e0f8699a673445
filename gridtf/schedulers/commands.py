"""Running the commands of a scheduler, with a time limit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

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
