"""`gridtf doctor --probe`: a short job whose hosts measure what tasks need of them and of each other."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import schedulers
from gridtf.doctor import judge, measure
from gridtf.errors import GridtfError, RunDirError
from gridtf.findings import Examination, Finding, Level, failure
from gridtf.host.interpreter import isolated
from gridtf.jobspec import config, options
from gridtf.jobspec.spec import JobSpec, TaskSpec, container_programs
from gridtf.login import submission
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import RunDir, here, listdir, read_record
from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.login.job import Job
    from gridtf.observe.views import JobView
    from gridtf.run.rundir import Record

NAME = "gridtf-probe"
_NODES = 2
PATIENCE = 120.0  # seconds for the job to start
_WALLTIME, _WALLTIME_WITH_END = "3m", "6m"
_RUNS = 240.0  # seconds after its start until the job must have ended: the walltime, and what schedulers add to it
_GRACE = measure.END_LIMIT  # so that it is the scheduler that ends tasks
_START_TIMEOUT = 60.0
_POLL = 2.0
_RELEASE = 60.0  # seconds for the scheduler to release a job that has ended, and for its last processes to end
_RESULTS = 15.0  # seconds for the measurements to appear on this host

Say = Callable[[str], None]


def configured(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> Configured:
    """The job of a probe from options of `gridtf submit`, above the environment, the user's and the site's file.

    Args:
        words: Options such as ``--partition gpu``.
        environ: The environment, for the files and variables.

    Raises:
        UsageError: For a wrong option or a wrong value in any layer, naming its source.
        GridtfError: When a file cannot be read.
    """
    command = [*words, "--", sys.executable]  # any command: the probe has its own
    return schedulers.with_options(
        lambda table, complete: config.from_arguments(command, environ, here(), table, complete=complete)
    )


def nodes_of(given: Configured) -> int:
    """The number of hosts that an option or a variable chooses, at most; 2 if none does: files speak of other jobs."""
    chosen = given.spec.node_range if given.sources.get("nodes", "").startswith(("-", options.PREFIX)) else None
    return chosen[1] if chosen else _NODES


def probe(
    given: Configured, *, end: bool = False, patience: float = PATIENCE, say: Say = lambda line: None
) -> Examination:
    """Submit a job of a minute, wait for it, and judge what its hosts have measured.

    The run directory is removed, unless there is a failure. After Ctrl-C the job is cancelled.

    Args:
        given: Options of the job: partition, account, parallel environment, walltime, set-up lines and so on, with
            their sources. What the job runs is replaced.
        end: Whether to have the scheduler end the job, which then heeds no signal, to measure how it does that. Slurm
            takes its KillWait for it, mostly 30 s. Nothing is measured with the local scheduler, which ends jobs by
            kill_grace alone.
        patience: Seconds to wait for the start of the job.
        say: Is called with each line on what the probe does.

    Returns:
        Findings and settings. A job that is refused, does not start or fails is a finding, and so is a submission of
        which it is not known whether the scheduler accepted it.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when the job has been cancelled.
    """
    nodes = nodes_of(given)
    try:
        spec = job_spec(nodes, given, end=end)
        job = submit(spec, given)
    except GridtfError as error:
        return Examination((failure("probe.submission", error),))
    for line in (*job.notes, f"submitted job {job.id} ({job.scheduler}), run directory {job.run_dir}"):
        say(line)
    try:
        found = _run(job, given, patience, say, end=measure.END in spec.command)
    except GridtfError as error:
        cancel(job, say)
        found = Examination((failure("probe.job", error),))
    except KeyboardInterrupt:
        cancel(job, say)
        raise
    if end and job.scheduler == "local" and not found.failures:
        found = found.replace(findings=(*found.findings, judge.local_end(spec.kill_grace)))
    if found.failures:
        say(f"the run directory of the probe is kept: {job.run_dir}")
    else:
        try:
            remove(job)
        except GridtfError as error:
            say(f"the run directory of the probe may be left: {job.run_dir}: {error.what}")
    return found


def submit(spec: JobSpec, given: Configured) -> Job:
    """Submit a job within the site's limits.

    Args:
        spec: The job, of which some values were replaced.
        given: Its values before that, with their sources.

    Raises:
        GridtfError: As submission.submit does, and for what the site does not allow.
    """
    tops = {key: key.partition(".")[0] for key in given.sources}
    kept = {key: given.sources[key] for key, top in tops.items() if spec.option(top) == given.spec.option(top)}
    schedulers.with_options(
        lambda table, complete: config.change(
            spec, "the job", config.Typed(), os.environ, here(), table, complete=complete
        )
    )
    return submission.submit(spec, kept, given.trusted)


def job_spec(nodes: int, given: Configured, *, end: bool = False) -> JobSpec:
    """The job of a probe: one task on each host.

    Args:
        nodes: The number of hosts; of tasks on this machine with the local scheduler.
        given: As for probe.
        end: As for probe.

    Raises:
        SpecError: For a number of hosts that is not possible.
        SchedulerError: When no scheduler is named, and the one of this machine is not set up.
    """
    spec = given.spec.with_gpus_per_node
    name = spec.scheduler or schedulers.to_submit_to(os.environ)
    local = name == "local"
    end = end and not local
    by_option = given.sources.get("time", "").startswith("-")
    words = [f"{measure.PROGRAM}{program}" for program in container_programs(spec)]
    words += [measure.END] if end else []
    no_gpus = spec.gpus_per_node is None and spec.gpus_per_task is None and not spec.gpu_model
    return spec.replace(
        scheduler=name,
        name=NAME,
        command=tuple(isolated(sys.executable, measure.__file__, spec.python or "python", *words)),
        entry=None,
        serve=(),
        container=None,
        container_binds=(),
        container_command=(),
        success_policy="all",
        snapshot=False,
        tasks={"worker": TaskSpec(count=nodes)} if local else {},
        nodes=None if local else nodes,
        tasks_per_node=nodes if local else 1,
        # one task has all GPUs of its host
        gpus_per_task=0 if no_gpus else None if spec.gpus_per_node and not local else spec.gpus_per_task,
        time=spec.time if by_option else _WALLTIME_WITH_END if end else _WALLTIME,
        kill_grace=_GRACE if end else spec.kill_grace,
        start_timeout=min(spec.start_timeout, _START_TIMEOUT),
    )


def _run(job: Job, given: Configured, patience: float, say: Say, *, end: bool) -> Examination:
    """Follow the job to its end, and judge what it has measured. given, end: as for probe."""
    begin = time.monotonic()
    view = watch(job, patience, lambda view: view.state == JobState.RUNNING)
    if view is None:
        why = cancel(job, say)
        what = f"job {job.id} has not started within {patience:.0f} s{f': {why}' if why else ''}; it was cancelled"
        hint = "choose a partition or queue with idle hosts (--partition) or fewer --nodes, or try again later"
        return Examination((Finding(Level.FAILURE, "probe.start", what, hint),))
    say(f"job {job.id} has started after {time.monotonic() - begin:.0f} s")
    view = watch(job, _RUNS, lambda _: end and _waits_for_its_end(job.run))
    if view is None:
        why = cancel(job, say)
        what = f"job {job.id} has not ended within {_RUNS:.0f} s{f': {why}' if why else ''}; it was cancelled"
        return Examination((Finding(Level.FAILURE, "probe.job", what, f"gridtf logs --task job {job.run_dir}"),))
    if not view.finished:
        say(f"job {job.id} has measured its hosts; {job.scheduler} ends it now, which may take a minute")
        job.cancel(wait=measure.END_LIMIT)
        return _examine(job, given, end=True)
    if view.state != JobState.COMPLETED:
        what = f"job {job.id} ended {view.state}: {view.reason or 'no reason is known'}"
        last = next(iter((view.cause or {}).get("tail", [])[-1:]), "").strip()
        if last and not last.startswith("gridtf: "):  # gridtf's own words are in the reason
            what += f"; last output: {last}"
        hint = view.hint or f"more on it: gridtf status {job.run_dir}"
        return Examination((Finding(Level.FAILURE, "probe.job", what, hint),))
    say(f"job {job.id} has ended")
    return _examine(job, given)


def watch(job: Job, seconds: float, enough: Callable[[JobView], bool]) -> JobView | None:
    """Wait until the job has ended or a view is enough; None after these seconds."""
    for view in job.watch(seconds, poll=_POLL):
        if view.finished or enough(view):
            return view
    return None


def cancel(job: Job, say: Say) -> str:
    """Cancel the job. Returns the reason of its state before; empty where none is known."""
    say(f"cancelling job {job.id}")
    reason = ""
    try:
        with contextlib.suppress(GridtfError):
            reason = job.status().reason
        job.cancel()
    except GridtfError as error:
        say(f"{error.what}; cancel it yourself: gridtf cancel {job.run_dir}")
    return reason


def remove(job: Job) -> None:
    """Remove the run directory, and its entry in the index, once no process of the job writes there any more."""
    deadline = time.monotonic() + _RELEASE
    while job.status().in_queue and time.monotonic() < deadline:
        time.sleep(_POLL)  # the scheduler is asked each time
    registry.forget(job.run_dir, os.environ)
    submission.remove(job.run_dir)
    while job.run_dir.exists():  # something was written there meanwhile
        if time.monotonic() > deadline:
            raise RunDirError(f"it cannot be removed; perhaps processes of job {job.id} still write there")
        time.sleep(0.2)
        submission.remove(job.run_dir)


def _waits_for_its_end(run: RunDir) -> bool:
    latest = run.latest()
    plan = read_record(latest.plan, recordtypes.Plan, own=True) if latest else None
    if plan is None:
        return False
    there = listdir(measure.meeting_folder(run.output, plan["nonce"]))
    return all(measure.end_name(index) in there for index in range(len(plan["tasks"])))


def _examine(job: Job, given: Configured, *, end: bool = False) -> Examination:
    """Judge the measurements of a job that has ended. given, end: as for probe."""
    latest = job.run.latest()
    plan = read_record(latest.plan, recordtypes.Plan, own=True) if latest else None
    if plan is None:
        raise GridtfError(f"{job.run_dir} has no plan", hint="was it changed meanwhile?")
    folder = measure.meeting_folder(job.run.output, plan["nonce"])
    records = _records(folder, "{}.json".format, judge.Measurements, len(plan["tasks"]))
    submitted = read_record(job.run.submitted, recordtypes.Submitted, own=True) or {}
    tasks = sorted(plan["tasks"], key=lambda task: int(task["index"]))
    known = judge.Probe(
        scheduler=job.scheduler,
        nodes=nodes_of(given),
        hosts=tuple(str(task["host"]) for task in tasks),
        gpus=tuple(int(task["gpus"]) for task in tasks),
        run_root=str(job.run_dir.parent),
        during=(float(submitted.get("time", 0.0)), time.time()),
        gpu_variable=plan["spec"].get("gpu_variable"),
        contained=given.spec if given.spec.contained else None,
    )
    endings = _records(folder, measure.end_name, judge.Ending, len(tasks)) if end else {}
    whole = records.keys() & endings.keys() if end else records.keys()
    if missing := [known.name(index) for index in range(len(tasks)) if index not in whole]:
        what = f"the measurements of {', '.join(missing)} do not appear in {job.run.output} on this host"
        hint = "choose a folder on a file system that all hosts share: run_root = …"
        return Examination((Finding(Level.FAILURE, "run_root.shared", what, hint),))
    found = judge.judge(known, [records[index] for index in range(len(tasks))])
    if not end:
        return found
    ended = judge.judge_end(known, [endings[index] for index in range(len(tasks))], given.spec.kill_grace)
    return found.replace(findings=(*found.findings, ended))


def _records(folder: Path, name: Callable[[int], str], kind: object, count: int) -> Mapping[int, Record]:
    """Task -> its record of this kind; waits a little for those that do not appear at once."""
    deadline = time.monotonic() + _RESULTS
    found: dict[int, Record] = {}
    while True:
        there = listdir(folder)
        for index in range(count):
            if index not in found and (path := folder / name(index)).name in there:
                record = read_record(path, kind, listed=True, own=True)
                if record is not None:
                    found[index] = record
        if len(found) == count or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
