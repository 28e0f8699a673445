"""The verdict on an attempt: how it has ended and why, in the words that users read. Only the judge makes one."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from gridtf.bootstrap.judge import blame
from gridtf.bootstrap.judge.blame import Cause, raised
from gridtf.bootstrap.judge.evidence import BESIDE, EXPLAINS, NOTE, SUSPECT, Evidence, joined
from gridtf.errors import GridtfError
from gridtf.host.processes import signal_name
from gridtf.run.logparts import refresh
from gridtf.run.rundir import Attempt, Record
from gridtf.run.tail import exception, last_lines, last_text
from gridtf.states import JobState, exit_code
from gridtf.text import counted, plain
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask

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
        lost: The host that was lost, where that is not the one of the cause.
        suspects: (Other host to be remembered, why).
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
    lost: str = ""
    suspects: Sequence[tuple[str, str]] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the job script."""
        return exit_code(self.state)

    @property
    def summary(self) -> str:
        """The reason and the continuation, in one line."""
        return joined((self.reason, self.continuation))

    def noting(self, text: str) -> Verdict:
        """The same verdict with another observation, which may be empty; for the judge."""
        return self.replace(why=joined((self.why, text)))

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


def conclude(
    end: Evidence,
    known: Sequence[Evidence] = (),
    records: Mapping[str, Record] = MappingProxyType({}),
    attempt: Attempt | None = None,
) -> Verdict:
    """The verdict on an attempt.

    Args:
        end: How it has ended.
        known: What else is known, in the order in which it is told.
        records: Task name -> its record, with all times by one clock.
        attempt: The attempt, which has the logs of its tasks.
    """
    told = [each for each in known if each.told_with(end)]
    explains = joined(each.what for each in told if each.kind == EXPLAINS)
    if end.found is None or attempt is None:
        made = Verdict(end.state, end.what, joined((end.why, explains)), end.hint, end.cause, end.again, lost=end.lost)
    elif end.found.how == blame.FAILED:
        task = end.found.task
        made = of_task(task, records[task.name], attempt, explains)
    else:
        made = of_other(end.found, records, attempt, explains)
    for note in (each for each in told if each.kind == NOTE):
        hint = note.hint if note.instead else joined((made.hint, note.hint))
        made = made.replace(reason=f"{made.reason}; {note.what}", hint=hint)
    made = made.replace(suspects=tuple((each.what, each.why) for each in told if each.kind == SUSPECT))
    return noted(made, *(each for each in told if each.kind == BESIDE))


def noted(end: Verdict, *known: Evidence) -> Verdict:
    """A verdict with what has become known since."""
    return end.noting(joined(each.what for each in known))


def of_silent_launcher(launcher: Record, silence: float, *, stopped: bool) -> Verdict:
    """The verdict on an attempt whose launcher an agent had to kill.

    Args:
        launcher: Its last record.
        silence: Seconds since its last heartbeat.
        stopped: Whether it was stopped, as by SIGSTOP or gdb, before it was continued.
    """
    hung = "it hung, for example in a file system that does not respond"
    how = "it was stopped by a signal or a debugger" if stopped else hung
    what = f"the launcher on host {launcher['host']} was stalled for {silence:.0f} s, and an agent has killed it"
    return Verdict(JobState.FAILED, what, why=how, hint="the agents had already ended their tasks")


def of_killed_launcher(launcher: Record, number: int) -> Verdict:
    """The verdict on an attempt whose launcher a signal has ended, where the scheduler will not tell of that.

    Args:
        launcher: Its last record.
        number: The signal.
    """
    return Verdict(JobState.FAILED, f"the launcher on host {launcher['host']} was killed by {signal_name(number)}")


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
        how, hint = of_exception(noted), ""
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
        also = joined((also, *said[1:-1]))
    cause = {"task": task.name, "host": task.host, "exit": code, "signal": number, "log": str(log), "tail": tail}
    state = JobState.OUT_OF_MEMORY if record.get("oom") else JobState.FAILED
    return Verdict(state, f"{task.name} on {task.host}: {how}", also, hint, cause)


def of_other(cause: Cause, records: Mapping[str, Record], attempt: Attempt, also: str = "") -> Verdict:
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
    why = joined((also, said))
    return Verdict(state, reason, why, hint, {**about, "log": str(log), "tail": tail})


_TOGETHER = "all members of the cluster must take the same number of steps: does one have less data?"
_SILENT = "was it stopped, or does it wait for something? its log has the last that it said"
_LOST = "has the host crashed, or lost its network?"
_MOST_SHOWN = 300  # characters of an exception's message


def of_exception(noted: Record) -> str:
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
