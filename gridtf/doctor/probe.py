"""`gridtf doctor --probe`: a short job whose hosts measure what tasks need of them and of each other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gridtf import schedulers
from gridtf.doctor import judge, measure
from gridtf.errors import GridtfError
from gridtf.findings import Examination, Finding, Level
from gridtf.jobspec import config
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login import submission
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import RunDir, here, listdir, read_record
from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.login.job import Job
    from gridtf.run.rundir import Record

NAME = "gridtf-probe"
PATIENCE = 120.0  # seconds for the job to start
_WALLTIME = "3:00"
_RUNS = 240.0  # seconds after its start until the job must have ended: the walltime, and what schedulers add to it
_START_TIMEOUT = 60.0
_POLL = 2.0
_RESULTS = 15.0  # seconds for the measurements to appear on this host
_OF_PROBE = ("command", "entry", "args", "serve", "name", "nodes", "tasks_per_node", "start_timeout", "success_policy")

Say = Callable[[str], None]


def configured(words: Sequence[str]) -> Configured:
    """The job of a probe from options of `gridtf submit`, above the environment, the user's and the site's file.

    Args:
        words: Options such as ``--partition gpu``.

    Raises:
        UsageError: For a wrong option or a wrong value in any layer, naming its source.
        GridtfError: When a file cannot be read.
    """
    command = [*words, "--", sys.executable]  # any command: the probe has its own
    return schedulers.with_options(
        lambda table, complete: config.from_arguments(command, os.environ, here(), table, complete=complete)
    )


def probe(nodes: int, given: Configured, *, patience: float = PATIENCE, say: Say = lambda line: None) -> Examination:
    """Submit a job of a minute, wait for it, and judge what its hosts have measured.

    The run directory is removed, unless there is a failure. After Ctrl-C the job is cancelled.

    Args:
        nodes: The number of hosts; of tasks on this machine with the local scheduler.
        given: Options of the job: partition, account, parallel environment, walltime, set-up lines and so on, with
            their sources. What the job runs is replaced.
        patience: Seconds to wait for the start of the job.
        say: Is called with each line on what the probe does.

    Returns:
        Findings and settings. A job that is refused, does not start or fails is a finding.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when the job has been cancelled.
    """
    begin = time.monotonic()
    try:
        spec = job_spec(nodes, given)
        job = submission.submit(spec, {key: text for key, text in given.sources.items() if _stays(key)}, given.trusted)
    except GridtfError as error:
        return _failure("probe.submission", error)
    say(f"submitted job {job.id} ({job.scheduler}), run directory {job.run_dir}")
    try:
        found = _follow(job, patience, say, begin) or _examine(job, nodes)
    except GridtfError as error:
        _cancel(job, say)
        found = _failure("probe.job", error)
    except KeyboardInterrupt:
        _cancel(job, say)
        raise
    if any(finding.level == Level.FAILURE for finding in found.findings):
        say(f"the run directory of the probe is kept: {job.run_dir}")
    else:
        registry.forget(job.run_dir, os.environ)
        submission.remove(job.run_dir)
    return found


def job_spec(nodes: int, given: Configured) -> JobSpec:
    """The job of a probe: one task on each host.

    Args:
        nodes: As for probe.
        given: As for probe.

    Raises:
        SpecError: For a number of hosts that is not possible.
        SchedulerError: When no scheduler is named, and the one of this machine is not set up.
    """
    spec = given.spec
    name = spec.scheduler or schedulers.to_submit_to(os.environ)
    local = name == "local"
    by_option = given.sources.get("time", "").startswith("-")
    no_gpus = spec.gpus_per_node is None and spec.gpus_per_task is None
    return replace(
        spec,
        scheduler=name,
        name=NAME,
        command=(sys.executable, "-I", "-S", measure.__file__, *([spec.python] if spec.python else [])),
        entry=None,
        serve=(),
        success_policy="all",
        tasks={"worker": TaskSpec(count=nodes)} if local else {},
        nodes=None if local else nodes,
        tasks_per_node=nodes if local else 1,
        gpus_per_task=0 if no_gpus else spec.gpus_per_task,
        time=spec.time if by_option else _WALLTIME,
        start_timeout=min(spec.start_timeout, _START_TIMEOUT),
    )


def _stays(key: str) -> bool:
    """Whether the value of this key is still the one that was given."""
    return key.partition(".")[0] not in (*_OF_PROBE, "tasks")


def _failure(check: str, error: GridtfError) -> Examination:
    message = ": ".join(filter(None, (error.what, error.why)))
    return Examination((Finding(Level.FAILURE, check, message, error.hint),))


def _follow(job: Job, patience: float, say: Say, begin: float) -> Examination | None:
    """Wait until the job has ended. Returns a finding for a job that does not start, does not end or fails."""
    started = None
    view = job.status()
    for view in job.watch(patience, poll=_POLL):
        if view.finished or view.state == JobState.RUNNING:
            started = time.monotonic() - begin
            break
    if started is None:
        _cancel(job, say)
        why = f": {view.reason}" if view.reason else ""
        what = f"job {job.id} has not started within {patience:.0f} s{why}; it was cancelled"
        hint = "choose a partition or queue with idle hosts (--partition) or fewer --nodes, or try again later"
        return Examination((Finding(Level.FAILURE, "probe.start", what, hint),))
    say(f"job {job.id} has started after {started:.0f} s")
    for view in job.watch(_RUNS, poll=_POLL):
        if view.finished:
            break
    if not view.finished:
        _cancel(job, say)
        what = f"job {job.id} has not ended within {_RUNS:.0f} s: {view.reason or view.state}; it was cancelled"
        return Examination((Finding(Level.FAILURE, "probe.job", what, f"gridtf logs --task job {job.run_dir}"),))
    if view.state != JobState.COMPLETED:
        what = f"job {job.id} ended {view.state}: {view.reason or 'no reason is known'}"
        if tail := (view.cause or {}).get("tail"):
            what += f"; last output: {tail[-1].strip()}"
        hint = view.hint or f"more on it: gridtf status {job.run_dir}"
        return Examination((Finding(Level.FAILURE, "probe.job", what, hint),))
    say(f"job {job.id} has ended")
    return None


def _cancel(job: Job, say: Say) -> None:
    say(f"cancelling job {job.id}")
    try:
        job.cancel()
    except GridtfError as error:
        say(f"{error.what}; cancel it yourself: gridtf cancel {job.run_dir}")


def _examine(job: Job, nodes: int) -> Examination:
    """Judge the measurements of a job that has completed."""
    latest = job.run.latest()
    plan = read_record(latest.plan, recordtypes.Plan, own=True) if latest else None
    if plan is None:
        raise GridtfError(f"{job.run_dir} has no plan", hint="was it changed meanwhile?")
    tasks = sorted(plan["tasks"], key=lambda task: int(task["index"]))
    known = judge.Probe(
        scheduler=job.scheduler,
        nodes=nodes,
        hosts=tuple(str(task["host"]) for task in tasks),
        gpus=tuple(int(task["gpus"]) for task in tasks),
        run_root=str(job.run_dir.parent),
    )
    records = _measurements(job.run, len(tasks))
    if missing := [known.name(index) for index in range(len(tasks)) if index not in records]:
        what = f"the measurements of {', '.join(missing)} do not appear in {job.run.output} on this host"
        hint = "choose a folder on a file system that all hosts share: run_root = …"
        return Examination((Finding(Level.FAILURE, "run_root.shared", what, hint),))
    return judge.judge(known, [records[index] for index in range(len(tasks))])


def _measurements(run: RunDir, count: int) -> Mapping[int, Record]:
    """Task -> its measurements; waits a little for those that do not appear at once."""
    folder, deadline = run.output / measure.FOLDER, time.monotonic() + _RESULTS
    found: dict[int, Record] = {}
    while True:
        there = listdir(folder)
        for index in range(count):
            if index not in found and (path := folder / f"{index}.json").name in there:
                record = read_record(path, judge.Measurements, listed=True, own=True)
                if record is not None:
                    found[index] = record
        if len(found) == count or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
