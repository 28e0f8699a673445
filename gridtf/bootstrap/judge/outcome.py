"""What tasks say: whether an attempt goes on, how it has ended, and which of them has failed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.bootstrap.judge import blame
from gridtf.bootstrap.judge.blame import Cause, raised, when
from gridtf.bootstrap.judge.evidence import SCHEDULER, TRAINED, Evidence
from gridtf.bootstrap.judge.verdict import final_lines, of_exception
from gridtf.jobspec.tasktypes import LEADERS
from gridtf.run.rundir import Attempt, Record
from gridtf.states import SAVED_CODE, JobState, TaskState
from gridtf.text import counted, some, were
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.jobspec.spec import JobSpec

TaskRecords = Mapping[str, Record]
_MOST_JUDGED = 64  # tasks, whose logs may have to be read; the cause is among the first


class Outcome(Value):
    """Whether an attempt goes on.

    Attributes:
        ended: Whether the attempt is over.
        cause: A task that has failed; None after success.
        lingering: Tasks that still run after the training, and may finish by themselves (evaluator).
        early: Tasks that have finished although awaited tasks need them or are led by them, and may now wait forever.
        awaited: Tasks that the job waits for, where some finished early.
        leader: The early task that leads the others, which then have leader_wait to finish; empty if there is none.
        saved: Awaited tasks that have saved a checkpoint, to be continued; the others then have leader_wait as well.
    """

    ended: bool
    cause: PlacedTask | None = None
    lingering: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    leader: str = ""
    saved: tuple[str, ...] = ()


def decide(
    tasks: Sequence[PlacedTask], records: TaskRecords, policy: str = "all", *, leader: str | None = None
) -> Outcome:
    """Decide whether the attempt goes on.

    Args:
        tasks: All tasks, in rank order.
        records: Task name -> its record.
        policy: As JobSpec.success_policy.
        leader: As JobSpec.leader.
    """
    completed = {task.name for task in tasks if _state(records, task) == TaskState.COMPLETED}
    needed = [task for task in awaited(tasks, policy) if task.name not in completed]
    saved = tuple(task.name for task in needed if _state(records, task) == TaskState.SAVED)
    waited = tuple(task.name for task in needed if task.name not in saved)
    if not waited and saved:
        return Outcome(True, saved=saved)  # an evaluator would only delay the continuation
    if not waited:
        running = [task for task in tasks if _state(records, task) == TaskState.RUNNING]
        return Outcome(True, lingering=tuple(task.name for task in running if task.row.lingers))
    # with "chief", training tasks that fail cost the job nothing while the chief goes on
    decisive = [
        task for task in tasks if task.row.critical and (not task.trains or policy != "chief" or task in needed)
    ]
    failed = next((task for task in decisive if _has_failed(task, records)), None)
    if failed:
        return Outcome(True, failed)
    if saved:
        return Outcome(False, awaited=waited, saved=saved)
    first = _leader(tasks, leader)
    leading = (task for task in tasks if task.in_cluster and (task == first or not task.trains))
    early = tuple(task.name for task in leading if task.name in completed)
    led = first.name if first and first.name in early else ""
    return Outcome(False, early=early, awaited=waited if early else (), leader=led)


def _leader(tasks: Sequence[PlacedTask], chosen: str | None) -> PlacedTask | None:
    """The task that leads the others, as in TensorFlow's programs for parameter servers: the chief, else worker 0.
    Without a ps the workers may be independent of each other, and none of them leads unless it is chosen."""
    first = next((task for task in tasks if task.trains), None)
    with_ps = any(task.type == "ps" and task.in_cluster for task in tasks)
    return first if first and (chosen or first.type in LEADERS or with_ps) else None


def first_cause(
    tasks: Sequence[PlacedTask],
    records: TaskRecords,
    attempt: Attempt,
    stopped: float = float("inf"),
    lost: Sequence[str] = (),
) -> Cause | None:
    """Why an attempt has failed, by what its tasks have said of each other.

    Args:
        tasks: All tasks.
        records: Task name -> its record, with all times by one clock.
        attempt: The attempt, which has their logs.
        stopped: When the tear-down began: a task whose program had failed by then, and was stopped before it ended, has
            failed as well.
        lost: As lost_hosts returns them.

    Returns:
        None where no critical task has failed.
    """
    failed = [task for task in tasks if task.row.critical and _has_failed(task, records, stopped)]
    failed = sorted(failed, key=lambda task: when(records[task.name]))[:_MOST_JUDGED]
    texts = {task.name: _last_words(records[task.name], attempt, task) for task in failed}
    return blame.find(tasks, failed, records, texts, lost)


def failed_before(cause: Cause, tasks: Sequence[PlacedTask], records: TaskRecords) -> str:
    """Which tasks that the training does not need, such as services, had failed before the first cause; may be empty.

    Args:
        cause: The first cause.
        tasks: All tasks.
        records: Task name -> its record, with all times by one clock.
    """
    until = when(records[cause.task.name])
    beside = [task for task in tasks if not task.row.critical and _state(records, task) == TaskState.FAILED]
    names = [task.name for task in beside if when(records[task.name]) <= until]
    return f"{some(names, most=2)} had failed before" if names else ""


def _last_words(record: Record, attempt: Attempt, task: PlacedTask) -> str:
    """What a failed task said last: the exception that ended it, or the last lines of its log from the last one on."""
    if noted := raised(record):
        return "\n".join((noted["message"], noted.get("cause", "")))
    tail = "\n".join(final_lines(attempt.task_log(task.type, task.index)))
    return tail[tail.rfind("Traceback (most recent") :] if "Traceback (most recent" in tail else tail


def _has_failed(task: PlacedTask, records: TaskRecords, stopped: float = float("-inf")) -> bool:
    """Whether a task has failed; one that does not train has nothing to save."""
    state = _state(records, task)
    if state in (TaskState.STOPPED, TaskState.RUNNING):
        record = records[task.name]
        noted = record.get("exception")
        return bool(noted and noted["pid"] == record.get("pid") and noted["time"] < stopped)
    return state == TaskState.FAILED or (state == TaskState.SAVED and not task.trains)


def lost_hosts(tasks: Sequence[PlacedTask], records: TaskRecords) -> list[str]:
    """The hosts whose records show a running task after the tear-down, because the hosts no longer write.

    Args:
        tasks: All tasks.
        records: Task name -> its record, read after the tear-down.
    """
    return list(dict.fromkeys(task.host for task in tasks if _state(records, task) == TaskState.RUNNING))


def awaited(tasks: Sequence[PlacedTask], policy: str) -> list[PlacedTask]:
    """The tasks that must exit with 0 for the job to succeed.

    Args:
        tasks: All tasks, in rank order.
        policy: As JobSpec.success_policy.
    """
    training = [task for task in tasks if task.trains]
    return training[:1] if policy == "chief" else training


def _state(records: TaskRecords, task: PlacedTask) -> str:
    return str(records.get(task.name, {}).get("state", ""))


# --- how it has ended


def of_success(
    tasks: Sequence[PlacedTask], records: TaskRecords, policy: str, spec: JobSpec, *, distributed: bool = True
) -> Evidence:
    """The end of a job that has succeeded. It names tasks that failed nevertheless, or still run and are stopped.

    Args:
        tasks: All tasks.
        records: Task name -> its record.
        policy: As JobSpec.success_policy, or ``chief`` because leader_wait has expired.
        distributed: Whether a dataset was given to the data workers, if there are any.
    """
    if policy == "chief":
        reason = f"{awaited(tasks, policy)[0].name} has exited with 0"
    else:
        reason = "all training tasks have exited with 0"
    running = [task for task in tasks if _state(records, task) == TaskState.RUNNING]
    late = [task.name for task in running if task.trains and policy != spec.success_policy]
    cut_off = [task.name for task in running if task.row.lingers]
    failed = [task.name for task in tasks if _state(records, task) == TaskState.FAILED]
    parts = [reason]
    hints = []
    for task in tasks:
        if restarts := records.get(task.name, {}).get("restarts"):
            parts.append(f"{counted(restarts, 'restart')} of {task.name} after a failure")
    if failed:
        parts.append(f"{some(failed)} failed")
    if late:
        parts.append(f"{some(late)} {were(late)} still running and {were(late)} stopped")
        wait = f"--leader-wait allows more than {spec.leader_wait:g} s"
        hints.append(f"did they train on, or wait for the leader, which has ended? their logs may say; {wait}")
    if cut_off:
        after = f"{spec.evaluator_wait:g} s after the training"
        parts.append(f"{some(cut_off)} {were(cut_off)} still running {after} and {were(cut_off)} stopped")
        hints.append("--evaluator-wait allows an evaluator more time")
    if not distributed:
        parts.append("the data workers were given no dataset")
        hints.append("gridtf.training.data.distribute(dataset) gives them one; without it, leave out --data-workers")
    return Evidence(TRAINED, "; ".join(parts), hint="; ".join(hints), state=JobState.COMPLETED)


def of_saved(tasks: Sequence[PlacedTask], records: TaskRecords, policy: str, spec: JobSpec) -> Evidence:
    """The end of a job in which tasks have exited with 42: saved, to be continued.

    Args:
        tasks: All tasks, in rank order.
        records: Task name -> its record.
        policy: As JobSpec.success_policy.

    Returns:
        SAVED, also where others than the leader, whose checkpoint is kept, had to be stopped; FAILED where the leader
        did not end in time.
    """
    needed = awaited(tasks, policy)
    saved = [task.name for task in needed if _state(records, task) == TaskState.SAVED]
    late = [task.name for task in needed if _state(records, task) not in (TaskState.SAVED, TaskState.COMPLETED)]
    ended = f"{some(saved)} saved a checkpoint and ended (exit code {SAVED_CODE})"
    if needed[0].name in late:
        return Evidence(
            TRAINED,
            f"{ended}, but {some(late)} {were(late)} still running {spec.leader_wait:g} s later",
            hint="all tasks must save at the same step, as gridtf.training.checkpoint does; "
            "--leader-wait allows them more time",
        )
    parts = [f"{ended}, to be continued"]
    if late:
        parts.append(f"{some(late)} {were(late)} still running {spec.leader_wait:g} s later and {were(late)} stopped")
    return Evidence(TRAINED, "; ".join(parts), hint=_again(spec), state=JobState.SAVED)


def _again(spec: JobSpec) -> str:
    return f'to continue with its checkpoints, submit it again with --env OUTPUT_DIR="$(gridtf output {spec.title})"'


def saved_before(tasks: Sequence[PlacedTask], records: TaskRecords) -> str:
    """Name the tasks that saved a checkpoint before the job ended for another reason; empty where none did.

    Args:
        tasks: All tasks.
        records: Task name -> its record.
    """
    saved = [task.name for task in tasks if task.trains and _state(records, task) == TaskState.SAVED]
    return f"{some(saved)} had saved a checkpoint (exit code {SAVED_CODE})" if saved else ""


def of_timeout(reason: str, tasks: Sequence[PlacedTask], records: TaskRecords, *, requested: bool = False) -> Evidence:
    """The end of a job that its walltime ended. It names the tasks that had finished by then, or the first
    that an exception should have ended.

    Args:
        reason: How the walltime ended the job.
        tasks: All tasks.
        records: Task name -> its record.
        requested: Whether a checkpoint had been requested.
    """
    training = [task for task in tasks if task.trains]
    done = [task.name for task in training if _state(records, task) == TaskState.COMPLETED]
    unfinished = [task.name for task in training if task.name not in done]
    hint = "request more with --time"
    running = [task for task in tasks if _state(records, task) == TaskState.RUNNING]
    if hanging := [task for task in running if raised(records[task.name])]:
        first = min(hanging, key=lambda task: when(records[task.name]))
        ended_by = of_exception(records[first.name]["exception"])
        reason = f"{reason}; {first.name} on {first.host} had not ended after {ended_by}"
        return Evidence(SCHEDULER, reason, hint=_HANGS, state=JobState.TIMEOUT)
    if saved := saved_before(tasks, records):
        return Evidence(SCHEDULER, reason, saved, hint, JobState.TIMEOUT)
    if not done and requested:
        why = f"a checkpoint was requested, and {some(unfinished)} did not end"
        return Evidence(SCHEDULER, reason, why, _UNHEEDED, JobState.TIMEOUT)
    if not done:
        return Evidence(SCHEDULER, reason, hint=hint, state=JobState.TIMEOUT)
    why = f"{some(done)} had exited with 0, {some(unfinished)} had not"
    leader = training[0].name
    if leader in done:
        hint += f"; if the job is done when {leader} is: --success-policy chief"
    return Evidence(SCHEDULER, reason, why, hint, JobState.TIMEOUT)


_HANGS = "something that Python runs at its end waited, such as a thread or an exit handler: gridtf stacks shows it"
_UNHEEDED = (
    "does the program ask gridtf.checkpoint_requested() after each step, save and exit with 42? or does it need more "
    "time for that: --checkpoint-before"
)
