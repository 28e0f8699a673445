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
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import Attempt, Record, RunDir, allowed, is_ours, owner, read_record, write_record
from gridtf.states import JobState

_ANSWER_LIMIT = 20.0  # seconds: the launcher looks every two, and waits six for its hosts
_ANSWER_PAUSE = 0.2
Files = Callable[[Attempt], tuple[Path, Path]]


def need_allowed(run: RunDir, command: str) -> None:
    """Check that a run is a job that a command may ask something.

    Args:
        command: The gridtf command.

    Raises:
        NotFoundError: When it is no run directory, or an array of jobs.
        RunDirError: When it is another user's, and this user is not root.
    """
    registry.need_one_job(run, command)
    if os.geteuid() != 0 and not is_ours(run.path):
        who = owner(run.path)
        raise RunDirError(f"the job in {run.path} belongs to user {who}", hint=f"only {allowed(who)} can ask it")


def ask(run: RunDir, request: Record, files: Files, kind: recordtypes.Kind) -> Record:
    """Ask the launcher of a running job, and wait for an answer that was not there before.

    Args:
        run: The run directory, of a job that this user may ask.
        request: The request, without the nonce.
        files: The files of the request and of the answer.
        kind: The kind of the answer.

    Raises:
        GridtfError: When the job is not running, or its launcher does not answer.
    """
    if not is_ours(run.path):
        told: Record = users.run_as(run.path, lambda: ask(run, request, files, kind))
        return told
    view, attempt = jobs.view(run), run.latest()
    plan = read_record(attempt.plan, recordtypes.Outline, own=True) if attempt else None
    still = "" if view.finished else f"see `gridtf status {view.job_id or run.path}`"
    if attempt is None or view.state != JobState.RUNNING or plan is None or "nonce" not in plan:
        what = f"job {view.name} is not running, so that it cannot be asked"
        raise GridtfError(what, why=_joined(view.state, view.reason), hint=still)
    (file, answer), nonce = files(attempt), plan["nonce"]
    before = read_record(answer, kind, nonce=nonce, own=True)
    write_record(file, {"nonce": nonce, **request}, mode=0o600)
    try:
        end = time.monotonic() + _ANSWER_LIMIT
        while time.monotonic() < end:
            found = read_record(answer, kind, nonce=nonce, own=True)
            if found is not None and found != before:
                return found
            if why := ending(attempt):
                raise GridtfError(f"job {view.name} is ending, so that it cannot be asked", why=why, hint=still)
            time.sleep(_ANSWER_PAUSE)
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    raise GridtfError(
        f"the launcher of job {view.name} has not answered within {_ANSWER_LIMIT:g} s",
        why="its host is busy, its file system is slow, or its tasks have not started yet",
        hint=f"{still}, and try again",
    )


def ending(attempt: Attempt | None) -> str:
    """State and reason with which an attempt ends its tasks, or has ended them; empty while it does not."""
    stop = read_record(attempt.stop, recordtypes.Stop) if attempt else None
    return _joined(stop.get("state", "it is stopped"), stop.get("reason", "")) if stop else ""


def _joined(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state
