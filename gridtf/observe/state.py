"""Decides the state of a job from the records of its run directory and its scheduler's answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import KINDS, TASK_TYPES
from gridtf.observe.views import HostView, JobView, TaskView
from gridtf.run import registry
from gridtf.run.following import WAITING, output_dir, waits_for
from gridtf.run.recordtypes import tasks_of
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.api import JobStatus
from gridtf.states import ENDED, JobState, TaskState, exit_code
from gridtf.text import some
from gridtf.values import Fields

# gridtf: n1: set-up line 2 (gridtf.toml:3) failed with exit code 1: line 44 of the job script    (job.sh.j2)
_SET_UP_FAILED = re.compile(r"gridtf: (\S+): (set-up line .*failed with exit code \d+)")
# job.sh: line 44: module: command not found    (bash)
_NOT_FOUND = re.compile(r".*: line \d+: ([\w.+-]+): command not found$")
_CONDA_INIT = re.compile(r".*Run '(conda|mamba) init' before")
_MODULES = "source /etc/profile.d/modules.sh (Lmod: source /etc/profile.d/lmod.sh)"
_CONDA = "source CONDA/etc/profile.d/conda.sh (CONDA is what `conda info --base` prints on the login node)"
# Commands that are functions of a shell -> the set-up line that defines them in the job's bash.
_DEFINED_BY = {
    "module": _MODULES,
    "ml": _MODULES,
    "conda": _CONDA,
    "mamba": _CONDA.replace("conda.sh", "mamba.sh"),
}
_HOOKS = {"conda": 'eval "$(conda shell.bash hook)"', "mamba": 'eval "$(mamba shell hook --shell bash)"'}
# Seconds without a heartbeat after which tasks without a launcher count as ended; clocks do not differ that much.
_GIVEN_UP = 3600.0


class Records(Fields):
    """The records of a job and of its latest attempt; None for one that does not exist.

    Attributes:
        submitted: submitted.json.
        job: job.json.
        cancelled: cancelled.json.
        attempt: Number of the latest attempt.
        plan: plan.json.
        verdict: verdict.json.
        stop: stop.json.
        launcher: The launcher's heartbeat.
        hosts: What each host has reported, with the states of its tasks.
        logs: File names of the tasks' logs.
        has_log: Whether the job script has a log.
        empty_log: Whether that is known to be empty, and explains nothing.
        joined: Whether its tasks called gridtf_join, so that there is no launcher.
        elements: Element of a job array -> its verdict, None without one.
        damaged: Those that are there, but are damaged: their paths below the run directory -> what is wrong with them.
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
    empty_log: bool = False
    joined: bool = False
    elements: Mapping[str, Record | None] = {}
    damaged: Mapping[str, str] = {}

    def harm(self, *names: str) -> str:
        """Which of the records with these names is damaged, as words; empty where none is."""
        return next((f"{path} is damaged" for path in self.damaged if path.rpartition("/")[2] in names), "")


class _Standing(Fields):
    """State of a job with its explanation: the fields of a JobView that have to be decided."""

    state: str
    reason: str = ""
    hint: str = ""
    ended: float | None = None  # without a verdict
    unexplained: bool = False


def decide(run: RunDir, records: Records, queue: JobStatus | None, now: float) -> JobView:
    """Decide the state of a job.

    Args:
        run: Its run directory.
        records: The records that were read from it.
        queue: Its status in the scheduler, queried before the records were read; None: not queried.
        now: Seconds since the epoch.

    Returns:
        The state and its explanation. A verdict decides; without one a job is never COMPLETED, unless all its tasks
        called gridtf_join and exited with 0.
    """
    submitted, verdict = records.submitted or {}, records.verdict or {}
    planned: Record = (records.plan or {}).get("job", {})
    others = waits_for(records.job)
    if queue is not None and queue.waits and others:
        queue = queue.replace(reason=f"after {some(list(others.values()))}")
    launcher = records.launcher or {}
    if queue is not None and queue.state == JobState.RUNNING and launcher.get("phase") == WAITING:
        queue = queue.replace(state=JobState.PENDING, reason=f"{launcher.get('detail')}, in its allocation")
    standing = _standing(run, records, queue, now)
    over = standing.state in ENDED
    # a job that waits for its next start has no running tasks
    tasks = _tasks(run, records, over or standing.ended is not None or standing.state == JobState.PENDING)
    starts = [task.started for task in tasks if task.started is not None]
    return JobView(
        name=str(submitted.get("name") or planned.get("name") or run.path.name),
        job_id=str(submitted.get("job_id") or planned.get("id") or ""),
        scheduler=str(submitted.get("scheduler") or planned.get("scheduler") or ""),
        state=standing.state,
        reason=standing.reason,
        hint=standing.hint,
        run_dir=run.path,
        output_dir=output_dir(run, records.job),
        attempt=records.attempt,
        phase=str((records.launcher or {}).get("phase", "")),
        started=None if standing.state == JobState.PENDING else verdict.get("started", min(starts, default=None)),
        ended=verdict.get("ended", standing.ended) if over else standing.ended,
        exit_code=verdict.get("exit_code", exit_code(standing.state)) if over else None,
        tasks=tasks,
        cause=_cause(records) if over else None,
        in_queue=queue is not None and _has(queue) and registry.own_script(submitted) and not records.joined,
        unexplained=standing.unexplained,
        hosts=_hosts(records),
        expected=queue.expected if queue is not None and standing.state == JobState.PENDING else None,
        damaged=tuple(records.damaged),
        submitted=submitted.get("time") if registry.own_script(submitted) and not records.joined else None,
        params=(records.job or {}).get("spec", {}).get("params", {}),
        waits_for=others,
        slow=launcher.get("slow") if standing.state == JobState.RUNNING else None,
    )


def _cause(records: Records) -> Mapping[str, Any] | None:
    """What failed first; of a job array, in the first of its elements that failed."""
    verdicts = [records.verdict or {}, *(_failed(records.elements).values())]
    return next((verdict["cause"] for verdict in verdicts if verdict.get("cause")), None)


def _failed(elements: Mapping[str, Record | None]) -> dict[str, Record]:
    """The elements of a job array that have a verdict other than COMPLETED."""
    return {name: one for name, one in elements.items() if one and one.get("state") != JobState.COMPLETED}


def _has(queue: JobStatus) -> bool:
    """Whether the scheduler still lists the job."""
    return not queue.purged and queue.state in (JobState.PENDING, JobState.RUNNING)


def _standing(run: RunDir, records: Records, queue: JobStatus | None, now: float) -> _Standing:
    verdict = records.verdict
    if records.elements:
        return _of_array(run, records.elements, queue, now)
    if verdict is not None and verdict.get("next") and (queue is None or _has(queue)):
        # an older listing of the run directory lacks that attempt
        return _Standing(JobState.RUNNING, f"attempt {verdict['next']} follows one that ended {verdict.get('state')}")
    if verdict is not None:
        if queue is not None and (
            queue.state == JobState.PENDING or (verdict.get("again") and queue.state == JobState.RUNNING)
        ):
            again = f"queued again after attempt {records.attempt} ended {verdict.get('state')}"
            return _Standing(JobState.PENDING, "; ".join(part for part in (again, queue.reason) if part))
        # hosts were stopped, and the launcher did not learn why; or the next start was cancelled
        unsure = "again" in verdict and verdict["again"] is not False
        if unsure and queue is not None and queue.state in ENDED - {JobState.COMPLETED, JobState.FAILED}:
            return _Standing(queue.state, f"{verdict.get('reason')}; {_reported(queue)}")
        return _Standing(str(verdict.get("state")), str(verdict.get("reason", "")), str(verdict.get("hint", "")))
    if records.joined:
        return _of_joined(records, queue, now)
    if queue is None or _unanswered(queue):
        return _by_heartbeat(records, queue, now)
    if queue.purged or queue.state in ENDED:
        return _without_verdict(run, records, queue, now)
    unconfirmed = queue.starting and not (records.launcher or records.has_log)
    if queue.state == JobState.PENDING or unconfirmed:
        return _Standing(JobState.PENDING, queue.reason)
    why = "" if queue.starting else queue.reason  # its log or its launcher shows that it has been started
    if records.launcher is None:  # which makes the folder of the attempt
        begins = f"attempt {records.attempt} begins" if records.attempt else "the job script is setting up"
        return _Standing(queue.state, why or records.harm("launcher.json") or begins)
    return _Standing(queue.state, "; ".join(filter(None, (why, _launcher_detail(records, queue, now)))))


def _launcher_detail(records: Records, queue: JobStatus, now: float) -> str:
    """What the launcher of a running job does; that it does not respond, unless the job is suspended."""
    launcher = records.launcher or {}
    if abs(_age(launcher, now)) <= _patience(records):
        return str(launcher.get("detail", ""))
    one_clock = (records.submitted or {}).get("scheduler") == "local"  # which reports jobs of its own host only
    last = _last_heartbeat(launcher, now, one_clock=one_clock)
    return "" if queue.suspended else f"the launcher does not respond: {last}"


def _of_array(run: RunDir, elements: Mapping[str, Record | None], queue: JobStatus | None, now: float) -> _Standing:
    """State of a job array; each element is a job of its own."""
    states = [str(verdict.get("state")) if verdict else None for verdict in elements.values()]
    counts = {state or "without a verdict": states.count(state) for state in dict.fromkeys(states)}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    bad = _failed(elements)
    lost = [name for name, verdict in elements.items() if not verdict] if queue and not _has(queue) else []
    reason = "; ".join([f"array of {len(elements)}: {summary}", *_failed_elements(bad, lost)])
    hint = f"one element: gridtf status {run.elements / next(iter([*bad, *lost, *elements]))}"
    if None not in states:
        others = [state for state in states if state and state != JobState.COMPLETED]
        # the failed ones first, then those of which that is not known
        others.sort(key=lambda state: (state == JobState.SAVED, state == JobState.UNKNOWN))
        state = others[0] if others else JobState.COMPLETED
        unknown = state == JobState.UNKNOWN  # the verdict of an element is damaged
        return _Standing(state, reason, hint, now if unknown else None, unknown)
    if queue is None or _unanswered(queue):
        return _Standing(JobState.UNKNOWN, f"{reason}; {_why_unanswered(queue)}", hint)
    if queue.purged or queue.state in ENDED:
        state = queue.state if queue.state in ENDED - {JobState.COMPLETED} else JobState.FAILED
        return _Standing(state, reason, hint, unexplained=queue.state not in ENDED)
    return _Standing(queue.state, "; ".join(part for part in (queue.reason, reason) if part), hint)


def _unanswered(queue: JobStatus) -> bool:
    """Whether the scheduler was queried, but its answer says nothing about the job."""
    return queue.state == JobState.UNKNOWN and not queue.purged


def _why_unanswered(queue: JobStatus | None) -> str:
    return (queue.reason if queue else "") or "its scheduler was not queried"


def _reported(queue: JobStatus) -> str:
    return f"the scheduler reports {queue.state}" + (f", {queue.reason}" if queue.reason else "")


def _failed_elements(bad: Mapping[str, Record], lost: list[str]) -> list[str]:
    """The elements of an array that failed: the first ones with their reasons. lost: elements without a verdict."""
    words = [f"element {name} {verdict.get('state')}: {verdict.get('reason')}" for name, verdict in bad.items()]
    if len(words) > 3:
        words[3:] = [f"also failed: elements {some([*bad][3:])}"]
    return words + ([f"without a verdict: element{'s' * (len(lost) > 1)} {some(lost)}"] if lost and bad else [])


def _without_verdict(run: RunDir, records: Records, queue: JobStatus, now: float) -> _Standing:
    """State of a job whose launcher wrote no verdict before the job ended."""
    launcher, cancelled, stop = records.launcher, records.cancelled, records.stop or {}
    hint = f"see {run.log}" if records.has_log and not records.empty_log else ""
    killed = queue.killed if launcher and queue.state in ENDED else ""
    damaged = records.harm("verdict.json", "result.json")
    if not damaged and launcher and launcher.get("phase") == "ended" and abs(_age(launcher, now)) <= _patience(records):
        # the launcher wrote this phase after the verdict, which the file system does not show on this host yet
        return _Standing(JobState.RUNNING, "the job has ended, but its verdict is not visible on this host yet")
    if cancelled:
        return _Standing(JobState.CANCELLED, f"cancelled by {cancelled.get('user')} on {cancelled.get('host')}")
    # a scheduler that ends a job by KILL may begin with other hosts: losing these is not why the job ended
    known = stop.get("state") != JobState.FAILED or queue.state not in ENDED
    if launcher and known and stop.get("reason") and stop.get("state") in ENDED - {JobState.COMPLETED}:
        unsaid = damaged or f"the launcher on {launcher.get('host')} was killed before it had ended all tasks"
        return _Standing(str(stop["state"]), f"{stop['reason']}; {unsaid}", hint)
    if queue.state == JobState.CANCELLED and not launcher and not records.has_log:
        return _Standing(JobState.CANCELLED, ", ".join(filter(None, ("cancelled before it started", queue.reason))))
    known = queue.state in ENDED - {JobState.COMPLETED, JobState.FAILED}
    if known and not launcher and records.has_log and (queue.reason or queue.state == JobState.CANCELLED):
        end = f"{queue.state} by {queue.by}" if queue.by else queue.reason or queue.state
        return _Standing(queue.state, f"{end} during the set-up", hint)
    if damaged and queue.state not in ENDED - {JobState.COMPLETED}:
        told = f"{damaged}; {_reported(queue)}" if queue.state in ENDED else damaged
        last = float((launcher or {}).get("time") or now)
        return _Standing(JobState.UNKNOWN, told, hint, last, unexplained=queue.state not in ENDED)
    if damaged or (not launcher and (damaged := records.harm("launcher.json"))):
        what = damaged
    elif launcher:
        ended = f"the launcher on {launcher.get('host')} {f'was {killed}' if killed else 'ended'}"
        what = f"{stop['reason']}; then {ended}" if stop.get("task") else ended
    elif records.has_log and records.attempt is None and queue.state == JobState.COMPLETED:
        what = "the run directory has no attempt, whose folder was removed, or a set-up line has ended the script"
    elif records.has_log:
        what = "the job script ended before the launcher started"
    else:
        what = "the job wrote nothing to its run directory"
        hint = "can the job's hosts see that folder? if not, choose a shared one with --run-dir or --run-root"
    reason = f"ended without a verdict: {what}"
    if queue.state in ENDED and not killed:
        reason += f"; {_reported(queue)}"
    state = queue.state if queue.state in ENDED - {JobState.COMPLETED} else JobState.FAILED
    return _Standing(state, reason, hint, unexplained=queue.state not in ENDED)


def why_set_up_failed(tail: Sequence[str]) -> str:
    """Find the set-up line that failed.

    Args:
        tail: The last lines of the job script's log.

    Returns:
        Its number, exit code and host, and the last line of output before it; empty when none failed. Never the set-up
        line itself, which may contain a password.
    """
    for number, line in enumerate(tail):
        match = _SET_UP_FAILED.match(line)
        if match:
            printed = [before for before in tail[:number] if before.strip()][-1:]
            return "; ".join([f"{match[2]} on {match[1]}", *(f"last output: {words}" for words in printed)])
    return ""


def set_up_hint(tail: Sequence[str]) -> str:
    """What to do about a set-up line whose command is a shell function that the job's bash does not have.

    Args:
        tail: The last lines of the job script's log.

    Returns:
        The line to write; empty when no such command is missing, or when no set-up line failed.
    """
    end = next((number for number, line in enumerate(tail) if _SET_UP_FAILED.match(line)), 0)
    for line in reversed(tail[:end]):
        missing, inactive = _NOT_FOUND.match(line), _CONDA_INIT.match(line)
        command = (missing or inactive or ("", ""))[1]
        if first := (_DEFINED_BY if missing else _HOOKS).get(command):
            return f"{command} is a function that the shell of a job does not have; put this set-up line first: {first}"
    return ""


def _by_heartbeat(records: Records, queue: JobStatus | None, now: float) -> _Standing:
    """State from the launcher's heartbeat alone, without an answer from the scheduler."""
    launcher, unanswered = records.launcher, _why_unanswered(queue)
    if launcher is not None:
        if abs(_age(launcher, now)) <= _patience(records):
            return _Standing(JobState.RUNNING, str(launcher.get("detail", "")))
        return _Standing(JobState.UNKNOWN, f"{_last_heartbeat(launcher, now)}; {unanswered}")
    if damaged := records.harm("verdict.json", "result.json", "launcher.json"):
        return _Standing(JobState.UNKNOWN, f"{damaged}; {unanswered}")
    if records.attempt is not None or records.has_log:
        return _Standing(
            JobState.UNKNOWN, f"the job script has started, but its launcher has not reported yet; {unanswered}"
        )
    if records.submitted is None:
        return _Standing(JobState.UNKNOWN, "the run directory has no record of a submission")
    return _Standing(JobState.PENDING, f"the job has not started; {unanswered}")


def _of_joined(records: Records, queue: JobStatus | None, now: float) -> _Standing:
    """State of tasks that called gridtf_join. Their port holder processes report that they run and, if the kernel
    supports it, how they ended; otherwise the end of the job that they belong to decides."""
    tasks = {name: task for record in records.hosts for name, task in record.get("tasks", {}).items()}
    last = max(records.hosts, key=lambda record: float(record.get("time") or 0.0), default={})
    at, age = float(last.get("time") or 0.0), _age(last, now)
    running = any(task.get("state") == JobState.RUNNING for task in tasks.values())
    all_joined = len(records.hosts) >= len((records.plan or {}).get("tasks", ()))
    planned = tasks_of(records.plan or {})
    train = {name: task for name, task in tasks.items() if _trains(name, planned.get(name, {}))}
    if last and all_joined and not running and (known := _by_their_ends(train)):
        return known.replace(ended=at)
    how = "only the program that started them (srun, mpirun or a script) knows how they end"
    if queue is not None and queue.state in ENDED:
        why = f", {queue.reason}" if queue.reason else ""
        return _Standing(queue.state, f"its tasks called gridtf_join; the job that they belong to has ended{why}")
    silent = abs(age) > _patience(records)  # or the clock of their host differs
    purged = silent and queue is not None and queue.purged
    over = bool(last) and (age > _GIVEN_UP or purged or (all_joined and not running))
    if over and queue is not None and not queue.purged:
        if not _has(queue):
            return _Standing(JobState.UNKNOWN, f"none of its tasks is running any more; {queue.reason}")
        return _Standing(
            JobState.RUNNING, "none of its tasks is running any more; how they ended is known once their job has ended"
        )
    if over:
        return _Standing(JobState.UNKNOWN, f"none of its tasks is running any more; {how}", ended=at)
    if running and silent:
        return _Standing(JobState.UNKNOWN, f"{_last_heartbeat(last, now)}; {how}")
    if running:
        return _Standing(JobState.RUNNING, "its tasks called gridtf_join")
    return _Standing(JobState.UNKNOWN, f"its tasks are still joining; {how}")


def _trains(name: str, planned: Mapping[str, Any]) -> bool:
    """Whether the end of the training depends on this task."""
    row = KINDS.get(planned.get("kind", "")) or TASK_TYPES.get(name.partition(":")[0])
    return row is None or row.trains


def _by_their_ends(train: Mapping[str, Record]) -> _Standing | None:
    """State of a job whose tasks have all ended: those that train decide. None when it is not known how they ended."""
    failed = [(task.get("ended") or 0.0, name) for name, task in train.items() if task.get("state") == JobState.FAILED]
    if failed:
        name = min(failed)[1]
        signal, code = train[name].get("signal"), train[name].get("exit")
        return _Standing(JobState.FAILED, f"{name}: " + (f"killed by {signal}" if signal else f"exit code {code}"))
    if saved := [name for name, task in train.items() if task.get("state") == TaskState.SAVED]:
        return _Standing(JobState.SAVED, f"{some(saved)} saved a checkpoint and ended, to be continued")
    if all(task.get("state") == JobState.COMPLETED for task in train.values()):
        return _Standing(JobState.COMPLETED, "all training tasks have exited with 0")
    return None


def _age(record: Record, now: float) -> float:
    """Seconds since a heartbeat. Clocks of two hosts are involved, so it may be wrong, or negative."""
    return now - float(record.get("time") or 0.0)


def _patience(records: Records) -> float:
    """Seconds without a heartbeat after which the launcher counts as silent: twice the heartbeat_timeout of agents."""
    spec = (records.plan or records.job or {}).get("spec", {})
    return 2 * float(spec.get("heartbeat_timeout", JobSpec.heartbeat_timeout))


def _last_heartbeat(record: Record, now: float, *, one_clock: bool = False) -> str:
    """When a launcher or host last reported. one_clock: it runs on this host."""
    host, minutes = record.get("host"), int(_age(record, now) // 60)
    if minutes < 0:
        return f"the clock of {host} is ahead of this host's, so the age of its last heartbeat is unknown"
    return f"last heartbeat from {host} about {minutes} min ago" + ("" if one_clock else ", if the clocks agree")


def _tasks(run: RunDir, records: Records, over: bool) -> tuple[TaskView, ...]:
    if records.plan is None or records.attempt is None:
        return ()
    attempt = run.attempt(records.attempt)
    states: dict[str, Record] = {}
    gpus: dict[str, Sequence[str]] = {}
    samples: dict[str, Record] = {}
    for host in records.hosts:
        states.update(host.get("tasks", {}))
        gpus.update(host.get("gpus", {}))
        samples.update(host.get("sample", {}).get("tasks", {}))
    cause = (records.verdict or {}).get("cause") or {}
    unseen = TaskState.UNKNOWN if records.harm("hosts.json") else TaskState.PENDING
    views = []
    for name, planned in tasks_of(records.plan).items():
        known = states.get(name, {})
        log = attempt.task_log(planned["type"], planned["index"])
        state = str(known.get("state", unseen))
        if over and state == TaskState.RUNNING:  # its agent died before it could record the end
            lost = (records.verdict or {}).get("state") in (None, JobState.NODE_FAIL)
            state = TaskState.UNKNOWN if lost else TaskState.STOPPED
        end = known
        if over and name == cause.get("task") and state == TaskState.STOPPED:
            state, end = TaskState.FAILED, cause
        views.append(
            TaskView(
                name=name,
                host=planned.get("host"),
                state=state,
                exit=end.get("exit"),
                signal=end.get("signal"),
                started=known.get("started"),
                ended=known.get("ended"),
                log=log if log.name in records.logs else None,
                restarts=known.get("restarts", 0),
                progress=known.get("progress"),
                gpus=tuple(gpus.get(name, ())),
                sample=samples.get(name),
            )
        )
    return tuple(views)


def _hosts(records: Records) -> tuple[HostView, ...]:
    tasks: dict[str, list[str]] = {}
    for name, task in tasks_of(records.plan or {}).items():
        if task.get("host"):
            tasks.setdefault(task["host"], []).append(name)
    samples = {host["sample"]["host"]: host["sample"] for host in records.hosts if "sample" in host}
    views = []
    for name, there in tasks.items():
        of_host = {key: value for key, value in samples.get(name, {}).items() if key not in ("host", "tasks")}
        views.append(HostView(name, tuple(there), of_host or None))
    return tuple(views)
