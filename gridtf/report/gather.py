"""Reads all that a run directory tells of a job, as far as this user may read it, and the rest is sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridtf.errors import RunDirError
from gridtf.jobspec.request import Request
from gridtf.observe import history, jobs
from gridtf.observe.codelines import code_of
from gridtf.observe.views import JobView
from gridtf.report import resources
from gridtf.report.timeline import Attempt, AttemptData, attempts
from gridtf.report.usage import Usage
from gridtf.run import recordtypes, reduced, registry
from gridtf.run.reading import Reading
from gridtf.run.rundir import Attempt as Paths
from gridtf.run.rundir import Record, RunDir
from gridtf.states import JobState
from gridtf.values import Value, grouped, of_dict

# The part of a plan that a report shows.
_PLAN = {
    **recordtypes.Outline,
    "python?": str,
    "request?": recordtypes.kind_of(Request),
}


class Material(Value):
    """What a report is made of.

    Attributes:
        view: The state of the job.
        submitted: submitted.json; empty where it cannot be read.
        job: job.json; empty where only its owner may read it.
        script: job.sh; None where it cannot be read.
        told: What the run directory has of each attempt.
        attempts: The timeline.
        usage: What the job has used.
        hidden: Files that only their owner may read.
        damaged: What is wrong with records that cannot be used, a line each.
        now: When it was read, in seconds since the epoch.
        code: What is known of its code, as in JobView.
        diff: code.diff; None where it was not asked for, or cannot be read.
    """

    view: JobView
    submitted: Mapping[str, Any]
    job: Mapping[str, Any]
    script: str | None
    told: tuple[AttemptData, ...]
    attempts: tuple[Attempt, ...]
    usage: Usage
    hidden: tuple[str, ...]
    damaged: tuple[str, ...]
    now: float
    code: Mapping[str, Any] = {}
    diff: str | None = None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The specification of the job; empty where only its owner may read it."""
        spec: Mapping[str, Any] = self.job.get("spec", {})
        return spec

    @property
    def request(self) -> Request:
        """The request of the last attempt's plan; resources.UNKNOWN where only its owner may read it."""
        known = (one.plan["request"] for one in reversed(self.told) if "request" in one.plan)
        return next((of_dict(Request, record) for record in known), resources.UNKNOWN)

    @property
    def tasks(self) -> dict[str, str]:
        """Task -> its host, in the last attempt."""
        last = self.told[-1] if self.told else AttemptData(1)
        planned = {name: task.get("host") or "" for name, task in recordtypes.tasks_of(last.plan).items()}
        return planned or {name: host for host, record in last.hosts.items() for name in record.get("tasks", ())}

    @property
    def gpus(self) -> dict[str, tuple[str, ...]]:
        """Task -> its GPUs, in the last attempt."""
        hosts = self.told[-1].hosts if self.told else {}
        return {name: tuple(gpus) for host in hosts.values() for name, gpus in host.get("gpus", {}).items()}


def gather(
    run: RunDir, now: float, view: JobView | None = None, *, with_code: bool = False, curves: bool = True
) -> Material:
    """Read a job.

    Args:
        run: Its run directory.
        now: Seconds since the epoch.
        view: Its state, where that is known already.
        with_code: Whether to read how its code differs from its commit.
        curves: Whether to make the curves of its usage, which takes as long as all else.

    Raises:
        RunDirError: When the run directory cannot be listed.
    """
    try:
        with reduced.unpacked(run) as place:
            if place is not run:  # an element of a sweep that has ended: its attempts are packed
                made = _gather(place, now, None, with_code=False, curves=curves)
                reading = Reading(run)
                code = {**(code_of(run, reading) or {}), **made.code}  # of the sweep, and the Python of the attempt
                diff = reading.text(registry.whole(run).diff) if with_code else None
                view = made.view.replace(run_dir=run.path, output_dir=run.output)
                return made.replace(view=view, code=code, diff=diff, damaged=(*made.damaged, *reading.damaged.values()))
    except RunDirError:  # the archive is another user's
        pass
    return _gather(run, now, view, with_code=with_code, curves=curves)


def gather_all(run: RunDir, now: float, view: JobView | None = None) -> Iterator[Material]:
    """Read a job, or the elements of an array, without curves; as gather."""
    for one in (elements := registry.elements_of(run)) or [run]:
        yield gather(one, now, None if elements else view, curves=False)


def _gather(run: RunDir, now: float, view: JobView | None, *, with_code: bool, curves: bool) -> Material:
    reader = Reading(run)
    view = view or jobs.views([run])[0]
    submitted = reader.private(run.submitted, recordtypes.Submitted) or {}
    events = grouped((int(event["attempt"]), event) for event in history.events(run, reader).more())
    told = tuple(_told(reader, attempt, events.get(attempt.number, [])) for attempt in run.attempts())
    if told and not told[-1].hosts:  # of gridtf_join, or of an older gridtf
        told = (*told[:-1], told[-1].replace(hosts=_of_view(view)))
    usage = Usage(curves=curves)
    for sample in history.samples(run, reader).more():
        usage.add(sample)
    if curves:
        _add_last(usage, view, told[-1].hosts if told else {}, now)
    code = code_of(run, reader) or {}
    return Material(
        view=view,
        submitted=submitted,
        job=reader.private(run.job, recordtypes.Job) or {},
        script=reader.text(run.script),
        told=told,
        attempts=tuple(attempts(told, submitted.get("time"), _until(view, told, usage, now))),
        usage=usage,
        hidden=tuple(sorted(reader.hidden)),
        damaged=tuple(reader.damaged.values()),
        now=now,
        code=code,
        diff=reader.text(registry.whole(run).diff) if with_code else None,
    )


def _add_last(usage: Usage, view: JobView, hosts: Mapping[str, Any], now: float) -> None:
    """Add what tasks have reported after the last sample, at times that fit: the clocks of their hosts may differ."""
    until = usage.end
    ranges = {name: state.get("ranges", {}) for host in hosts.values() for name, state in host["tasks"].items()}
    for task in view.tasks:
        last = task.progress
        if last and usage.steps.get(task.name, (0, None))[1] != last["step"]:
            time = max(until, min(last["time"], view.ended or now))
            usage.report(task.name, last["step"], last["values"], time, ranges.get(task.name, {}))


def _until(view: JobView, told: Sequence[AttemptData], usage: Usage, now: float) -> float:
    """The end of the timeline: for a job that does not run, and has no verdict, its last sign of life."""
    if view.ended is not None or view.state == JobState.RUNNING:
        return view.ended or now
    signs = [event["time"] for one in told[-1:] for event in one.events]
    signs += [one.launcher["time"] for one in told[-1:] if "time" in one.launcher]
    return float(max([*signs, usage.end]) or now)


def _told(reader: Reading, attempt: Paths, events: Sequence[Record]) -> AttemptData:
    plan = reader.private(attempt.plan, _PLAN) or {}
    nonce = plan.get("nonce")
    summary = reader.private(attempt.summary, recordtypes.Summary, nonce) or {}
    return AttemptData(
        number=attempt.number,
        plan=plan,
        launcher=reader.private(attempt.launcher, recordtypes.Launcher, nonce) or {},
        hosts=summary.get("hosts", {}),
        verdict=reader.private(attempt.verdict, recordtypes.Verdict, nonce) or {},
        events=events,
    )


def _of_view(view: JobView) -> dict[str, Any]:
    """What the view of a job knows of its tasks, as state/hosts.json has it."""
    hosts: dict[str, dict[str, Any]] = {}
    for task in view.tasks:
        host = hosts.setdefault(task.host or "", {"tasks": {}, "gpus": {}})
        names = ("state", "started", "ended", "exit", "signal")
        host["tasks"][task.name] = {name: getattr(task, name) for name in names}
        host["gpus"][task.name] = task.gpus
    return hosts
