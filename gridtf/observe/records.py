"""Reads what the run directory holds of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gridtf.run import recordtypes
from gridtf.run.rundir import BY_HAND, JOINED, OPENED, Record, RunDir, names, read_private, read_record


@dataclass(frozen=True)
class Records:
    """What the run directory holds of a job and of its latest attempt. None: not there.

    hosts: state records of the hosts. logs: names of the tasks' logs. has_log: whether the job script has a log.
    joined: whether its tasks joined by themselves (gridtf_join), so that there is no launcher. elements: those of a job
    array, each with its verdict, None without one.
    """

    submitted: Record | None = None
    job: Record | None = None
    cancelled: Record | None = None
    attempt: int | None = None
    plan: Record | None = None
    verdict: Record | None = None
    stop: Record | None = None
    launcher: Record | None = None
    hosts: tuple[Record, ...] = ()
    logs: frozenset[str] = frozenset()
    has_log: bool = False
    joined: bool = False
    elements: Mapping[str, Record | None] = field(default_factory=dict)


def read_submitted(run: RunDir, *, own: bool = False) -> Record | None:
    """submitted.json; None where it is not there, or not for us to read. own: to act upon it: as rundir.open_plain.
    Raises RunDirError when it does not tell which job it is."""
    if own:
        return read_record(run.submitted, recordtypes.Submitted, own=True)
    return read_private(run.submitted, recordtypes.Submitted)


def read_joined(run: RunDir) -> Record | None:
    """The job in which the tasks of the latest attempt joined by themselves: its scheduler, and its id there."""
    paths = [run.path / name / OPENED for name in names(run.path) if name.startswith(JOINED)]
    records = [read_record(path, recordtypes.Opened, listed=True) for path in paths]
    told = [record for record in records if record and "job_id" in record]
    return max(told, key=lambda record: int(record["attempt"]), default=None)


def own_script(submitted: Record) -> bool:
    """Whether the job's script is this run and nothing else: one written by hand may go on after a gridtf_run."""
    return list(submitted.get("command", ()))[:1] != [BY_HAND]


def read(run: RunDir, submitted: Record | None) -> Records:
    """Read what there is. Records whose nonce is not the plan's are another attempt's and count as not there.

    What was asked for is its owner's to read, who may have secrets in it; how it stands is everybody's.
    """
    top = names(run.path)
    records = Records(
        submitted=submitted,
        job=read_private(run.job, recordtypes.Job),
        cancelled=read_record(run.cancelled, recordtypes.Cancelled, listed=True) if run.cancelled.name in top else None,
        has_log=run.log.name in top,
        joined=any(name.startswith(JOINED) for name in top),
        elements={name: _verdict_of(RunDir(run.elements / name)) for name in (submitted or {}).get("elements", [])},
    )
    attempt = run.latest()
    if attempt is None:
        return records
    plan = read_private(attempt.plan, recordtypes.Outline)
    nonce = plan.get("nonce") if plan else None

    def told(path: Path, kind: Any, there: Sequence[str]) -> Record | None:
        return read_record(path, kind, nonce=nonce, listed=True) if path.name in there else None

    states = names(attempt.state)
    launcher = told(attempt.launcher, recordtypes.Launcher, states)
    paths = (attempt.state / name for name in sorted(states) if name.startswith("@"))
    hosts = (told(path, recordtypes.HostState, states) for path in paths)
    return replace(
        records,
        attempt=attempt.number,
        plan=plan,
        launcher=launcher,
        hosts=tuple(record for record in hosts if record),
        logs=frozenset(names(attempt.logs)),
        stop=told(attempt.stop, recordtypes.Stop, names(attempt.path)),
        # last: what it sums up has been read before
        verdict=told(attempt.verdict, recordtypes.Verdict, names(attempt.path)),
    )


def _verdict_of(element: RunDir) -> Record | None:
    latest = element.latest()
    return read_record(latest.verdict, recordtypes.Verdict) if latest else None
