"""The states of jobs and tasks by their bare names, for the tables of parametrized tests."""

from __future__ import annotations

from gridtf.states import JobState

PENDING = JobState.PENDING
RUNNING = JobState.RUNNING
COMPLETED = JobState.COMPLETED
FAILED = JobState.FAILED
CANCELLED = JobState.CANCELLED
TIMEOUT = JobState.TIMEOUT
NODE_FAIL = JobState.NODE_FAIL
PREEMPTED = JobState.PREEMPTED
OUT_OF_MEMORY = JobState.OUT_OF_MEMORY
SAVED = JobState.SAVED
UNKNOWN = JobState.UNKNOWN
