"""gridtf wait, and ``gridtf submit --wait`` after submitting."""

from __future__ import annotations

import os
import time
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.observe.views import JobView

STILL_RUNNING = 124  # as timeout(1)
INTERRUPTED = 130
_SILENCE = 60.0
_SETTLES = 5.0  # seconds that schedulers may take to clean up after a job


def parser(**more: Any) -> Parser:
    made = new_parser("wait", "JOB [options]", ("digits", "4711 --timeout 600"), job=True, json=True, **more)
    help_text = f"seconds to wait at most, or 10m; the exit code is {STILL_RUNNING} if the job still runs then"
    made.add_argument("--timeout", metavar="S", type=_seconds, help=help_text)
    return made


def run(arguments: Namespace) -> int:
    begin, timeout = time.monotonic(), arguments.timeout
    job = _begun(arguments, float("inf") if timeout is None else begin + timeout)
    if job is None:
        output.message(f"gridtf: job {plain(arguments.job)} has not ended after {timeout:g} s")
        return STILL_RUNNING
    return follow(job, timeout, as_json=arguments.json, spent=time.monotonic() - begin)


def _begun(arguments: Namespace, deadline: float) -> Job | None:
    """The job, as soon as the script of one in the queue has come to gridtf_run; None if that is after the deadline."""
    from gridtf.errors import NotBegunError
    from gridtf.observe.polling import CLUSTER
    from gridtf.run import registry

    pause = 0.0
    while True:
        try:
            return find_job(arguments)
        except NotBegunError as error:
            if not pause:
                output.message(f"gridtf: {error.what}: waiting for it; {error.why}")
        pause = min(max(CLUSTER.first, pause * CLUSTER.growth), CLUSTER.longest)
        due = time.monotonic() + pause
        while time.monotonic() < due and all(entry.job_id != arguments.job for entry in registry.entries(os.environ)):
            if time.monotonic() >= deadline:
                return None
            time.sleep(max(0.0, min(1.0, deadline - time.monotonic())))


def follow(
    job: Job, timeout: float | None = None, *, as_json: bool = False, quiet: bool = False, spent: float = 0.0
) -> int:
    """Print changes of a job's state to stderr until it ends, then its verdict to stdout. Ctrl-C leaves it running.

    Args:
        timeout: Seconds to wait at most; None: no limit.
        as_json: Whether to print the verdict as JSON.
        quiet: Whether to print the verdict alone.
        spent: Seconds of the timeout that have passed.

    Returns:
        The job's exit code; STILL_RUNNING after the timeout, 130 after Ctrl-C.
    """
    changes = Changes()
    try:
        for view in job.watch(None if timeout is None else max(0.0, timeout - spent)):
            if not quiet and (line := changes.line(view)):
                output.message(line)
    except KeyboardInterrupt:
        return interrupted(job)
    if view.finished:
        return ended(view, as_json=as_json)
    if as_json:
        from gridtf.cli import show

        output.result(show.as_json(view))
    else:
        output.message(f"gridtf: job {plain(job.id)} has not ended after {timeout:g} s")
    return STILL_RUNNING


class Changes:
    """Turns views of a job into lines for those who wait for it: one for each change, and one a minute without any."""

    def __init__(self) -> None:
        self._line = ""
        self._ended_at: float | None = None
        self.printed_at = 0.0  # when something was printed last (time.monotonic())

    def line(self, view: JobView) -> str:
        """What to print, with the time; empty for nothing.

        Args:
            view: The state of the job now.
        """
        from gridtf.cli import show
        from gridtf.states import ENDED

        line, now = show.progress(view), time.monotonic()
        self._ended_at = (self._ended_at or now) if view.state in ENDED else None
        settles = self._ended_at is not None and now - self._ended_at < _SETTLES
        if view.finished or settles or (line == self._line and now - self.printed_at <= _SILENCE):
            return ""
        self._line, self.printed_at = line, now
        return f"{time.strftime('%H:%M:%S')}  {line}"


def ended(view: JobView, *, as_json: bool = False) -> int:
    """Print the verdict on a job.

    Args:
        view: The job, which has ended.
        as_json: Whether to print JSON.

    Returns:
        The job's exit code.
    """
    from gridtf.cli import show
    from gridtf.states import JobState

    output.result(show.as_json(view) if as_json else show.verdict(view, time.time(), output.width()))
    return 0 if view.state == JobState.COMPLETED else view.exit_code or 1


def interrupted(job: Job, *more: tuple[str, str]) -> int:
    """Say after Ctrl-C that a job continues, and how to come back to it.

    Args:
        more: (what, the command for it) besides waiting and cancelling.

    Returns:
        The exit code.
    """
    name = plain(job.id)
    rows = [*more, ("to wait again:", f"gridtf wait {name}"), ("to cancel it:", f"gridtf cancel {name}")]
    width = max(len(what) for what, _ in rows)
    lines = [f"gridtf: job {name} continues", *(f"  {what:<{width}} {command}" for what, command in rows)]
    output.message("\n" + "\n".join(lines))
    return INTERRUPTED


def _seconds(text: str) -> float:
    from gridtf.jobspec.units import parse_duration

    try:
        seconds = float(parse_duration(text) if text[-1:] in ("d", "h", "m", "s") else text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # nor a nan
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, nor a time with units, such as 10m")
    return seconds
