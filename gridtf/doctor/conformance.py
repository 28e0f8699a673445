"""`gridtf doctor --conformance`: what gridtf promises, tried here by short jobs within a quarter of an hour.

The rows at the end are tried one after the other; some look at the job of an earlier one. What came of them are
findings, and a result that a site can send: versions, counts, outcomes and seconds, and the name of nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gridtf import findings, schedulers
from gridtf.doctor import probe
from gridtf.errors import GridtfError, UsageError
from gridtf.findings import Examination, Finding, Level
from gridtf.jobspec.config import forbidden_by_site
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login.resume import resume
from gridtf.observe import beside
from gridtf.states import JobState, TaskState
from gridtf.text import counted
from gridtf.training import trials

if TYPE_CHECKING:
    from gridtf.doctor.probe import Say
    from gridtf.jobspec.config import Configured
    from gridtf.login.job import Job
    from gridtf.observe.views import JobView

LIMIT = 900.0  # seconds for all rows
_START = 300.0  # of these for a job to start,
_RUNS = 180.0  # and from then on for it to end, or to come to where it is looked at
_LOGS = 15.0  # seconds for the last lines of a log to appear on this host
_WALLTIME = "5m"
_BEFORE_SAVING = 30  # seconds from the start of a job to the request for a checkpoint
_POLL = 0.5
_NAMES = "worker:{}".format
_INTERRUPTED = "interrupted"
_LESS = f"its jobs request two hosts and a walltime of {_WALLTIME}; --nodes and --time request less"


class _NotTriedError(Exception):
    """A row cannot be tried, which is no fault."""


class _Pilot:
    """The jobs of the rows so far.

    Args:
        given: Options of the jobs, as for probe.probe.
        say: Is called with each line on what is done.

    Attributes:
        gpus: GPUs of a host, each of which has a task; 0: each host has one without.
        hosts: How many hosts a job requests.
        came: On how many the tasks of train were.
        tasks: How many tasks.
        jobs: The jobs, by the function that they run.
        over: Why nothing more is tried; empty while it is.
        told: What each task of a job has printed, by that function.
    """

    def __init__(self, given: Configured, say: Say) -> None:
        self._given, self._say = given, say
        self._deadline = time.monotonic() + LIMIT
        self.over = ""
        self._base = probe.job_spec(probe.nodes_of(given), given)
        local = self._base.scheduler == "local"
        self.gpus = self._base.gpus_per_node or 0
        self.hosts = self.came = 1 if local else probe.nodes_of(given)
        self.tasks = self.hosts * (self.gpus or (probe.nodes_of(given) if local else 1))
        self.jobs: dict[str, Job] = {}
        self.told: dict[str, list[dict[str, Any]]] = {}

    def submit(self, entry: str, **values: Any) -> Job:
        """Submit a job that runs a function of trials, with these keys, and wait for its start."""
        own, local = self._given.spec, self._base.scheduler == "local"
        spec = self._base.replace(
            name=f"gridtf-trial-{entry}",
            command=(),
            entry=f"{trials.__name__}:{entry}",
            params={},
            tasks={"worker": TaskSpec(count=self.tasks)} if local else {},
            tasks_per_node=self.tasks // self.hosts,
            gpus_per_task=1 if self.gpus else 0,
            leader=None,
            mpi=False,
            # gridtf's own, as a module has it, may lack TensorFlow
            python=own.python or (None if own.contained or find_spec("tensorflow") else "python"),
            container=own.container,
            container_binds=own.container_binds,
            container_command=own.container_command,
            time=own.time if self._given.sources.get("time", "").startswith("-") else _WALLTIME,
            checkpoint_before=None,
            continuations=0,
            restarts=0,
            on=(),
        )
        typed = [(key.partition(".")[0], flag) for key, flag in self._given.sources.items() if flag.startswith("-")]
        asked = own.with_gpus_per_node
        replaced = [flag for key, flag in typed if key != "nodes" and spec.option(key) != asked.option(key)]
        if replaced and not self.jobs:
            self._say(f"the pilot sets these itself, and leaves yours out of account: {', '.join(replaced)}")
        return self.started(entry, lambda: probe.submit(spec.replace(**values), self._given))

    def started(self, entry: str, submit: Callable[[], Job]) -> Job:
        """Submit a job, and wait for its start."""
        if self._left() <= 0:
            raise _NotTriedError(f"{LIMIT / 60:g} minutes are over")
        try:
            job = self.jobs[entry] = submit()
        except UsageError as error:
            if not self.jobs:
                hint = "; ".join(filter(None, (_LESS, error.hint)))
                raise UsageError(error.what, why=error.why, hint=hint) from None
            raise _NotTriedError("; ".join(filter(None, (error.what, error.why)))) from None
        self._say(f"submitted job {job.id} ({job.scheduler}), run directory {job.run_dir}")
        patience = min(_START, self._left())
        if probe.watch(job, patience, lambda view: view.state == JobState.RUNNING) is None:
            why = probe.cancel(job, self._say)
            self.over = f"a job has not started within {patience:.0f} s{f': {why}' if why else ''}; it was cancelled"
            raise GridtfError(self.over, hint="choose a partition or queue with idle hosts, or try again later")
        return job

    def seen(self, job: Job, enough: Callable[[JobView], bool] = lambda _: False) -> JobView:
        """Wait until a job has ended, or a view is enough."""
        limit = min(_RUNS, self._left())
        view = probe.watch(job, limit, enough)
        if view is None:
            probe.cancel(job, self._say)
            raise _wrong(job, f"it was not done within {limit:.0f} s, and was cancelled")
        return view

    def ended(self, job: Job, state: JobState) -> JobView:
        """Wait until a job has ended in this state."""
        view = self.seen(job)
        if view.state != state:
            raise _wrong(job, f"{view.state}, not {state}: {view.reason}", view.hint)
        return view

    def read(self, entry: str) -> list[dict[str, Any]]:
        """What each task of a job has printed, in the order of their ranks."""
        job, end = self.jobs[entry], time.monotonic() + _LOGS
        while True:
            logs = [job.logs(_NAMES(rank)) for rank in range(self.tasks)]
            lines = [re.search(rf"(?m)^{trials.MARK}({{.+}})$", text) for text in logs]
            self.told[entry] = [json.loads(line[1]) for line in lines if line]
            if len(self.told[entry]) == self.tasks:
                return self.told[entry]
            if time.monotonic() > end:
                raise _wrong(job, f"the logs of {len(self.told[entry])} of {self.tasks} tasks have their last line")
            time.sleep(_POLL)

    def began(self, job: Job) -> bool:
        """Whether a task of a job has come to its function."""
        return any(trials.MARK in job.logs(_NAMES(rank)) for rank in range(self.tasks)) if job.status().tasks else False

    def known(self, entry: str) -> Job:
        """The job of an earlier row, which has done what that row is for."""
        if entry not in self.told:
            raise _NotTriedError(f"the job for it, {entry}, has not come so far")
        return self.jobs[entry]

    def end(self) -> None:
        """Cancel what still runs."""
        for job in self.jobs.values():
            with contextlib.suppress(GridtfError):
                if not job.status().finished:
                    probe.cancel(job, self._say)

    def remove(self) -> None:
        """Remove all run directories."""
        self._say("removing the run directories")
        for job in self.jobs.values():
            try:
                probe.remove(job)
            except GridtfError as error:
                self._say(f"a run directory may be left: {job.run_dir}: {error.what}")

    def _left(self) -> float:
        return self._deadline - time.monotonic()


def _wrong(job: Job, what: str, hint: str = "") -> GridtfError:
    return GridtfError(f"job {job.id}: {what}", hint=hint or f"more on it: gridtf status {job.run_dir}")


# --- what is tried


def _train(pilot: _Pilot, entry: str = "train") -> str:
    job = pilot.submit(entry)
    try:
        pilot.ended(job, JobState.COMPLETED)
    except GridtfError:
        if not pilot.began(job):  # nor would a task of another job
            pilot.over = f"{entry} has failed"
        raise
    whole = pilot.tasks * (pilot.tasks + 1) / 2  # each task adds its rank + 1
    for rank, told in enumerate(pilot.read(entry)):
        if told["weight"] != -whole or told["sums"] != [whole, whole]:
            what = f"{_NAMES(rank)} has the weight {told['weight']} and the sums {told['sums']}"
            pilot.told.pop(entry)
            raise _wrong(job, f"{what} in place of {-whole} and {whole}")
    return f"weight and sums are exact in {counted(pilot.tasks, 'task')} of TensorFlow {told['tensorflow']}"


def _nccl(pilot: _Pilot) -> str:
    pilot.known("train")
    if any(len(one["gpus"]) != 1 for one in pilot.told["train"]):
        raise _NotTriedError("its tasks would have no GPU")  # and TensorFlow would not use NCCL, nor say so
    return _train(pilot, "nccl")


def _hosts(pilot: _Pilot) -> str:
    job = pilot.known("train")
    pilot.came = len({task.host for task in job.status().tasks})
    if pilot.came != pilot.hosts:
        spreads = (
            ", or a parallel environment that spreads tasks over hosts: --pe NAME" if job.scheduler == "sge" else ""
        )
        what = f"its tasks are on {counted(pilot.came, 'host')}, {pilot.hosts} were requested"
        raise _wrong(job, what, f"request as many as come: --nodes {pilot.came}{spreads}")
    return f"{counted(pilot.tasks, 'task')} on {counted(pilot.hosts, 'host')}"


def _gpus(pilot: _Pilot) -> str:
    job = pilot.known("train")
    told = pilot.told["train"]
    if wrong := [f"{_NAMES(rank)} sees {len(one['gpus'])}" for rank, one in enumerate(told) if len(one["gpus"]) != 1]:
        raise _wrong(job, f"each task has one GPU, but {wrong[0]}")
    found = {uuid for one in told for uuid in one["uuids"]}
    if len(found) != pilot.tasks:
        raise _wrong(job, f"{pilot.tasks} tasks have {counted(len(found), 'GPU')} between them")
    return f"{counted(pilot.tasks, 'task')}, each with a GPU of its own: {_models(told)}"


def _models(told: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({name for one in told for name in one["gpus"]}))


def _first_cause(pilot: _Pilot) -> str:
    job = pilot.submit("wrong")
    view, last = pilot.ended(job, JobState.FAILED), _NAMES(pilot.tasks - 1)
    named = (view.cause or {}).get("task") or "no task"
    if named != last or trials.MESSAGE not in view.reason:
        what = f"{last} without its exception" if named == last else f"{named} instead of {last}"
        raise _wrong(job, f"the verdict names {what}: {view.reason}")
    return f"the verdict names {last} and its exception"


def _restart(pilot: _Pilot) -> str:
    if pilot.came < pilot.hosts:
        raise _NotTriedError(f"a job of {pilot.hosts} hosts is not restarted on {pilot.came}")
    job = pilot.submit("again", restarts=1)
    view = pilot.ended(job, JobState.COMPLETED)
    if view.attempt != 2:
        raise _wrong(job, f"it has completed in attempt {view.attempt}")
    return "attempt 2 has completed in the same allocation"


def _checkpoint(pilot: _Pilot) -> str:
    walltime = JobSpec(command=("true",), time=_WALLTIME).walltime or 0
    job = pilot.submit("save", time=_WALLTIME, checkpoint_before=f"{walltime - _BEFORE_SAVING}s")
    pilot.ended(job, JobState.SAVED)
    pilot.read("save")
    return "all tasks have saved the same step, and ended"


def _resume(pilot: _Pilot) -> str:
    saved = pilot.known("save")
    job = pilot.started("resume", lambda: resume(saved))
    pilot.ended(job, JobState.COMPLETED)
    for rank, told in enumerate(pilot.read("resume")):
        if not told["step"] or told["weight"] != -told["step"] * pilot.tasks:
            raise _wrong(job, f"{_NAMES(rank)} has begun at step {told['step']} with the weight {told['weight']}")
    return f"all tasks have gone on from step {told['step']} with the exact weight"


def _exec(pilot: _Pilot) -> str:
    if forbidden := forbidden_by_site("exec", os.environ):
        raise _NotTriedError(f"this site does not allow commands beside running tasks: {forbidden}")
    job, last = _running(pilot), pilot.tasks - 1
    with tempfile.TemporaryFile() as printed:
        command, both = ("sh", "-c", 'echo "$GRIDTF_TASK_INDEX"; exit 7'), (printed.fileno(),) * 2
        code = beside.execute(job.run, beside.task_of(job.run, _NAMES(last)), command, outputs=both)
        printed.seek(0)
        said = printed.read().decode(errors="replace").strip()
    if (code, said) != (7, str(last)):
        raise _wrong(job, f"a command beside {_NAMES(last)} has printed {said!r}, exit code {code}")
    return f"it has run on the host of {_NAMES(last)} and in its environment"


def _cancel(pilot: _Pilot) -> str:
    job = _running(pilot)
    view = job.cancel()
    if view.state != JobState.CANCELLED:
        raise _wrong(job, f"{view.state}, not CANCELLED: {view.reason}")
    return "all tasks were ended"


def _running(pilot: _Pilot) -> Job:
    """The job whose tasks report their progress until it is cancelled."""
    job = pilot.jobs.get("wait") or pilot.submit("wait")

    def runs(view: JobView) -> bool:
        return bool(view.tasks) and all(task.state == TaskState.RUNNING and task.progress for task in view.tasks)

    view = pilot.seen(job, runs)
    if view.finished:
        raise _wrong(job, f"{view.state}, not RUNNING: {view.reason}", view.hint)
    return job


# Row -> what is done, as a user would, and what looks at what came of it.
ROWS: Mapping[str, tuple[str, Callable[[_Pilot], str]]] = {
    "train": ("a step of Keras and a sum of 4 MiB over all hosts (gridtf submit, logs)", _train),
    "hosts": ("where its tasks were (gridtf status)", _hosts),
    "first_cause": ("the last task of a job fails", _first_cause),
    "restart": ("a task fails once (--restarts 1)", _restart),
    "checkpoint": ("a job saves before its walltime ends (--checkpoint-before)", _checkpoint),
    "resume": ("another job goes on from there (gridtf resume)", _resume),
    "exec": ("a command beside the last task (gridtf exec)", _exec),
    "cancel": ("a job that runs is cancelled (gridtf cancel)", _cancel),
}
GPU_ROWS: Mapping[str, tuple[str, Callable[[_Pilot], str]]] = {
    "gpus": ("one task for each GPU (--gpus-per-node)", _gpus),
    "nccl": ("the same step and sum by NCCL", _nccl),
}


def conformance(given: Configured, say: Say = lambda line: None) -> tuple[Examination, dict[str, Any] | None]:
    """Try all rows, and judge them.

    Run directories are removed, unless there is a failure. After Ctrl-C the job that runs is cancelled, and the other
    rows are not tried.

    Args:
        given: Options of the jobs, as for probe.probe. With ``gpus_per_node`` each GPU has a task.
        say: Is called with each line on what is done.

    Returns:
        A finding for each row, and the result to send; None after Ctrl-C.

    Raises:
        GridtfError: When the first job is refused: nothing was tried.
        KeyboardInterrupt: After Ctrl-C before a first job, and during what is done after another one.
    """
    pilot = _Pilot(given, say)
    rows = {**ROWS, **GPU_ROWS} if pilot.gpus else ROWS
    found: list[Finding] = []
    told: list[dict[str, Any]] = []
    try:
        for name, (what, tries) in rows.items():
            begin = time.monotonic()
            level, hint = Level.OK, ""
            try:
                if pilot.over:
                    raise _NotTriedError(pilot.over)
                seen = tries(pilot)
            except _NotTriedError as error:
                level, seen = Level.WARNING, f"not tried: {error}"
            except GridtfError as error:
                if not pilot.jobs:
                    raise
                level, seen, hint = Level.FAILURE, "; ".join(filter(None, (error.what, error.why))), error.hint
                if isinstance(error.__context__, KeyboardInterrupt):  # during a submission
                    pilot.over = _INTERRUPTED
            except KeyboardInterrupt:
                if not pilot.jobs:
                    raise
                pilot.over = _INTERRUPTED
                level, seen = Level.WARNING, f"not tried: {pilot.over}"
            seconds = round(time.monotonic() - begin, 1)
            outcome = {Level.OK: "passed", Level.FAILURE: "failed"}.get(level, "not tried")
            told.append({"name": name, "outcome": outcome, "seconds": seconds})
            found.append(Finding(level, name, f"{what}; {seen} ({seconds:.0f} s)", hint))
    finally:
        pilot.end()
    examined = Examination(tuple(found))
    if not examined.failures:
        pilot.remove()
    else:
        say(f"the run directories, gridtf-trial-…, are kept in {next(iter(pilot.jobs.values())).run_dir.parent}")
    return examined, None if pilot.over == _INTERRUPTED else _result(pilot, told)


def _result(pilot: _Pilot, told: list[dict[str, Any]]) -> dict[str, Any]:
    job, seen = pilot.jobs["train"], pilot.told.get("train", [])
    scheduler = schedulers.get(job.scheduler)
    outcomes = {one["name"]: one["outcome"] == "passed" for one in told if one["outcome"] != "not tried"}
    return {
        **findings.result(scheduler.title, scheduler.login.version(), outcomes),
        "tensorflow": next((one["tensorflow"] for one in seen), ""),
        "hosts": pilot.hosts,
        "tasks": pilot.tasks,
        "gpus": _models(seen),
        "trials": told,
    }
