"""gridtf wait, and ``gridtf submit --wait`` after submitting."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.login.job import Job

STILL_RUNNING = 124  # as timeout(1)
_INTERRUPTED = 130
_SILENCE = 60.0
_SETTLES = 5.0  # seconds that schedulers may take to clean up after a job


def parser(**more: Any) -> Parser:
    made = new_parser("wait", "JOB [options]", ("digits", "4711 --timeout 600"), job=True, json=True, **more)
    help_text = f"seconds to wait at most; the exit code is {STILL_RUNNING} if the job still runs then"
    made.add_argument("--timeout", metavar="S", type=_seconds, help=help_text)
    return made


def run(arguments: Namespace) -> int:
    return follow(find_job(arguments), arguments.timeout, as_json=arguments.json)


def follow(job: Job, timeout: float | None = None, *, as_json: bool = False) -> int:
    """Print changes of a job's state to stderr until it ends, then its verdict to stdout. Ctrl-C leaves it running.

    Args:
        job: The job.
        timeout: Seconds to wait at most; None: no limit.
        as_json: Whether to print the verdict as JSON.

    Returns:
        The job's exit code; STILL_RUNNING after the timeout, 130 after Ctrl-C.
    """
    try:
        return _follow(job, timeout, as_json)
    except KeyboardInterrupt:
        name = plain(job.id)
        lines = (
            f"gridtf: job {name} continues",
            f"  to wait again: gridtf wait {name}",
            f"  to cancel it:  gridtf cancel {name}",
        )
        output.message("\n" + "\n".join(lines))
        return _INTERRUPTED


def _follow(job: Job, timeout: float | None, as_json: bool) -> int:
    from gridtf.cli import show
    from gridtf.states import ENDED, JobState

    printed, printed_at, ended_at = "", 0.0, None
    for view in job.watch(timeout):
        line, now = show.progress(view), time.monotonic()
        ended_at = (ended_at or now) if view.state in ENDED else None
        if ended_at is not None and now - ended_at < _SETTLES:
            continue
        if not view.finished and (line != printed or now - printed_at > _SILENCE):
            output.message(f"{time.strftime('%H:%M:%S')}  {line}")
            printed, printed_at = line, now
    if as_json:
        output.result(show.as_json(view))
    elif view.finished:
        output.result(show.verdict(view, time.time()))
    else:
        output.message(f"gridtf: job {plain(job.id)} has not ended after {timeout:g} s")
    if not view.finished:
        return STILL_RUNNING
    return 0 if view.state == JobState.COMPLETED else view.exit_code or 1


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # nor a nan
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
