"""Reads what the run directory holds of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gridtf.errors import RunDirError
from gridtf.rundir import BY_HAND, JOINED, Record, RunDir, names, read_private, read_record


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


def read_submitted(run: RunDir) -> Record | None:
    """submitted.json; None where it is not there, or not for us to read. Raises RunDirError when it tells no job."""
    record = read_private(run.submitted)
    if record is not None and not all(isinstance(record.get(key), str) for key in ("scheduler", "job_id")):
        hint = "without that file, `gridtf status` goes by what else there is"
        raise RunDirError(f"{run.submitted} does not say which job it is", hint=hint)
    return record


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
        job=read_private(run.job),
        cancelled=read_record(run.cancelled, listed=True) if run.cancelled.name in top else None,
        has_log=run.log.name in top,
        joined=any(name.startswith(JOINED) for name in top),
        elements={name: _verdict_of(RunDir(run.elements / name)) for name in (submitted or {}).get("elements", [])},
    )
    attempt = run.latest()
    if attempt is None:
        return records
    plan = read_private(attempt.plan)
    nonce = plan.get("nonce") if plan else None

    def ours(record: Record | None) -> Record | None:
        return record if record and (nonce is None or record.get("nonce") == nonce) else None

    states = names(attempt.state)
    hosts = (read_record(attempt.state / name, listed=True) for name in sorted(states) if name.startswith("@"))
    return replace(
        records,
        attempt=attempt.number,
        plan=plan,
        launcher=ours(read_record(attempt.launcher, listed=True)) if attempt.launcher.name in states else None,
        hosts=tuple(record for record in map(ours, hosts) if record),
        logs=frozenset(names(attempt.logs)),
        stop=ours(read_record(attempt.stop)),
        verdict=ours(read_record(attempt.verdict)),  # last: what it sums up has been read before
    )


def _verdict_of(element: RunDir) -> Record | None:
    latest = element.latest()
    return read_record(latest.verdict) if latest else None
