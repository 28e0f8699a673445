"""The stacks of a running job's processes: asks its launcher for them, through the run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gridtf.errors import NotFoundError, nearest
from gridtf.observe.ask import ask, need_allowed
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir
from gridtf.text import some


def request(run: RunDir) -> Record:
    """Ask the launcher of a running job where its tasks are, and wait for the answer.

    Returns:
        stacks.json.

    Raises:
        GridtfError: When the job is not running, or its launcher does not answer.
        RunDirError: When the run directory belongs to another user.
    """
    need_allowed(run, "stacks")
    asked = {"id": os.urandom(8).hex()}
    return ask(run, asked, lambda attempt: (attempt.stacks_request, attempt.stacks), recordtypes.Stacks)


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
