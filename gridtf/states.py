"""The states of jobs and of tasks."""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """State of a job: Slurm's names (squeue(1), JOB STATE CODES), and two of gridtf: SAVED (its tasks have saved a
    checkpoint and ended, to be continued) and UNKNOWN."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    SAVED = "SAVED"
    UNKNOWN = "UNKNOWN"

    __str__ = str.__str__

    @property
    def ended(self) -> bool:
        """Whether a job in this state has ended."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


class TaskState(str, Enum):
    """State of a task. SAVED: it has saved a checkpoint, to be continued; STOPPED: ended by gridtf or the scheduler;
    ENDED: it has ended, but how is not known."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SAVED = "SAVED"
    STOPPED = "STOPPED"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"

    __str__ = str.__str__


SAVED_CODE = 42  # exit code of a task or a job script in state SAVED, as of TensorFlow's PreemptionCheckpointHandler
AGAIN_CODE = 99  # exit code by which a job script asks Grid Engine, or the local job runner, to start it again
NOT_RUN = frozenset({126, 127})  # exit codes by which a shell says that it cannot run a command


def of_exit(code: int) -> TaskState:
    """The state of a task that has ended by itself.

    Args:
        code: Its exit code; negative for a signal.
    """
    return {0: TaskState.COMPLETED, SAVED_CODE: TaskState.SAVED}.get(code, TaskState.FAILED)


def exit_code(state: str) -> int:
    """The exit code of a job script.

    Args:
        state: A final job state.
    """
    return 0 if state == JobState.COMPLETED else SAVED_CODE if state == JobState.SAVED else 1


ENDED: frozenset[str] = frozenset(state for state in JobState if state.ended)

_STYLES: dict[str, str] = {
    **dict.fromkeys(map(str, (JobState.RUNNING, JobState.COMPLETED, JobState.SAVED)), "good"),
    **dict.fromkeys(map(str, (JobState.PENDING, JobState.UNKNOWN, TaskState.STOPPED, TaskState.ENDED)), "warn"),
}


def style_of(state: str) -> str:
    """The style in which a state is shown: good, warn or bad, as states are that are not known to be good or open."""
    return _STYLES.get(state, "bad")


# What was seen of TensorFlow, MPI and Horovod in a task, in its record; empty: nothing.
LOADED = "loaded"  # its process has loaded TensorFlow or JAX
ALONE = "alone"  # its process has loaded MPI or Horovod, and nobody has told it of other ranks
JOINED = "joined"  # its port was opened
ELSEWHERE = "elsewhere"  # it communicates in another way
