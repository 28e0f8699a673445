"""Elements of a sweep that have ended: few files each, so that a sweep of thousands does not fill a file system.

``result.json`` and ``attempts.tar.gz`` take the place of the folders of the attempts. An attempt that begins after that
counts in their place, as when a scheduler starts an element again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gridtf import files
from gridtf.errors import RunDirError
from gridtf.run import jsonlines, ranges, recordtypes
from gridtf.run.reading import known
from gridtf.run.rundir import (
    Attempt,
    Record,
    RunDir,
    cannot,
    listdir,
    open_plain,
    read_record,
    write_record,
)

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def result(run: RunDir, names: list[str] | None = None) -> Record | None:
    """How an element has ended whose attempts were packed; None for any other run.

    Args:
        run: Its run directory.
        names: The names in it, if they have just been listed.

    Raises:
        RunDirError: When the record is damaged.
    """
    names = listdir(run.path) if names is None else names
    if run.result.name not in names or run.attempts(names):
        return None
    return read_record(run.result, recordtypes.Result, listed=True)


def values(attempt: Attempt) -> dict[str, Record]:
    """What the tasks of an attempt have reported by gridtf.progress.

    Returns:
        Name of a value -> its ``last``, ``least`` and ``most``, and the ``step`` of the last, as the first task that
        reports it has told them. A last value that is no finite number is None.
    """
    found: dict[str, dict[str, Record]] = {}  # by task
    hosts = known(attempt.summary, recordtypes.Summary).get("hosts", {})
    states = {name: task for host in hosts.values() for name, task in host["tasks"].items()}
    reports = [
        (task, {**used, **used.get("progress", {})})
        for sample in (*jsonlines.read(attempt.samples, recordtypes.Sample), {"tasks": states})
        for task, used in sample["tasks"].items()
    ]
    for task, told in reports:
        of_task, said = found.setdefault(task, {}), told.get("values", {})
        wide = ranges.together(ranges.of_values(said), told.get("ranges", {}))
        for name, (low, high) in wide.items():
            before = of_task.get(name, {"least": low, "most": high})
            last = said.get(name)
            of_task[name] = {
                "last": last if ranges.of_values({name: last}) else None,
                "least": min(low, before["least"]),
                "most": max(high, before["most"]),
                "step": told.get("step"),
            }
    order = [*recordtypes.tasks_of(known(attempt.plan, recordtypes.Outline)), *found]
    return {name: told for task in reversed(order) for name, told in found.get(task, {}).items()}


def reduce(run: RunDir, params: Mapping[str, Any]) -> None:
    """Put result.json and attempts.tar.gz in the place of the attempts of an element that has ended for good.

    Args:
        run: Its run directory.
        params: Its parameters.

    Raises:
        RunDirError: When that cannot be written; the attempts are still there then.
    """
    latest = run.latest()
    verdict = read_record(latest.verdict, recordtypes.Verdict, own=True) if latest else None
    if latest is None or verdict is None or verdict.get("again", False) is not False or verdict.get("next"):
        return
    plan: Record = read_record(latest.plan, recordtypes.Outline, own=True) or {}
    tasks = recordtypes.tasks_of(plan)
    hosts = dict.fromkeys(task.get("host", "") for task in tasks.values())
    had = {
        "hosts": len(hosts),
        "cpus": requested_cpus(plan.get("spec", {}), tasks),
        "gpus": sum(task["gpus"] for task in tasks.values()),
    }
    record = {
        "attempt": latest.number,
        "verdict": verdict,
        "params": dict(params),
        "values": values(latest),
        "had": had,
        "hosts": [*hosts],
        "tasks": len(tasks),
    }
    if verdict.get("cause"):
        log = Path(verdict["cause"]["log"])
        verdict["cause"]["log"] = str(run.archive / (log.relative_to(run.path) if log.is_relative_to(run.path) else ""))
    attempts = [attempt.path.name for attempt in run.attempts()]
    _pack(run, [*attempts, *{run.hooks_log.name}.intersection(listdir(run.path))])
    write_record(run.result, record)
    try:
        for name in attempts:
            doomed = (run.path / name).rename(run.path / f".{name}.removed")  # at once for those who read it
            with files.opened(doomed) as folder:
                files.empty(folder)
            doomed.rmdir()
        run.hooks_log.unlink(missing_ok=True)
    except OSError as error:
        raise cannot("remove what is packed in", run.path, error) from None


def requested_cpus(spec: Mapping[str, Any], tasks: Iterable[str]) -> int:
    """The CPUs that tasks have requested; one for a task that has not.

    Args:
        spec: The specification of their job, as JSON values.
        tasks: Their names, such as ``worker:0``.
    """
    tables = (spec.get("tasks", {}).get(task.partition(":")[0], {}) for task in tasks)
    return sum(int(table.get("cpus") or spec.get("cpus_per_task") or 1) for table in tables)


def _pack(run: RunDir, names: list[str]) -> None:
    """Pack folders of a run directory into its archive, for this user alone: a plan has a key."""
    import tarfile

    temporary = run.path / f".{run.archive.name}.{os.urandom(8).hex()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
            for name in names:
                archive.add(run.path / name, name)
        temporary.replace(run.archive)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot("write", run.archive, error) from None
        raise


@contextlib.contextmanager
def unpacked(run: RunDir) -> Iterator[RunDir]:
    """A run directory with the attempts of an element: a copy for the time being, where they are packed.

    Raises:
        RunDirError: When the archive is damaged or another user's.
    """
    names = listdir(run.path)
    if run.archive.name not in names or run.attempts(names):
        yield run
        return
    import shutil
    from tempfile import TemporaryDirectory

    from gridtf import archives

    with TemporaryDirectory(prefix="gridtf-") as folder:
        try:
            with open_plain(run.archive, own=True) as file:
                archives.unpack_tar(file, Path(folder))
            for name in {*names} & {run.log.name, run.job.name, run.submitted.name}:
                with open_plain(run.path / name) as source, Path(folder, name).open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        except (OSError, archives.DamagedError) as error:
            raise RunDirError(f"cannot read {run.archive}: {error}") from None
        yield RunDir(folder)
