"""Jobs after jobs: the conditions of a job's start are looked up when it is submitted; the steps of a job file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gridtf.errors import GridtfError, NotFoundError, RunDirError, SpecError
from gridtf.jobspec.config import Configured
from gridtf.jobspec.dependencies import KEYS
from gridtf.jobspec.merging import located
from gridtf.jobspec.spec import JobSpec
from gridtf.login import cleaning, submission
from gridtf.login.job import Job, find
from gridtf.run import recordtypes
from gridtf.run.following import CONDITIONS, continued, output_dir
from gridtf.run.rundir import RunDir, is_ours, owner, read_record, write_record
from gridtf.schedulers.api import Plan
from gridtf.states import JobState

# Scheduler -> what makes a job wait for one that gridtf has not started, or that is another user's.
_FOREIGN = {"slurm": "--native=--dependency={}:{}", "sge": "--native='-hold_jid {1}'"}
_NATIVE = ("dependency", "hold_jid")
_SHELL = ("setup", "host_setup", "on")  # lines for a shell
_STEP = re.compile(r"\{steps\.([\w.+=-]+)\.([a-z_]+)\}")


def with_conditions(plan: Plan) -> Plan:
    """Look up the jobs that a job is to start after.

    Args:
        plan: The job, with names, ids or run directories.

    Returns:
        The plan with run directories, and the ids of those jobs that have not ended.

    Raises:
        SpecError: For a job that cannot be waited for, or has ended otherwise than it must.
    """
    words: dict[str, str] = {}
    ids: dict[str, None] = {}
    found: dict[str, tuple[str, ...]] = {}
    for key in CONDITIONS:
        jobs = [_job(key, word, plan) for word in getattr(plan.spec, key)]
        found[key] = tuple(dict.fromkeys(str(job.run_dir) for job in jobs))
        words |= {str(job.run_dir): f"{job.name} ({job.id})" for job in jobs}
        ids |= {job.id: None for job in jobs if _is_to_wait_for(key, job)}
    if not words:
        return plan
    if other := next((name for name in _NATIVE if name in plan.request.native), ""):
        hint = "name these jobs with --after-any, or leave out --after"
        raise SpecError("native", f"{other} would replace what gridtf writes there for --after", hint=hint)
    origin = {**plan.origin, "waits_for": words}
    return plan.replace(spec=plan.spec.replace(**found), origin=origin, waits_for=tuple(ids))


def _job(key: str, word: str, plan: Plan) -> Job:
    """The job of a word, or the newest one that goes on with its results."""
    name = plan.scheduler.name
    foreign = _FOREIGN.get(name, "").format(next(kind for kind, other in KEYS.items() if other == key), "{}")
    try:
        job = find(word)
        if not is_ours(job.run_dir):
            hint = f"its own scheduler can wait for its end: {foreign.format(job.id)}" if foreign else ""
            raise SpecError(key, f"job {word} belongs to user {owner(job.run_dir)}", hint=hint)
        if not read_record(job.run.submitted, recordtypes.Submitted, own=True):
            hint = f"for a job without gridtf write {foreign.format(word)}" if foreign else ""
            raise SpecError(key, f"{job.run_dir} has no record of a submission", hint=hint)
        job = Job(continued(job.run))
        record = read_record(job.run.submitted, recordtypes.Submitted, own=True) or {}
    except NotFoundError as error:
        hint = f"for a job without gridtf write {foreign.format(word)}"
        hint = hint if foreign and re.match(r"\d", word) else error.hint
        raise SpecError(key, error.what, why=error.why, hint=hint) from None
    except RunDirError as error:
        raise SpecError(key, error.what, why=error.why, hint=error.hint) from None
    host = record.get("host", "")
    if job.scheduler != name or (name == "local" and host != os.uname().nodename):
        where = f"a job of {job.scheduler}" + (f" on host {host}" if job.scheduler == "local" else "")
        what = f"job {word} is {where}, and this one is for {name} here: neither waits for the other"
        raise SpecError(key, what, hint="submit both in the same way, or wait with: gridtf wait JOB && gridtf submit …")
    return job


def _is_to_wait_for(key: str, job: Job) -> bool:
    """Whether a job has not ended. Raises SpecError where it has ended otherwise than it must."""
    view = job.status()
    if not view.finished:
        return True
    completed = view.state == JobState.COMPLETED
    if key != "after_any" and (completed != (key == "after") or view.state == JobState.UNKNOWN):
        what = f"job {job.name} ({job.id}) is {view.state}, so it has not {CONDITIONS[key]}, and will not"
        hint = f"gridtf resume {job.id} goes on with it; --after-any takes it as it is"
        if job.run.sweep.exists():  # it is FAILED for good: what runs again is a job array of its own
            again = f"gridtf rerun --failed {job.id} runs again what failed"
            hint = f"{again}: start after that job; --after-any takes the sweep as it is"
        raise SpecError(key, what, hint=hint if key == "after" else "leave it out: there is nothing to wait for")
    return False


# --- steps


def prepare(steps: Mapping[str, Configured]) -> dict[str, Plan]:
    """Resolve the steps of a job file into plans, without side effects.

    Args:
        steps: Name -> the step, in the order of the file.

    Raises:
        GridtfError: As submission.prepare does; for a step that names one that does not come before it.
    """
    plans: dict[str, Plan] = {}
    for name, step in steps.items():
        before = {other: plan.run_dir for other, plan in plans.items()}
        outputs = {
            other: str(output_dir(RunDir(plan.run_dir), {"spec": plan.spec.to_dict()})) for other, plan in plans.items()
        }
        made, follows = _filled(name, step, steps, outputs)
        plan = submission.prepare(made.spec, made.sources, made.trusted)
        own = {key: (*getattr(plan.spec, key), *(str(before[other]) for other in follows[key])) for key in CONDITIONS}
        ids = tuple(f"ID-OF-{other}" for key in CONDITIONS for other in follows[key])
        plans[name] = plan.replace(spec=plan.spec.replace(**own), waits_for=(*plan.waits_for, *ids))
    return plans


def submit(steps: Mapping[str, Configured]) -> dict[str, Job]:
    """Submit the steps of a job file. After an error nothing remains of any of them.

    Args:
        steps: As for prepare.

    Returns:
        Name -> job.

    Raises:
        GridtfError: As submission.submit does.
    """
    prepare(steps)  # so that values that cannot be accepted are refused before the first job is submitted
    jobs: dict[str, Job] = {}
    with _all_or_none(jobs):
        for name, step in steps.items():
            made, follows = _filled(name, step, steps, {other: str(job.output_dir) for other, job in jobs.items()})
            before = {other: str(job.run_dir) for other, job in jobs.items()}
            own = {key: (*getattr(made.spec, key), *map(before.__getitem__, follows[key])) for key in CONDITIONS}
            origin: dict[str, Any] = {"step": name}
            if jobs:
                first = next(iter(jobs.values()))
                known = (read_record(first.run.job, recordtypes.Job, own=True) or {}).get("origin", {})
                origin |= {"chain": str(first.run_dir)}
                origin |= {key: known[key] for key in ("snapshot",) if key in known}
            jobs[name] = submission.submit(made.spec.replace(**own), made.sources, made.trusted, origin=origin)
        first = next(iter(jobs.values()))
        write_record(first.run.steps, {"steps": {name: str(job.run_dir) for name, job in jobs.items()}})
    return jobs


def _filled(
    name: str, step: Configured, steps: Mapping[str, Configured], outputs: Mapping[str, str]
) -> tuple[Configured, dict[str, tuple[str, ...]]]:
    """A step with the paths of those before it; and the steps among its conditions, by key."""
    follows: dict[str, tuple[str, ...]] = dict.fromkeys(CONDITIONS, ())
    more: dict[str, tuple[str, ...]] = {}
    try:
        for key, words in step.follows.items():
            if late := next((word for word in words if word in steps and word not in outputs), ""):
                raise SpecError(key, f"step {late} does not come before step {name}", hint="change their order")
            follows[key] = tuple(word for word in words if word in steps)
            more[key] = (*getattr(step.spec, key), *(word for word in words if word not in steps))
        spec = JobSpec.from_dict(_with_outputs(step.spec.replace(**more).to_dict(), outputs))
        conditions = dict.fromkeys((key for key, words in step.follows.items() if words), f"[steps.{name}]")
        return step.replace(spec=spec, sources={**conditions, **step.sources}), follows
    except SpecError as error:
        raise located(error, step.sources) from None


def _with_outputs(value: Any, outputs: Mapping[str, str], key: str = "") -> Any:
    """Replace ``{steps.NAME.output_dir}`` in all texts of a specification, as a dictionary. key: of the value in it."""
    if isinstance(value, Mapping):
        named = {name: f"{key}.{name}".lstrip(".") for name in value}
        return {name: _with_outputs(item, outputs, named[name]) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_outputs(item, outputs, key) for item in value]
    if not isinstance(value, str):
        return value
    for step, what in _STEP.findall(value):
        if what != "output_dir" or step not in outputs:
            known = ", ".join(f"{{steps.{name}.output_dir}}" for name in outputs) or "none, as in the first step"
            raise SpecError(key, f"there is no {{steps.{step}.{what}}} before this step", hint=f"known: {known}")
    quoted = shlex.quote if key in _SHELL else str
    return _STEP.sub(lambda match: quoted(outputs[match[1]]), value)


@contextlib.contextmanager
def _all_or_none(jobs: Mapping[str, Job]) -> Iterator[None]:
    """Cancel and remove the jobs that have been submitted when the block fails."""
    try:
        yield
    except BaseException as error:
        left = []
        for job in reversed(list(jobs.values())):
            try:
                if not job.cancel().finished:
                    raise GridtfError("it has not ended")
                cleaning.remove(job.run, os.environ)
            except GridtfError as why:
                left.append(f"job {job.name} ({job.id}) is left: {why.what}")
        if left and isinstance(error, GridtfError):
            error.why = "; ".join(filter(None, (error.why, *left)))
        raise
