"""Requests to the launcher of a running job, which go through the run directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gridtf.errors import GridtfError, RunDirError
from gridtf.host import users
from gridtf.observe import jobs
from gridtf.observe.state import JobView
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import Attempt, Record, RunDir, allowed, is_ours, owner, read_record, write_record
from gridtf.states import JobState
from gridtf.values import Value

_ANSWER_LIMIT = 20.0  # seconds: the launcher looks every two, and waits six for its hosts
_ANSWER_PAUSE = 0.2
Answer = Callable[[Attempt, str], Record | None]  # of an attempt with this nonce; None: there is none yet


class Question(Value):
    """What is asked.

    Attributes:
        command: The gridtf command that asks.
        without: What a job that does not run has not, for the error.
    """

    command: str
    without: str


def ask(run: RunDir, question: Question, request: Record, path: Callable[[Attempt], Path], answer: Answer) -> Record:
    """Ask the launcher of a running job, and wait for its answer.

    Args:
        request: The request, without the nonce.
        path: Where it is written.
        answer: Reads the answer.

    Raises:
        GridtfError: When the job is not running, or its launcher does not answer.
        RunDirError: When the run directory belongs to another user.
    """
    registry.need_run(run)
    registry.need_one_job(run, question.command)
    need_allowed(run)
    if not is_ours(run.path):
        told: Record = users.run_as(run.path, lambda: ask(run, question, request, path, answer))
        return told
    view, attempt = jobs.view(run), run.latest()
    plan = read_record(attempt.plan, recordtypes.Outline, own=True) if attempt else None
    if attempt is None or view.state != JobState.RUNNING or plan is None or "nonce" not in plan:
        raise not_running(view, question.without)
    nonce, file = plan["nonce"], path(attempt)
    before = answer(attempt, nonce)
    write_record(file, {"nonce": nonce, **request}, mode=0o600)
    try:
        end = time.monotonic() + _ANSWER_LIMIT
        while time.monotonic() < end:
            if (found := answer(attempt, nonce)) != before and found is not None:
                return found
            time.sleep(_ANSWER_PAUSE)
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    raise GridtfError(
        f"the launcher of job {view.name} has not answered within {_ANSWER_LIMIT:g} s",
        why="its host is busy, its file system is slow, or its tasks have not started yet",
        hint=f"see `gridtf status {view.job_id or run.path}`, and try again",
    )


def need_allowed(run: RunDir) -> None:
    """Check that the job is this user's, or this user root.

    Raises:
        RunDirError: When it is another user's.
    """
    if os.geteuid() != 0 and not is_ours(run.path):
        who = owner(run.path)
        raise RunDirError(f"the job in {run.path} belongs to user {who}", hint=f"only {allowed(who)} can ask it")


def not_running(view: JobView, without: str) -> GridtfError:
    """The error for a job that does not run."""
    why = f"{view.state}: {view.reason}" if view.reason else view.state
    hint = "" if view.finished else f"see `gridtf status {view.job_id or view.run_dir}`"
    return GridtfError(f"job {view.name} is not running, {without}", why=why, hint=hint)
