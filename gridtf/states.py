"""The states of jobs and of tasks."""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """State of a job: Slurm's names (squeue(1), JOB STATE CODES), and UNKNOWN, which is gridtf's own."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    __str__ = str.__str__

    @property
    def ended(self) -> bool:
        """Whether a job in this state has ended."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


class TaskState(str, Enum):
    """State of a task. STOPPED: ended by gridtf or the scheduler; ENDED: it has ended, but how is not known."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"

    __str__ = str.__str__


# The states of a job that has ended.
ENDED: frozenset[str] = frozenset(state for state in JobState if state.ended)
