"""Checkpoints in a folder that one host alone has: what the launcher tells of what the agents have seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gridtf.bootstrap.judge.evidence import NOTE, Evidence
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.run.rundir import Record
from gridtf.states import JobState
from gridtf.text import some

HINT = "write them to OUTPUT_DIR, which all hosts share and a further start finds again; in a command, to {output_dir}"


def told(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> str:
    """The warning; empty where no checkpoint is written to such a folder. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    found = [(task, str(records.get(task.name, {}).get("own_folder") or "")) for task in tasks]
    found = [(task, folder) for task, folder in found if folder]
    if not found:
        return ""
    first, folder = found[0]
    same = [task.name for task, where in found if (where, task.host) == (folder, first.host)]
    others = [task.name for task, _ in found if task.name not in same]
    also = f", and those of {some(others, most=2)} in another such folder" if others else ""
    return f"checkpoints of {some(same, most=2)} are in {folder} on {first.host}, which no other host sees{also}"


def notes(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Iterator[Evidence]:
    """The warning, for the verdict on a job that no task has failed. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    if warning := told(tasks, records):
        yield Evidence(NOTE, warning, hint=HINT, on=(JobState.COMPLETED, JobState.SAVED, JobState.TIMEOUT))


def noted(end: object, *_: object) -> object:
    """A verdict with the warning, to launchers of 0.1.0 that an upgrade in place has overtaken before their tasks ran:
    there is none."""
    return end
