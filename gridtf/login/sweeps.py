"""Sweeps: made from a job file, submitted as one job array, shown as a table, and run again where elements failed.

What is run again is a sweep of its own in the run directory of the first one, ``rerun-1`` and so on. Its table is that
of the first one, in which the newest run of each element counts.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf import __version__, files
from gridtf.contract import OUTPUT_DIR
from gridtf.errors import DamagedError, GridtfError, NotFoundError, RunDirError, SpecError, UsageError
from gridtf.jobspec import merging, params, placeholders, sweep
from gridtf.jobspec.config import Configured
from gridtf.jobspec.limits import OF_SWEEPS
from gridtf.jobspec.primitives import spell
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import Sweep
from gridtf.login.job import Job
from gridtf.observe import jobs
from gridtf.observe.outcome import Reported, of_record, reported
from gridtf.run import following, recordtypes, reduced, registry
from gridtf.run.reading import known
from gridtf.run.rundir import Record, RunDir, listdir, read_record
from gridtf.states import ENDED, JobState
from gridtf.values import Value

# --- from a job file to a sweep


def configured(given: Configured, folder: Path, at_once: int | None = None, pack: int = 1) -> Sweep:
    """The sweep of a job file.

    Args:
        given: The job.
        folder: The folder of its job file, in which its file of rows is.
        at_once: How many elements run at once; None: as the job file says, or ten.
        pack: How many elements share an allocation.

    Raises:
        UsageError: For a sweep that cannot be, naming the line.
    """
    table = {name: value.value for name, value in given.sweep.items()}
    places = {f"sweep.{name}": value.source for name, value in given.sweep.items()}
    if at_once is not None:
        places["sweep.at_once"] = "--at-once"
    whole, running, message = (given.sweep_limits.get(name) for name in OF_SWEEPS)
    most = whole.value if whole else sweep.MOST
    try:
        if not table:
            hint = "write [sweep], and lr = [0.1, 0.01] below it; gridtf submit runs a job without one"
            raise SpecError("sweep", "the job file has no sweep", hint=hint)
        lines = _lines(table, folder, given)
        made = sweep.rows(table, given.spec.params, lines, lambda seed: random.Random(seed).random, most)
        check_outputs(given.spec, made)
        for name in made[0]:
            if given.sources.get(f"params.{name}") == "--set":
                what = f"the sweep has its own values of {name}, and --set would change none of them"
                raise SpecError(f"params.{name}", what, hint=f"change {name} below [sweep], or leave out --set {name}")
        limit = _positive("sweep.at_once", table.get("at_once") if at_once is None else at_once)
        if running and limit and limit > running.value:
            why = f"{running.source}: max_at_once = {running.value}"
            what, hint = f"{limit} requested, the site allows {running.value}", message.value if message else ""
            raise SpecError("sweep.at_once", what, why=why, hint=hint)
        usual = min(sweep.AT_ONCE, running.value if running else sweep.AT_ONCE, _room(given.spec, pack))
        return Sweep(made, limit or usual, pack)
    except SpecError as error:
        if whole and isinstance(error, sweep.TooMany):
            error.why = f"{whole.source}: max_sweep = {most}"
            error.hint = message.value if message else error.hint
        raise merging.located(error, {**given.sources, **places}) from None


def check_outputs(spec: JobSpec, made: Sequence[sweep.Row]) -> None:
    """Check that elements of a sweep write into folders of their own.

    Args:
        spec: The job.
        made: Their rows.

    Raises:
        SpecError: When they do not.
    """
    folders = {placeholders.fixed(spec.env.get(OUTPUT_DIR, ""), {**spec.params, **row}) for row in made}
    if len(folders) < len(made) and "" not in folders:
        what = "elements of the sweep would write into one folder"
        raise SpecError(f"env.{OUTPUT_DIR}", what, hint="leave it out: each has one in its run directory")


def _room(spec: JobSpec, pack: int) -> int:
    """How many elements this machine has CPUs for, where they run on it."""
    from gridtf import schedulers

    if (spec.scheduler or schedulers.to_submit_to(os.environ)) != "local":
        return sweep.AT_ONCE
    tasks = sum((spec.count(name) or 0) * (spec.task(name).cpus or spec.cpus_per_task or 1) for name in spec.types)
    return max(1, len(os.sched_getaffinity(0)) // max(1, tasks * pack))


def _positive(key: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise SpecError(key, f"{spell(value)} is not a whole number above 0")


def _lines(table: Mapping[str, Any], folder: Path, given: Configured) -> list[Mapping[str, Any]] | None:
    """The rows of the file that a sweep names; None where it names none."""
    if (name := table.get("file")) is None:
        return None
    if not isinstance(name, str) or not name:
        raise SpecError("sweep.file", f"{spell(name)} is not the name of a file")
    try:
        text = files.read(folder / name, name)[0].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("sweep.file", f"{name} is not UTF-8 text") from None
    except OSError as error:
        raise SpecError("sweep.file", f"cannot read {name}: {error.strerror}") from None
    read = _of_csv if name.endswith(".csv") else _of_json
    found: list[Mapping[str, Any]] = []
    for line, row in read(text, name):
        try:
            if found and row.keys() != found[0].keys():
                missing = sorted(found[0].keys() ^ row.keys())
                raise SpecError(name, f"the rows above have other columns: {', '.join(missing)}")
            known = given.spec.params
            found.append(
                {
                    key: params.parameter(key, value, known)
                    if name.endswith(".csv")
                    else sweep.typed(key, value, known)
                    for key, value in row.items()
                }
            )
        except SpecError as error:
            raise UsageError(f"{name}:{line}: {error.problem}", hint=error.hint) from None
    return found


def _of_csv(text: str, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if twice := [word for word in header if header.count(word) > 1]:
            raise UsageError(f"{name}:1: there are several columns {twice[0]!r}", hint="leave out all but one")
        for row in reader:
            if not any(row):  # an empty line, as spreadsheets write it
                continue
            if len(row) == len(header):
                yield reader.line_num, dict(zip(header, row, strict=True))
            else:
                what = f"{len(row)} values, and the first line has {len(header)} names"
                raise UsageError(f"{name}:{reader.line_num}: {what}")
    except csv.Error as error:
        raise UsageError(f"{name}:{reader.line_num}: {error}") from None


def _of_json(text: str, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            hint = 'write {"lr": 0.1} on each line, or a file .csv with the names in its first line'
            raise UsageError(f"{name}:{number}: it is no JSON object", hint=hint)
        yield number, row


# --- the table


class Row(Value):
    """An element of a sweep.

    Attributes:
        element: Its number.
        job_id: The scheduler's id; of one that waits what it will be.
        params: Its parameters that the sweep varies.
        state: As that of a job.
        reason: Why, which of one that has failed is the first cause; may be empty.
        values: What it has reported.
        seconds: How long it ran; None before its end.
        cost: ``host_seconds``, ``cpu_seconds`` and ``gpu_seconds``, as far as they are known.
        run_dir: Its run directory.
        over: Whether it has ended, or can no longer begin; False where that is not known.
    """

    element: int
    job_id: str
    params: Mapping[str, Any]
    state: str = JobState.PENDING
    reason: str = ""
    values: Mapping[str, Reported] = {}
    seconds: float | None = None
    cost: Mapping[str, float] = {}
    run_dir: str = ""
    over: bool = False


def first_of(job: Job) -> RunDir:
    """The run directory of the sweep that a job is, or that it runs again.

    Raises:
        NotFoundError: When the job is no sweep.
    """
    registry.need_run(job.run)
    run = registry.first_of(job.run)
    if run.sweep.name not in listdir(run.path):
        raise NotFoundError(f"job {job.name} is no sweep", hint="gridtf sweep submits one; gridtf status shows a job")
    return run


def rows(run: RunDir) -> list[Row]:
    """The table of a sweep: of each element its newest run.

    Args:
        run: The run directory of the sweep that was submitted first.

    Raises:
        RunDirError: When it cannot be read, or is another user's.
    """
    newest: dict[int, Row] = {}
    for each in (run, *registry.reruns(run)):
        newest.update({row.element: row for row in _rows(each)})
    return [newest[number] for number in sorted(newest)]


def _rows(run: RunDir) -> Iterator[Row]:
    """The elements of one submission."""
    made, submitted = registry.sweep_of(run), jobs.read_submitted(run)
    if made is None or submitted is None:  # another user's, or it is being submitted
        return
    mark = "." if submitted["scheduler"] == "sge" else "_"
    begun: dict[str, RunDir] = {}
    waiting: list[str] = []
    found: dict[str, Row] = {}
    for element in made.elements:
        own = RunDir(run.elements / element)
        names = listdir(own.path)
        leader = (int(element) - 1) // made.pack * made.pack + 1
        found[element] = Row(
            element=made.number(element),
            job_id=f"{submitted['job_id']}{mark}{leader}",
            params=made.rows[int(element) - 1],
            run_dir=str(own.path),
        )
        try:
            ended = reduced.result(own, names)
        except DamagedError as error:  # it has ended, but how is not known
            found[element] = found[element].replace(state=JobState.UNKNOWN, reason=error.what, over=True)
            continue
        if ended is not None:
            found[element] = _ended(found[element], ended)
        elif own.attempts(names) or own.job.name in names:
            begun[element] = own
        else:
            waiting.append(element)
    for (element, own), view in zip(begun.items(), jobs.views(list(begun.values())), strict=True):
        seconds = None if view.ended is None or view.started is None else view.ended - view.started
        of_view = {"state": view.state, "reason": view.reason, "seconds": seconds, "over": view.finished}
        found[element] = found[element].replace(**of_view, values=reported(own))
    if waiting:
        state, reason = _of_waiting(run)
        for element in waiting:
            found[element] = found[element].replace(state=state, reason=reason, over=state != JobState.PENDING)
    yield from found.values()


def _ended(row: Row, ended: Record) -> Row:
    verdict = ended["verdict"]
    seconds = max(0.0, verdict["ended"] - verdict["started"]) if "ended" in verdict and "started" in verdict else 0.0
    return row.replace(
        state=verdict["state"],
        reason="" if verdict["state"] == JobState.COMPLETED else verdict.get("reason", ""),
        values=of_record(ended["values"]),
        seconds=seconds,
        over=True,
        cost={f"{name[:-1]}_seconds": number * seconds for name, number in ended["had"].items() if number},
    )


def _of_waiting(run: RunDir) -> tuple[str, str]:
    """State and reason of the elements of which there is nothing."""
    view = jobs.view(run)
    if cancelled := known(run.cancelled, recordtypes.Cancelled):
        return JobState.CANCELLED, f"cancelled by {cancelled.get('user')} before it began"
    if view.finished or (view.state in ENDED and not view.in_queue):
        return JobState.UNKNOWN, "it has not run, and its scheduler no longer has it"
    return JobState.PENDING, ""


# --- again


def element_spec(job: Job) -> JobSpec:
    """The specification of one element of a sweep, as a job of its own.

    Raises:
        NotFoundError: When the job is no element of a sweep.
        RunDirError: When its records are damaged or another user's.
    """
    run, element = RunDir(job.run_dir.parents[1]), job.run_dir.name
    made = registry.sweep_of(run, own=True) if job.run_dir.parent == run.elements else None
    if made is None or element not in made.elements:
        raise NotFoundError(f"{job.run_dir} is no element of a sweep")
    spec, _ = submitted_as(run)
    row = made.rows[int(element) - 1]
    number = made.numbers[int(element) - 1] if made.numbers else element
    title = submitted_as(first_of(Job(run)))[0].title  # not the name of the sweep, which would mean this job otherwise
    return spec.replace(name=f"{title[:52]}-{number}", params={**spec.params, **row})


def submitted_as(run: RunDir) -> tuple[JobSpec, Record]:
    """Specification and origin in job.json.

    Raises:
        RunDirError: When it is missing, damaged or another user's.
        GridtfError: When another version has written what this one does not know.
    """
    record = read_record(run.job, recordtypes.Job, own=True)
    if record is None or "spec" not in record:
        raise RunDirError(f"{run.path} has no job.json: gridtf has not submitted it")
    try:
        return JobSpec.from_dict(record["spec"]), record.get("origin", {})
    except SpecError as error:
        why = f"gridtf {record.get('gridtf', 'of an unknown version')} has written it, and this is {__version__}"
        what = f"{run.job}: {error.key}: {error.problem}"
        raise GridtfError(what, why=why, hint="submit it from its job file instead") from None


def to_run_again(run: RunDir) -> tuple[Sweep, RunDir, bool]:
    """What of a sweep is to be run again: the elements that have ended and did not complete, and those that never ran.

    Args:
        run: The run directory of the sweep that was submitted first.

    Returns:
        These elements; the run directory for them; whether the sweep had begun, so that what it waited for has ended.

    Raises:
        GridtfError: When there is nothing to run again.
        RunDirError: When a record is damaged or another user's.
    """
    made = registry.sweep_of(run, own=True)
    assert made is not None  # first_of has found it
    # chosen before the table is read: of two commands at once, one finds that the folder exists
    number = max((int(each.path.name.partition("-")[2]) for each in registry.reruns(run)), default=0) + 1
    table = rows(run)
    again = tuple(row.element for row in table if row.over and row.state != JobState.COMPLETED)
    if any(not each.submitted.exists() for each in registry.reruns(run)):
        what = f"elements of the sweep are being run again at this moment, in {run.path / f'rerun-{number - 1}'}"
        raise GridtfError(what, hint="if no other command does, remove that folder")
    if not again:
        going = sum(not row.over for row in table)
        rest = f"{going} have not ended" if going else "all have completed"
        raise GridtfError(f"no element of the sweep is to be run again: {rest}", hint=f"gridtf list {run.path}")
    begun = any(row.cost or following.begun(RunDir(row.run_dir)) for row in table)
    some = made.replace(rows=tuple(made.rows[element - 1] for element in again), numbers=again)
    return some, RunDir(run.path / f"rerun-{number}"), begun
