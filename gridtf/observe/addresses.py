"""Addresses of the tasks of a running job, from its rendezvous file."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.errors import GridtfError, NotFoundError, nearest
from gridtf.observe.views import JobView
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, read_record
from gridtf.states import JobState
from gridtf.text import some

Addresses = Mapping[str, tuple[str, ...]]  # task type -> host:port of its tasks, in index order


def read(run: RunDir, view: JobView) -> tuple[Addresses, Addresses]:
    """Read the addresses of the tasks of a job.

    Args:
        run: Its run directory.
        view: Its state, read just before.

    Returns:
        Those of the cluster, as in TF_CONFIG, and those of tasks outside it.

    Raises:
        GridtfError: When the job is not running, or its tasks have not started yet.
        RunDirError: When the rendezvous file cannot be read.
    """
    attempt = run.latest()
    record: Record | None = None
    if attempt and view.state == JobState.RUNNING:
        record = read_record(attempt.rendezvous, recordtypes.Contract)
    if record is None:
        when = "its tasks no longer have addresses" if view.finished else "its tasks have no addresses yet"
        reason = f"{view.state}: {view.reason}" if view.reason else view.state
        hint = "" if view.finished else f"see `gridtf status {view.job_id or run.path}`"
        raise GridtfError(f"job {view.name} is not running, {when}", why=reason, hint=hint)
    parts = (record["cluster"], record.get("outside", {}))
    cluster, outside = ({name: tuple(each) for name, each in part.items()} for part in parts)
    return cluster, outside


def choose(addresses: Addresses, task: str) -> str:
    """The address of one task.

    Args:
        addresses: Those of all tasks.
        task: Such as ``worker:0``.

    Raises:
        NotFoundError: When there is no such task.
    """
    known = {f"{name}:{index}": at for name, those in addresses.items() for index, at in enumerate(those)}
    if task not in known:
        names = [*known]
        hint = nearest(task if ":" in task else f"{task}:0", names)
        raise NotFoundError(f"no such task: {task}", why=f"choose from: {some(names)}", hint=hint)
    return known[task]
