"""What is known of the end of an attempt, and what outranks what: the judge alone makes a verdict of it. Pure.

Watchers hand over values, and never learn what others have said. Of the ends that are known, the one that stands first
in ORDER counts. Those who may know are asked in that order, only until one does: a file server or
a command that does not respond is not asked for nothing. What has ended an attempt is the verdict if it says anything
but FAILED: that says only that something has stopped it, and why may be learnt when its processes have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from gridtf.states import ENDED, JobState
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.judge.blame import Cause
    from gridtf.run.rundir import Record

# Who knows of an end.
USER, SCHEDULER, LAUNCHER, CLEANED_UP = "user", "scheduler", "launcher", "cleaned up"
TASK, HOST_OF_RANK, STOP, TRAINED = "task", "host of a rank", "stop", "trained"
GONE, ABANDONED, AGENTS = "gone", "abandoned", "agents"

# Which end outranks which, and why it stands before the next one.
ORDER: Mapping[str, str] = {
    USER: "who has cancelled the job is named; to the scheduler that is a cancelled job like others",
    SCHEDULER: "it knows what it has decided, and whether it starts the job again; processes see only its signals",
    LAUNCHER: "it was stopped for so long that agents gave it up: how they ended is a consequence",
    CLEANED_UP: "the scheduler has ended agents for an earlier start of the job, and tasks have failed for that",
    TASK: "it has failed by itself, or others have failed without it: a stop, and all later ends, may follow from that",
    HOST_OF_RANK: "mpirun has lost a host, and has ended the other ranks for it, and itself",
    STOP: "it came first: an error, a signal or a feature has ended the attempt, and agents only end what it has left",
    GONE: "an agent has said why it ends, as that mpirun has failed, which ranks need that fail after it",
    ABANDONED: "a rank has failed after mpirun has ended, and no agent says why that has",
    TRAINED: "all has been done, or saved: agents that end, and hosts that are lost then, cost nothing",
    AGENTS: "one has ended, or its host is silent: asked last, since others tell more of it, or need it no more",
}
# At each of these moments some may be asked: while tasks run; when a signal or an error has ended the attempt; and when
# its processes have ended, if that was for nothing but FAILED.
RUNNING = frozenset({TASK, STOP, TRAINED, AGENTS})
INTERRUPTED = frozenset({USER, SCHEDULER, LAUNCHER, STOP})
OVER = frozenset({CLEANED_UP, TASK, HOST_OF_RANK, STOP, GONE, ABANDONED})
MOMENTS = (RUNNING, INTERRUPTED, OVER)

# Beside an end: a part of its reason; of what explains it; what else is to be known; or a host to be remembered for it.
NOTE, EXPLAINS, BESIDE, SUSPECT = "note", "explains", "beside", "suspect"
# What the end of a task is told with: a task's own failure, and others for which tasks have failed.
ACCUSED = "accused"
OTHERS = frozenset({ACCUSED, HOST_OF_RANK, ABANDONED})
OF_TASKS = OTHERS | {TASK}
WELL = ENDED - {JobState.FAILED, JobState.NODE_FAIL}
EACH = ENDED | OF_TASKS


class Evidence(Value):
    """What a watcher, an agent or a task knows of the end of an attempt.

    Attributes:
        kind: One of ORDER, or ACCUSED: an end. NOTE, EXPLAINS or BESIDE: what is told with one. SUSPECT: a host.
        what: One line; a clause, of what is told with an end.
        why: The cause, in one more line; may be empty.
        hint: What to do about it; may be empty.
        state: Of an end: the job's.
        again: Of an end: as in Verdict.
        lost: Of an end: the host that was lost, if that is known.
        cause: Of an end: as in Verdict.
        found: Of the end of a task: which one, and how it came to it; None while it is not looked for.
        final: Of an end: why no other attempt may follow; empty: one may.
        on: The states of ends, or the kinds of those of tasks, that this is told with; empty: with each.
        instead: Whether the hint takes the place of that of the end.
    """

    kind: str
    what: str = ""
    why: str = ""
    hint: str = ""
    state: str = JobState.FAILED
    again: bool | None = False
    lost: str = ""
    cause: Record | None = None
    found: Cause | None = None
    final: str = ""
    on: Collection[str] = ()
    instead: bool = False

    def told_with(self, end: Evidence) -> bool:
        """Whether this is told with an end."""
        return not self.on or (end.kind if end.found else end.state) in self.on


def first(moment: Collection[str], asked: Mapping[str, Callable[[], Evidence | None]]) -> Evidence | None:
    """Ask who may know of an end, in their order, until one does.

    Args:
        moment: One of MOMENTS.
        asked: Kind of an end -> who knows of it; those of the moment that need not be asked may be left out.

    Returns:
        What that one says, which may be of another kind; None where none of them knows.
    """
    return next(filter(None, (asked[kind]() for kind in ORDER if kind in moment and kind in asked)), None)


def joined(clauses: Iterable[str]) -> str:
    """Clauses in one line, without empty ones. Here, since processes that an upgrade in place has overtaken import the
    judge beside the text.py of their own version."""
    return "; ".join(filter(None, clauses))
