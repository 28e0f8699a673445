"""Runs a scheduler's own commands: bounded in time, their messages in English, what goes wrong said in one line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gridtf.errors import SchedulerError
from gridtf.host import processes


@dataclass(frozen=True)
class Answer:
    """What a command said. code: its exit code, or minus the signal that ended it."""

    code: int
    out: str
    err: str

    @property
    def last_word(self) -> str:
        """The last line of what it complained of."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


class NoAnswerError(SchedulerError):
    """A command that did not end in time. out: what it had printed until then."""

    out = ""


def _child() -> None:
    # Grid Engine warns of a job's end by a signal to all that run in it: what we then ask it with must not die of that.
    processes.ignore_signals(processes.PASSED_ON)
    processes.unblock_signals()  # a launcher holds signals back, and this would inherit that


def ask(argv: Sequence[str], *, limit: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Run a command and give its answer, whatever its exit code.

    limit: seconds. environ: its environment; None: ours, with words in English. Raises NoAnswerError when it does not
    end in time, SchedulerError when it is not there.
    """
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
            preexec_fn=_child,
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
