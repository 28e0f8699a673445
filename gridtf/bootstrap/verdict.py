"""Whether an attempt goes on, how it ended and why, and the messages about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridtf.host.processes import signal_name
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES
from gridtf.run.rundir import Attempt, Record
from gridtf.run.tail import last_lines
from gridtf.states import JobState, TaskState
from gridtf.text import some, were

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.jobspec.spec import JobSpec

# A piece of a log's last lines -> what to do about it.
_HINTS = (
    ("No module named 'tensorflow'", "TensorFlow is not in the task's Python: add set-up lines (--setup) or --python"),
    ("No space left on device", "a disk is full: look at df on that host and at your quota"),
    ("Disk quota exceeded", "your quota is used up"),
    ("MemoryError", "the task ran out of memory: request more with --mem, or use less"),
    ("std::bad_alloc", "the task ran out of memory: request more with --mem, or use less"),
    ("RESOURCE_EXHAUSTED", "the GPU or the host ran out of memory: use a smaller batch or model"),
    ("Could not start gRPC server", "the port was taken: was TF_GRPC_REUSE_PORT changed or a port hard-coded?"),
    (
        "Resource temporarily unavailable",
        "the limit on your processes is reached on that host: see ulimit -u, or the site's limit",
    ),
    ("Too many open files", "the limit on open files is too low for the tasks of that host: see ulimit -n"),
    (
        "Attempt to convert a value (PerReplica",
        "Keras 3's fit does not work under this strategy: install tf_keras and set --env TF_USE_LEGACY_KERAS=1",
    ),
    (
        "Not running inside a SLURM step?",
        "gridtf's tasks are not srun's tasks: use TFConfigClusterResolver() or gridtf.training.ClusterResolver()",
    ),
    (
        "coordinator_address should be defined",
        "give jax.distributed.initialize MASTER_ADDR:MASTER_PORT, WORLD_SIZE and RANK, which the environment has",
    ),
    ("CUDA_ERROR_NO_DEVICE", "TensorFlow sees no GPU: check CUDA_VISIBLE_DEVICES and the driver on that host"),
)
_SIGNAL_HINTS = {
    "SIGKILL": "by hand, or by the kernel because memory ran out: see the site's memory limit and dmesg",
    "SIGSEGV": "it crashed in native code: a broken or mismatched library is the usual cause",
    "SIGBUS": "it crashed in native code, often because /dev/shm or a mapped file's disk is full",
    "SIGILL": "it uses instructions that this host's CPU does not have: was it built for another machine?",
}
_MEMORY_HINT = "the kernel's out-of-memory killer ended it: request more memory (--mem), or use less"


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended.

    Attributes:
        state: A final job state.
        reason: One line.
        why: One more line, or empty.
        hint: What to do about it, or empty.
        cause: The task that failed first, with its host, exit code or signal, log and the log's last lines; without a
            task where an agent failed.
        again: Whether the job will be started again; None: only its scheduler knows, and also how it ended.
    """

    state: str
    reason: str
    why: str = ""
    hint: str = ""
    cause: Record | None = None
    again: bool | None = False

    @property
    def exit_code(self) -> int:
        """The exit code of the job script."""
        return 0 if self.state == JobState.COMPLETED else 1

    def record(self, nonce: str, started: float, ended: float) -> Record:
        """The record for verdict.json; times in seconds since the epoch."""
        reason = f"{self.reason} ({self.why})" if self.why else self.reason
        return {
            "nonce": nonce,
            "state": self.state,
            "reason": reason,
            "hint": self.hint,
            "cause": self.cause,
            "again": self.again,
            "started": started,
            "ended": ended,
            "exit_code": self.exit_code,
        }

    def text(self) -> str:
        """For the job's own log."""
        lines = [f"{self.state}: {self.reason}", *(line for line in (self.why, self.hint) if line)]
        if self.cause and not self.cause["tail"]:
            lines.append(f"it printed nothing: {self.cause['log']}")
        elif self.cause:
            lines += [f"last lines of {self.cause['log']}:", *(f"  {line}" for line in self.cause["tail"])]
        return "\n".join(lines)


def of_task(task: PlacedTask, record: Record, attempt: Attempt, also: str = "") -> Verdict:
    """The verdict on the task that failed first.

    Args:
        task: The task.
        record: What its host reported of it.
        attempt: The attempt, where its log is.
        also: What else was noticed, such as a lost host.
    """
    log = attempt.task_log(task.type, task.index)
    tail = last_lines(log)
    error, number, code = record.get("error"), record.get("signal"), record.get("exit")
    if error:
        how, hint = str(error), "check the command, the set-up lines and the PATH of that host"
    elif number:
        how, hint = f"killed by {number}", _SIGNAL_HINTS.get(str(number), "")
    else:
        how, hint = _of_exit(code)
    if record.get("restarts"):
        how = f"{how}, after it had been started again {_times(record['restarts'])}"
    if record.get("oom"):
        how, hint = f"{how} (out of memory)", _MEMORY_HINT
    output = str(error) if error else "\n".join(tail)
    hint = next((advice for piece, advice in _HINTS if piece in output), hint)
    cause = {"task": task.name, "host": task.host, "exit": code, "signal": number, "log": str(log), "tail": tail}
    state = JobState.OUT_OF_MEMORY if record.get("oom") else JobState.FAILED
    return Verdict(state, f"{task.name} on {task.host}: {how}", also, hint, cause)


def _of_exit(code: int | None) -> tuple[str, str]:
    """How a task ended, and a hint. The exit code of a shell is 128 + N for a program that signal N killed."""
    if code is None or not 128 < code < 128 + signal.NSIG:
        return f"exit code {code}", ""
    name = signal_name(code - 128)
    return f"exit code {code}, with which a shell reports {name}", _SIGNAL_HINTS.get(name, "")


def of_success(tasks: Sequence[PlacedTask], records: Mapping[str, Record], policy: str, spec: JobSpec) -> Verdict:
    """The verdict when the tasks whose success is the job's have succeeded.

    Args:
        tasks: All tasks. The verdict names the others that failed all the same, or still run and are stopped now.
        records: Task name -> what its host reported.
        policy: As JobSpec.success_policy, or ``chief`` because leader_wait is over.
        spec: What the user asked for.
    """
    if policy == "chief":
        reason = f"{awaited(tasks, policy)[0].name} has exited with 0"
    else:
        reason = "all training tasks have exited with 0"
    running = [task for task in tasks if records.get(task.name, {}).get("state") == TaskState.RUNNING]
    late = [task.name for task in running if task.trains and policy != spec.success_policy]
    cut_off = [task.name for task in running if TASK_TYPES[task.type].lingers]
    failed = [task.name for task in tasks if records.get(task.name, {}).get("state") == TaskState.FAILED]
    parts = [reason]
    hints = []
    for task in tasks:
        if restarts := records.get(task.name, {}).get("restarts"):
            parts.append(f"{task.name} was killed and started again {_times(restarts)}")
    if failed:
        parts.append(f"{some(failed)} failed")
    if late:
        parts.append(f"{some(late)} {were(late)} still running and {were(late)} stopped")
        hints.append(f"--leader-wait gives the others more than {spec.leader_wait:g} s")
    if cut_off:
        after = f"{spec.evaluator_wait:g} s after the training"
        parts.append(f"{some(cut_off)} {were(cut_off)} still running {after} and {were(cut_off)} stopped")
        hints.append("--evaluator-wait gives an evaluator more time")
    return Verdict(JobState.COMPLETED, "; ".join(parts), hint="; ".join(hints))


def of_timeout(reason: str, tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Verdict:
    """The verdict when the walltime is over. It names the tasks that had finished by then.

    Args:
        reason: How the walltime ended the job.
        tasks: All tasks.
        records: Task name -> what its host reported.
    """
    states = {task.name: records.get(task.name, {}).get("state") for task in tasks if task.trains}
    done = [name for name, state in states.items() if state == JobState.COMPLETED]
    left = [name for name in states if name not in done]
    hint = "request more with --time"
    if not done:
        return Verdict(JobState.TIMEOUT, reason, hint=hint)
    why = f"{some(done)} had exited with 0, {some(left)} had not"
    first = next(iter(states))
    if first in done:
        hint += f"; if the job is done when {first} is: --success-policy chief"
    return Verdict(JobState.TIMEOUT, reason, why, hint)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# --- whether it goes on (pure)

TaskRecords = Mapping[str, Record]


@dataclass(frozen=True)
class Outcome:
    """Whether an attempt goes on.

    Attributes:
        ended: Whether it is over.
        cause: The task that failed first; None after success.
        lingering: Tasks that may still finish by themselves although the training has ended.
        early: Tasks that have finished although the awaited ones need them, or are led by them, and may wait for ever.
        awaited: Tasks that have not finished yet while some finished early.
        leader: The one of the early tasks that leads the others; these are waited for with a limit.
    """

    ended: bool
    cause: PlacedTask | None = None
    lingering: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    leader: str = ""


def decide(tasks: Sequence[PlacedTask], records: TaskRecords, policy: str = "all") -> Outcome:
    """The outcome so far.

    Args:
        tasks: All tasks.
        records: Task name -> what its host reported.
        policy: As JobSpec.success_policy.
    """
    completed = {task.name for task in tasks if _state(records, task) == TaskState.COMPLETED}
    waited = tuple(task.name for task in awaited(tasks, policy) if task.name not in completed)
    if not waited:
        lingering = (
            task.name for task in tasks if TASK_TYPES[task.type].lingers and _state(records, task) == TaskState.RUNNING
        )
        return Outcome(True, lingering=tuple(lingering))
    cause = first_failure(tasks, records)
    if cause:
        return Outcome(True, cause)
    leader = _leader(tasks)
    needed = (task for task in tasks if task.in_cluster and (task == leader or not task.trains))
    early = tuple(task.name for task in needed if task.name in completed)
    led = leader.name if leader and leader.name in early else ""
    return Outcome(False, early=early, awaited=waited if early else (), leader=led)


def _leader(tasks: Sequence[PlacedTask]) -> PlacedTask | None:
    """The task that leads the others, as TensorFlow's programs for parameter servers have it: the chief, else worker 0.
    Where there is no ps, workers may have nothing to do with each other, and none of them leads."""
    training = [task for task in tasks if task.trains]
    leaders = [task for task in training if task.type in LEADERS]
    with_ps = any(task.type == "ps" and task.in_cluster for task in tasks)
    return next(iter(leaders or (training if with_ps else ())), None)


def first_failure(tasks: Sequence[PlacedTask], records: TaskRecords) -> PlacedTask | None:
    """The critical task that failed first. Of two at the same moment the one that a signal killed: the other one's
    exit is more likely a consequence."""
    failed = [task for task in tasks if TASK_TYPES[task.type].critical and _state(records, task) == TaskState.FAILED]
    if not failed:
        return None
    return min(failed, key=lambda task: (records[task.name].get("ended") or 0.0, not records[task.name].get("signal")))


def lost_hosts(tasks: Sequence[PlacedTask], records: TaskRecords) -> list[str]:
    """After the tear-down: the hosts whose records still show a running task, because they have stopped writing."""
    return list(dict.fromkeys(task.host for task in tasks if _state(records, task) == TaskState.RUNNING))


def awaited(tasks: Sequence[PlacedTask], policy: str) -> list[PlacedTask]:
    """The tasks whose success is the job's."""
    training = [task for task in tasks if task.trains]
    if policy == "chief":
        leaders = [task for task in training if task.type in LEADERS]
        return leaders or training[:1]
    return training


def _state(records: TaskRecords, task: PlacedTask) -> str:
    return str(records.get(task.name, {}).get("state", ""))


# --- the log of the agents: why one could not start or go on (pure)

# What srun and slurmstepd print at every end, whatever was the cause. Compiled when an agent has failed.
_NOISE = (
    r"srun: (cluster configuration lacks|launch/slurm: |Job step aborted|Force Terminated|error: \S+: tasks? [\d,-]+: )"
    r"|slurmstepd\S*: error: \*\*\* STEP "
)
# gridtf: agent on n3: cannot write …      slurmstepd-n3: error: execve(): …
_OF_HOST = r"gridtf: agent on (?P<ours>\S+): |slurmstepd-(?P<slurms>[^\s:]+): (?:error: )?"

_ELSEWHERE = "the Python that runs gridtf must be visible and executable on all hosts"
# A piece of a line -> what to do.
_AGENT_HINTS = (
    ("No module named 'gridtf", "gridtf must be installed where all hosts see it, such as in the home directory"),
    ("Too many open files", "the limit on open files is too low on that host: see ulimit -n, or the site's limit"),
    ("file descriptors", "the limit on open files is too low on that host: see ulimit -n, or the site's limit"),
    ("Permission denied", _ELSEWHERE),
    ("No such file or directory", _ELSEWHERE),
    ("not found", _ELSEWHERE),
)


def relevant(lines: Sequence[str], host: str | None) -> list[str]:
    """The lines that may tell why an agent has ended.

    Args:
        lines: Of the log of the agents.
        host: The agent's; None where it is not known.
    """
    lines = [line for line in lines if line.strip() and not re.match(_NOISE, line)]
    return [line for line in lines if not host or _host(line) in (None, host)]


def agent_cause(lines: Sequence[str]) -> str:
    """The line that tells the cause: the first of an agent's own, or the last of a program that could not start it."""
    own = [line for line in lines if (match := re.match(_OF_HOST, line)) and match["ours"]]
    return re.sub(_OF_HOST, "", (own or list(lines[-1:]) or [""])[0], count=1)


def agent_hint(line: str) -> str:
    """What to do about such a line; mostly empty."""
    return next((hint for piece, hint in _AGENT_HINTS if piece in line), "")


def _host(line: str) -> str | None:
    match = re.match(_OF_HOST, line)
    return (match["ours"] or match["slurms"]) if match else None
