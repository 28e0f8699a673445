"""What is known of a job and of its parts, as `gridtf status` and Job.status return it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf.states import ENDED, JobState
from gridtf.text import duration
from gridtf.values import Value


class TaskView(Value):
    """The state of a task.

    Attributes:
        name: Such as ``worker:0``.
        host: The host it is placed on; None when not known.
        state: PENDING, RUNNING, COMPLETED, FAILED, SAVED (a checkpoint, to be continued), STOPPED (ended by gridtf or
            the scheduler), ENDED (how is not known) or UNKNOWN.
        exit: Its exit code.
        signal: Name of the signal that ended it.
        started: Seconds since the epoch, by its host's clock.
        ended: Seconds since the epoch, by its host's clock.
        log: Path of its log; None before it has one.
        restarts: How many times it was restarted.
        progress: What it last reported by gridtf.progress: ``step``, ``values`` and ``time`` (seconds since the epoch,
            by its host's clock); None where it reports nothing.
        gpus: The GPUs that it has, as its host names them.
        sample: What it used when its host last looked, as in docs/seeing.md; None where that is not known.
        last_line: The last line of its log; None where the log was not read.
        logged: How far it has come by the last lines of its log: ``step``, ``steps``, ``epoch`` and ``epochs``, each
            null where they have none; None where it reports its progress, and where the log was not read.
    """

    name: str
    host: str | None
    state: str
    exit: int | None = None
    signal: str | None = None
    started: float | None = None
    ended: float | None = None
    log: Path | None = None
    restarts: int = 0
    progress: Mapping[str, Any] | None = None
    gpus: tuple[str, ...] = ()
    sample: Mapping[str, Any] | None = None
    last_line: str | None = None
    logged: Mapping[str, int | None] | None = None


class HostView(Value):
    """What a host of a job is doing.

    Attributes:
        name: The scheduler's name of the host.
        tasks: The names of its tasks.
        sample: What all of the host used when gridtf last looked, as in docs/seeing.md, without its tasks; None where
            that is not known.
    """

    name: str
    tasks: tuple[str, ...]
    sample: Mapping[str, Any] | None = None


class AttemptView(Value):
    """How one attempt of a job has ended, or how it goes on.

    Attributes:
        number: Its number; the first attempt is 1.
        state: As that of a job; UNKNOWN where it left no verdict.
        reason: Why, in one line; may be empty.
        started: When its first task started, in seconds since the epoch; None when not known.
        ended: When it ended, in seconds since the epoch; None before its end, and when not known.
    """

    number: int
    state: str
    reason: str
    started: float | None = None
    ended: float | None = None


class LinkView(Value):
    """A job that another one belongs to.

    Attributes:
        kind: "after", "after_any" or "after_failed": the other one starts after it; "step": both are steps of a file.
        name: Its name; of a step, that of the step.
        job_id: Its scheduler's id; empty when not known.
        state: As that of a job.
        run_dir: Its run directory.
    """

    kind: str
    name: str
    job_id: str
    state: str
    run_dir: Path


class JobView(Value):
    """The state of a job.

    Attributes:
        name: Name of the job.
        job_id: The scheduler's id; empty when not known.
        scheduler: Name of the scheduler; empty when not known.
        state: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY, SAVED
            (a checkpoint, to be continued) or UNKNOWN.
        reason: Why, in one line; may be empty.
        hint: What to do about it, in one line; may be empty.
        run_dir: The run directory.
        output_dir: The folder that tasks have as OUTPUT_DIR.
        attempt: Number of the latest attempt; None before the first.
        phase: What the launcher is doing, as in state/launcher.json; empty when not known.
        started: When the first task started, in seconds since the epoch.
        ended: When the job ended, in seconds since the epoch.
        exit_code: Exit code of the job script; None before the end.
        tasks: States of the tasks of the latest attempt.
        cause: The task that failed first, as in verdict.json: task, host, exit, signal, log and tail (its last lines);
            task is None when the job script itself failed.
        in_queue: Whether its scheduler still lists the job, as far as that is known.
        unexplained: Whether it has ended, and neither its records nor its scheduler show how.
        hosts: The hosts of the latest attempt.
        expected: When its scheduler expects it to start, in seconds since the epoch; None where it does not say so.
        attempts: Its attempts, oldest first; ``gridtf status`` alone reads them.
        unmoved: For how many seconds nothing has moved in a running job; None below 10 min and where that is not known.
            ``gridtf status`` alone finds it out.
        damaged: Records that are damaged, so that what they say is missing here: their paths below the run directory.
        submitted: When gridtf submitted it, in seconds since the epoch; None where another command did.
        params: Its parameters, name -> number, text, true or false; empty where only its owner may read them.
        code: What is known of the code that runs, as code.json has it (commit, branch, dirty, remote …), with
            ``snapshot``, the folder it runs in, and ``pythons``, what is installed for the Python of each task type;
            None where nothing is. ``gridtf status`` alone reads it.
        waits_for: The jobs that it was to start after: run directory -> name and id.
        chain: These jobs, and the steps of the job file that it is a step of; ``gridtf status`` alone reads them.
        slow: The task that the others wait for, where that is known: ``task``, ``host``, ``what`` it lacks, how
            ``sure`` that is, and a ``text``; else None.
        was_slow: Of a job that has ended, the last task that others waited for: ``task``, ``host``, ``what`` it lacked,
            in which ``attempt`` and for how many ``seconds``, null where that is not known; None where none is known.
            ``gridtf status`` alone finds it out.
        check: What the check of the hosts has found, in one line; empty without a check. ``gridtf status`` alone reads
            it.
    """

    name: str
    job_id: str
    scheduler: str
    state: str
    reason: str
    hint: str
    run_dir: Path
    output_dir: Path
    attempt: int | None
    phase: str
    started: float | None
    ended: float | None
    exit_code: int | None
    tasks: tuple[TaskView, ...]
    cause: Mapping[str, Any] | None
    in_queue: bool = False
    unexplained: bool = False
    hosts: tuple[HostView, ...] = ()
    expected: float | None = None
    attempts: tuple[AttemptView, ...] = ()
    unmoved: float | None = None
    damaged: tuple[str, ...] = ()
    submitted: float | None = None
    params: Mapping[str, Any] = {}
    code: Mapping[str, Any] | None = None
    waits_for: Mapping[str, str] = {}
    chain: tuple[LinkView, ...] = ()
    slow: Mapping[str, Any] | None = None
    was_slow: Mapping[str, Any] | None = None
    check: str = ""

    @property
    def finished(self) -> bool:
        """Whether the job has ended; its state is then UNKNOWN when it is not known how.

        A job that failed has not ended while its scheduler still lists it: the scheduler may start it again. A verdict
        does not rule that out, since the host that writes it may be unable to reach the scheduler.
        """
        if self.state != JobState.COMPLETED and self.in_queue:
            return False
        return self.state in ENDED or self.ended is not None

    def lasting(self, now: float) -> str:
        """How long the latest attempt has run, or ran, as words behind its state: `` for 5 s``, `` after 2 h 0 min``;
        of several, `` after 2 h 0 min in attempt 2 (3 h 5 min in all)``, if ``attempts`` are known.

        Args:
            now: Seconds since the epoch.

        Returns:
            The words; empty where that is not known.
        """
        which = f" in attempt {self.attempt}" if (self.attempt or 1) > 1 and self.state != JobState.PENDING else ""
        if self.started is None or (self.finished and self.ended is None):
            return which
        took, in_all = max(0.0, (self.ended or now) - self.started), self.ran(now) or 0.0
        words = f" {'for' if self.ended is None else 'after'} {duration(took)}{which}"
        least = "at least " if any(one.ended is None for one in self.attempts[:-1]) else ""
        return words + (f" ({least}{duration(in_all)} in all)" if which and in_all > took else "")

    def ran(self, now: float) -> float | None:
        """For how many seconds its tasks have run, in all of its ``attempts``; None before they have started.

        Args:
            now: Seconds since the epoch.
        """
        until = self.ended or (None if self.finished else now)
        spans = [*((one.started, one.ended) for one in self.attempts[:-1]), (self.started, until)]
        known = [max(0.0, end - begin) for begin, end in spans if begin is not None and end is not None]
        return sum(known) if known else None
