"""The stacks of a running job's processes: asks its launcher for them, through the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from gridtf.errors import GridtfError, NotFoundError, RunDirError, nearest
from gridtf.host import users
from gridtf.observe import jobs
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import Record, RunDir, allowed, is_ours, owner, read_record, write_record
from gridtf.states import JobState
from gridtf.text import some

_ANSWER_LIMIT = 20.0  # seconds: the launcher looks every two, and waits six for its hosts
_ANSWER_PAUSE = 0.2


def request(run: RunDir) -> Record:
    """Ask the launcher of a running job where its tasks are, and wait for the answer.

    Returns:
        stacks.json.

    Raises:
        GridtfError: When the job is not running, or its launcher does not answer.
        RunDirError: When the run directory belongs to another user.
    """
    registry.need_run(run)
    registry.need_one_job(run, "stacks")
    view, attempt = jobs.view(run), run.latest()
    if not is_ours(run.path):
        if os.geteuid() == 0:
            told: Record = users.run_as(run.path, lambda: request(run))
            return told
        who = owner(run.path)
        raise RunDirError(f"the job in {run.path} belongs to user {who}", hint=f"only {allowed(who)} can ask it")
    plan = read_record(attempt.plan, recordtypes.Outline, own=True) if attempt else None
    if attempt is None or view.state != JobState.RUNNING or plan is None or "nonce" not in plan:
        why = f"{view.state}: {view.reason}" if view.reason else view.state
        hint = "" if view.finished else f"see `gridtf status {view.job_id or run.path}`"
        raise GridtfError(f"job {view.name} is not running, so that no task has a stack", why=why, hint=hint)
    nonce = plan["nonce"]
    before = read_record(attempt.stacks, recordtypes.Stacks, nonce=nonce, own=True) or {}
    write_record(attempt.stacks_request, {"nonce": nonce, "id": os.urandom(8).hex()})
    end = time.monotonic() + _ANSWER_LIMIT
    while time.monotonic() < end:
        answer = read_record(attempt.stacks, recordtypes.Stacks, nonce=nonce, own=True)
        if answer is not None and answer["id"] != before.get("id"):
            return answer
        time.sleep(_ANSWER_PAUSE)
    attempt.stacks_request.unlink(missing_ok=True)
    raise GridtfError(
        f"the launcher of job {view.name} has not answered within {_ANSWER_LIMIT:g} s",
        why="its host is busy, its file system is slow, or its tasks have not started yet",
        hint=f"see `gridtf status {view.job_id or run.path}`, and try again",
    )


def chosen(answer: Record, tasks: Sequence[str] | None) -> Record:
    """Keep some tasks of an answer.

    Args:
        answer: As request returns it.
        tasks: Such as ``worker:0``, or ``worker`` for all of a type; None: all.

    Raises:
        NotFoundError: When there is no such task.
    """
    if not tasks:
        return answer
    kept: dict[str, Record] = {}
    for wanted in tasks:
        found = {name: task for name, task in answer["tasks"].items() if wanted in (name, name.partition(":")[0])}
        if not found:
            names = [*answer["tasks"]]
            raise NotFoundError(
                f"no such task runs: {wanted}", why=f"choose from: {some(names)}", hint=nearest(wanted, names)
            )
        kept.update(found)
    return {**answer, "tasks": kept}
