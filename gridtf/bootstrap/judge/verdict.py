"""Whether an attempt goes on, how it ended and why, and the messages about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap.judge import blame
from gridtf.bootstrap.judge.blame import Cause, raised, when
from gridtf.errors import GridtfError
from gridtf.host.processes import signal_name
from gridtf.jobspec.tasktypes import LEADERS
from gridtf.run.logparts import refresh
from gridtf.run.rundir import Attempt, Record
from gridtf.run.tail import exception, last_lines, last_text
from gridtf.states import SAVED_CODE, JobState, TaskState, exit_code
from gridtf.text import counted, plain, some, were
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.jobspec.spec import JobSpec

_STRATEGY_TYPES = (
    "strategies know chief, worker, ps and evaluator: give this one gridtf.training.ClusterResolver(), to which a "
    "master is the chief"
)
_FIT_WORKS = (
    "it does in one task with all GPUs of a host, under MirroredStrategy; on several hosts with KERAS_BACKEND=jax and "
    "keras.distribution, or as tf_keras with --env TF_USE_LEGACY_KERAS=1; else with gridtf.training.averaging(), which "
    "is another algorithm"
)
_IN_ALL = (
    "the tasks have done different things: does a callback, save or evaluate run in one of them only? All do it, each "
    "with a file of its own"
)
_TOO_MANY = "the limit on your processes and threads, or on memory, is reached on that host: see ulimit -u and -v"
_TASK_MEMORY = "the task ran out of memory: request more with --mem, or use less"
_GPU_MEMORY = "the GPU or the host ran out of memory: use a smaller batch or model"
# A substring of a log's last lines -> the hint.
_HINTS = (
    (
        "No module named 'tensorflow'",
        "TensorFlow is not in the task's Python: activate the one that has it, by --setup 'source ENV/bin/activate'",
    ),
    ("No module named 'jax'", "KERAS_BACKEND=jax needs the package jax in the tasks' Python: pip install jax"),
    ("ModuleNotFoundError", "is it in another environment? --setup 'source ENV/bin/activate' activates it in the job"),
    ("No space left on device", "a disk is full: look at df on that host and at your quota"),
    ("Disk quota exceeded", "your quota is used up"),
    ("PermissionError", "with --snapshot, code is read-only: write to OUTPUT_DIR, or name that file in .gridtfignore"),
    ("OutOfMemoryError", _GPU_MEMORY),
    ("MemoryError", _TASK_MEMORY),
    ("std::bad_alloc", _TASK_MEMORY),
    ("RESOURCE_EXHAUSTED", _GPU_MEMORY),
    (
        "Could not start gRPC server",
        "the port was taken: was TF_GRPC_REUSE_PORT changed or a port hard-coded? TensorFlow before 2.3 needs "
        "--ports release",
    ),
    ("Resource temporarily unavailable", _TOO_MANY),
    ("can't start new thread", _TOO_MANY),
    ("pthread_create() failed", _TOO_MANY),
    ("EOF when reading a line", "nobody answers a job's questions: give the program what it asks for as options"),
    ("Read-only file system", "that folder cannot be written on that host: is it only so there? see mount"),
    ("Too many open files", "the limit on open files is too low for the tasks of that host: see ulimit -n"),
    (
        "Attempt to convert a value (PerReplica",
        f"Keras 3's fit does not work under this strategy: {_FIT_WORKS}",
    ),
    (
        "pass this dataset to ClusterCoordinator",
        f"the dataset of a loop goes to its coordinator; Keras 3's fit does not work under this strategy: {_FIT_WORKS}",
    ),
    (
        "Could not apply FILE based sharding",
        "there are fewer files than workers: write more files, or set AutoShardPolicy.DATA in the dataset's options, "
        "and have all workers read it in the same order",
    ),
    (
        "the data must be provided as a `tf.data.Dataset`",
        "keras.distribution divides the batches of a dataset, in the same order on all workers: "
        "tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(128)",
    ),
    (
        "that spans non-addressable (non process local) devices",
        "under keras.distribution, predict in one task alone, with the model that was saved",
    ),
    (
        "Please config the batch size for the input dataset",
        "under keras.distribution, batch() comes last: map() before it",
    ),
    ("passed to device_put is not the same on each process", _IN_ALL),
    ("Collective instance", _IN_ALL),
    ("AddN must have the same size and shape", "choose a batch that is a multiple of the number of GPUs"),
    (
        "Not running inside a SLURM step?",
        "gridtf's tasks are not srun's tasks: use TFConfigClusterResolver() or gridtf.training.ClusterResolver()",
    ),
    (
        "step creation temporarily disabled",
        "srun in a task waits for CPUs that gridtf's own step has: leave it out, gridtf starts a process for each task",
    ),
    (
        "coordinator_address should be defined",
        "give jax.distributed.initialize MASTER_ADDR:MASTER_PORT, WORLD_SIZE and RANK, which the environment has",
    ),
    (
        "Could not find callback with key=pyfunc",
        "a data worker cannot run Python: use TensorFlow's functions before distribute, or the Python one after it",
    ),
    (
        "Collective ops must be configured at program startup",
        "a tensor was made before the strategy: make the strategy first of all, before data sets, models and variables",
    ),
    ("Unrecognized task_type", _STRATEGY_TYPES),
    ("Disallowed task type found in cluster spec", _STRATEGY_TYPES),
    (
        "TensorBoard is not installed",
        "tf.summary needs the package tensorboard, which TensorFlow does not install: pip install tensorboard",
    ),
    (
        "unsupported PMI version",
        "the mpirun of the program's MPI has to come first on PATH: `gridtf doctor` shows both",
    ),
    ("CUDA_ERROR_NO_DEVICE", "TensorFlow sees no GPU: check CUDA_VISIBLE_DEVICES and the driver on that host"),
)
# Of an operation that a task does not know; a ClusterCoordinator tries again, and fails long after.
_UNKNOWN = ("is neither a type of a primitive operation", "Op type not registered")
_OPERATIONS = (
    "a task that gridtf serves knows no operations of other packages: name the modules that register them, such as "
    "--serve-imports tensorflow_decision_forests"
)
# Lines that TensorFlow logs while a program ends.
_OF_TENSORFLOW = r"\d{4}-\d\d-\d\d |[IWEF]\d{4} |WARNING:|Exception ignored"
_SIGNAL_HINTS = {
    "SIGKILL": "by hand, or by the kernel because memory ran out: see the site's memory limit and dmesg",
    "SIGSEGV": "it crashed in native code: a broken or mismatched library is the usual cause",
    "SIGBUS": "it crashed in native code, often because /dev/shm or a mapped file's disk is full",
    "SIGILL": "it uses instructions that this host's CPU does not have: was it built for another machine?",
}
FATAL = r"\bAbort\(-?\d+\) on node"  # what MPICH and Intel MPI print, with the reason
# What says most of what mpirun prints: Open MPI's, MPICH's and Intel's.
_TELLING = re.compile(
    "MPI_ABORT was invoked|exiting improperly|exited on signal|error occurred|[Uu]nable to|[Ii]nvalid"
    "|EXIT (CODE|STRING)"
)
_MOST_OF_MPIRUN = 1 << 16  # characters
_MEMORY_HINT = "the kernel's out-of-memory killer ended it: request more memory (--mem), or use less"


class Verdict(Value):
    """How an attempt ended.

    Attributes:
        state: A final job state.
        reason: One line.
        why: The cause, in one more line; may be empty.
        hint: What to do about it; may be empty.
        cause: The task that failed first, with its host, exit code or signal, log and the log's last lines; without a
            task where an agent failed.
        again: Whether the scheduler will start the job again; None: unknown, as is the final state.
        next: The number of the attempt that follows in the same allocation; None: none does.
        continuation: Whether the job is started again, in words that follow the reason; may be empty.
        chain: The attempts of the job that have saved, up to this one (walltime.Chain); None where it is not to be
            continued.
    """

    state: str
    reason: str
    why: str = ""
    hint: str = ""
    cause: Record | None = None
    again: bool | None = False
    next: int | None = None
    continuation: str = ""
    chain: Record | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the job script."""
        return exit_code(self.state)

    @property
    def summary(self) -> str:
        """The reason and the continuation, in one line."""
        return "; ".join(filter(None, (self.reason, self.continuation)))

    def noting(self, text: str) -> Verdict:
        """The same verdict with another observation, which may be empty."""
        return self.replace(why="; ".join(filter(None, (self.why, text))))

    def record(self, nonce: str, started: float, ended: float) -> Record:
        """The record for verdict.json.

        Args:
            nonce: The nonce of the attempt.
            started: When the attempt started, in seconds since the epoch.
            ended: When it ended, in seconds since the epoch.
        """
        reason = f"{self.summary} ({self.why})" if self.why else self.summary
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
            **({"next": self.next} if self.next else {}),
            **({"chain": self.chain} if self.chain else {}),
        }

    def text(self) -> str:
        """Several lines for the job's log."""
        lines = [f"{self.state}: {self.summary}", *(line for line in (self.why, self.hint) if line)]
        if self.cause and not self.cause["tail"]:
            lines.append(f"it printed nothing: {self.cause['log']}")
        elif self.cause:
            lines += [f"last lines of {self.cause['log']}:", *(f"  {line}" for line in self.cause["tail"])]
        return "\n".join(lines)


def final_lines(log: Path, *, gpus: bool = True) -> list[str]:
    """The last lines of a log that another host has written until a moment ago, as tail.last_lines returns them.

    Args:
        log: The log.
        gpus: Whether the task may have GPUs.
    """
    refresh(log)
    return last_lines(log, gpus=gpus)


def of_task(task: PlacedTask, record: Record, attempt: Attempt, also: str = "") -> Verdict:
    """The verdict on the task that failed first.

    Args:
        record: Its record, as its host reported it.
        attempt: The attempt, which has its log.
        also: A further observation, such as a lost host; may be empty.
    """
    log = attempt.task_log(task.type, task.index)
    tail = final_lines(log, gpus=task.gpus > 0)
    error, number, code = record.get("error"), record.get("signal"), record.get("exit")
    if error:
        how, hint = str(error), "check the command, the set-up lines and the PATH of that host"
    elif number:
        how, hint = f"killed by {number}", _SIGNAL_HINTS.get(str(number), "")
    else:
        how, hint = _of_exit(code)
    # without a note, as where the program has no hook, or /tmp was emptied
    if noted := raised(record) or (exception(tail) if code == 1 else None):
        how, hint = _exception(noted), ""
    if record.get("restarts"):
        how = f"{how}, after {counted(record['restarts'], 'restart')}"
    if record.get("oom"):
        how, hint = f"{how} (out of memory)", _MEMORY_HINT
    if record.get("abandoned") and not noted:
        how = f"{how}, when mpirun had ended"
    if (fatal := next((line for line in tail if re.search(FATAL, line)), "")) and not noted:
        how, hint = fatal.strip(), ""
    output = str(error) if error else "\n".join([*tail, noted["message"] if noted else ""])
    hint = next((advice for piece, advice in _HINTS if piece in output), hint)
    if not hint and any(piece in text for text in (output, last_text(log)) for piece in _UNKNOWN):
        hint = _OPERATIONS
    if said := _own_error(tail):
        before = "" if noted and code is None else f"{_of_exit(code)[0] if noted else how}: "  # gridtf's own signal
        how, hint = f"{before}{said[0]}", said[-1] if said[1:] else hint
        also = "; ".join(filter(None, (also, *said[1:-1])))
    cause = {"task": task.name, "host": task.host, "exit": code, "signal": number, "log": str(log), "tail": tail}
    state = JobState.OUT_OF_MEMORY if record.get("oom") else JobState.FAILED
    return Verdict(state, f"{task.name} on {task.host}: {how}", also, hint, cause)


def of_mpirun(log: Path, *, first: bool = True) -> str:
    """The line of the output of an mpirun that says most; empty where there is none.

    Args:
        log: Its output.
        first: Whether the first line will do.
    """
    refresh(log)
    try:
        text = log.read_text(errors="replace")[:_MOST_OF_MPIRUN]
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip("-=*| \t")]
    found = next((line for line in lines if _TELLING.search(line)), lines[0] if lines and first else "")
    return plain(found)[:_MOST_SHOWN]


def of_other(cause: Cause, records: TaskRecords, attempt: Attempt, also: str = "") -> Verdict:
    """The verdict where the first cause is a task that has not failed itself: it has left the others, or its host has.

    Args:
        cause: The first cause.
        records: Task name -> its record.
        attempt: The attempt, which has the logs.
        also: As for of_task.
    """
    task, victim = cause.task, cause.victim
    reason, hint = {
        blame.EXITED: (f"{task.name} on {task.host} exited with 0 while others trained", _TOGETHER),
        blame.SILENT: (f"{task.name} on {task.host} did not respond any more", _SILENT),
        blame.LOST: (f"lost contact with host {task.host}, where {task.name} ran", _LOST),
    }[cause.how]
    said = of_task(victim, records[victim.name], attempt).reason if victim else ""
    log = attempt.task_log(task.type, task.index)
    record = records.get(task.name, {})
    about = {"task": task.name, "host": task.host, "exit": record.get("exit"), "signal": record.get("signal")}
    tail = final_lines(log, gpus=task.gpus > 0)
    state = JobState.NODE_FAIL if cause.how == blame.LOST else JobState.FAILED
    why = "; ".join(filter(None, (also, said)))
    return Verdict(state, reason, why, hint, {**about, "log": str(log), "tail": tail})


_TOGETHER = "all members of the cluster must take the same number of steps: does one have less data?"
_SILENT = "was it stopped, or does it wait for something? its log has the last that it said"
_LOST = "has the host crashed, or lost its network?"
_MOST_JUDGED = 64  # tasks, whose logs may have to be read; the cause is among the first
_MOST_SHOWN = 300  # characters of an exception's message


def _exception(noted: Record) -> str:
    """An exception in one line, such as ``ValueError: bad label 11 (train.py:41)``."""
    message = plain(noted["message"].partition("\n")[0].strip())
    if len(message) > _MOST_SHOWN:
        kept = message[:_MOST_SHOWN]
        message = f"{kept.rpartition(' ')[0] or kept}…"
    place = f" ({plain(noted['place'])})" if noted["place"] else ""
    cause = f", {plain(noted['cause'])}" if noted.get("cause") else ""
    return f"{plain(noted['type'])}{': ' if message else ''}{message}{place}{cause}"


def _own_error(tail: Sequence[str]) -> list[str]:
    """The lines of an error of gridtf's that has ended a program; empty where none has. They follow the traceback."""
    begins = [number for number, line in enumerate(tail) if line.startswith(f"{GridtfError.__module__}.")]
    if not begins:
        return []
    first, *more = tail[begins[-1] : begins[-1] + 3]  # what, why and hint, each on a line of its own
    return [first.partition(": ")[2], *takewhile(lambda line: not re.match(_OF_TENSORFLOW, line), more)]


def _of_exit(code: int | None) -> tuple[str, str]:
    """How a task ended, and a hint. A shell reports a program that signal N killed by exit code 128 + N."""
    if code is None or not 128 < code < 128 + signal.NSIG:
        return f"exit code {code}", ""
    name = signal_name(code - 128)
    return f"exit code {code}, with which a shell reports {name}", _SIGNAL_HINTS.get(name, "")


def of_success(
    tasks: Sequence[PlacedTask], records: Mapping[str, Record], policy: str, spec: JobSpec, *, distributed: bool = True
) -> Verdict:
    """The verdict on a job that has succeeded. It names tasks that failed nevertheless, or still run and are stopped.

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
    return Verdict(JobState.COMPLETED, "; ".join(parts), hint="; ".join(hints))


def of_saved(tasks: Sequence[PlacedTask], records: Mapping[str, Record], policy: str, spec: JobSpec) -> Verdict:
    """The verdict on a job in which tasks have exited with 42: saved, to be continued.

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
        return Verdict(
            JobState.FAILED,
            f"{ended}, but {some(late)} {were(late)} still running {spec.leader_wait:g} s later",
            hint="all tasks must save at the same step, as gridtf.training.checkpoint does; "
            "--leader-wait allows them more time",
        )
    parts = [f"{ended}, to be continued"]
    if late:
        parts.append(f"{some(late)} {were(late)} still running {spec.leader_wait:g} s later and {were(late)} stopped")
    return Verdict(JobState.SAVED, "; ".join(parts), hint=_again(spec))


def _again(spec: JobSpec) -> str:
    return f'to continue with its checkpoints, submit it again with --env OUTPUT_DIR="$(gridtf output {spec.title})"'


def saved_before(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> str:
    """Name the tasks that saved a checkpoint before the job ended for another reason; empty where none did.

    Args:
        tasks: All tasks.
        records: Task name -> its record.
    """
    saved = [task.name for task in tasks if task.trains and _state(records, task) == TaskState.SAVED]
    return f"{some(saved)} had saved a checkpoint (exit code {SAVED_CODE})" if saved else ""


def of_timeout(
    reason: str, tasks: Sequence[PlacedTask], records: Mapping[str, Record], *, requested: bool = False
) -> Verdict:
    """The verdict on a job that its walltime ended. It names the tasks that had finished by then, or the first
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
        ended_by = _exception(records[first.name]["exception"])
        return Verdict(
            JobState.TIMEOUT, f"{reason}; {first.name} on {first.host} had not ended after {ended_by}", hint=_HANGS
        )
    if saved := saved_before(tasks, records):
        return Verdict(JobState.TIMEOUT, reason, saved, hint)
    if not done and requested:
        why = f"a checkpoint was requested, and {some(unfinished)} did not end"
        return Verdict(JobState.TIMEOUT, reason, why, _UNHEEDED)
    if not done:
        return Verdict(JobState.TIMEOUT, reason, hint=hint)
    why = f"{some(done)} had exited with 0, {some(unfinished)} had not"
    leader = training[0].name
    if leader in done:
        hint += f"; if the job is done when {leader} is: --success-policy chief"
    return Verdict(JobState.TIMEOUT, reason, why, hint)


_HANGS = "something that Python runs at its end waited, such as a thread or an exit handler: gridtf stacks shows it"
_UNHEEDED = (
    "does the program ask gridtf.checkpoint_requested() after each step, save and exit with 42? or does it need more "
    "time for that: --checkpoint-before"
)

# --- whether an attempt goes on (pure)

TaskRecords = Mapping[str, Record]


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
