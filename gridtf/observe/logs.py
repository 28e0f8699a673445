"""Output of a job's tasks: read once, or followed."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gridtf.errors import NotFoundError, nearest
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, RunDir, cannot, listdir, open_plain, read_private
from gridtf.run.tail import BREAK, LONGEST_LINE, tail_start
from gridtf.text import some

JOB = "job"  # stands for the job script among the names of tasks
_CHUNK = 1 << 20
_FASTEST, _SLOWEST = 0.1, 1.0
_LOG = re.compile(r"([a-z_]+)-(\d+)\.log")

Chosen = list[tuple[str, Path]]


def read(run: RunDir, tasks: Sequence[str] | None = None, tail: int | None = None) -> Iterator[str]:
    """Read the logs of the latest attempt.

    Args:
        run: The run directory.
        tasks: Names such as ``worker:0``, task types for all of their tasks, ``job`` for the job script. None: all
            tasks, or the job script while no task has a log.
        tail: Number of lines from the end of each log; None: all.

    Yields:
        Lines with their newlines, one log after the other, each with its task's name unless there is only one log.
        Bytes that are not UTF-8 are surrogate escapes.

    Raises:
        NotFoundError: For a task that the job does not have.
    """
    attempt = run.latest()
    known = planned(attempt)[0] if attempt else []
    for name, path in _choose(run, attempt, known, tasks):
        yield from _Follower(path, _prefix(name, known, tasks), tail).rest()


def follow(
    run: RunDir,
    tasks: Sequence[str] | None,
    ended: Callable[[], bool],
    sleep: Callable[[float], None],
    tail: int | None = None,
) -> Iterator[str]:
    """Read the logs and then lines as they are added, attempt after attempt, until the job has ended.

    Args:
        run: The run directory.
        tasks: Names of tasks or types, as for read.
        ended: Whether the job has ended; called before each look at the logs, up to ten times a second.
        sleep: Like time.sleep.
        tail: Number of lines from the end of each log to begin with; None: all.

    Yields:
        Lines with their newlines, as read does; before the lines of another attempt a heading.

    Raises:
        NotFoundError: For a task that the job does not have.
    """
    attempt: Attempt | None = None
    known: list[str] = []
    settled = False
    chosen: Chosen = []
    following: dict[Path, _Follower] = {}
    pause = _FASTEST
    while True:
        over = ended()
        latest = run.latest()
        if latest and (attempt is None or latest.number != attempt.number):
            if attempt is not None:
                yield from _last(following[path] for _, path in chosen)
                yield f"--- attempt {latest.number} ---\n"
            attempt, known, settled = latest, [], False
            following = {path: follower for path, follower in following.items() if path == run.log}
        if attempt and not settled:
            known, settled = planned(attempt)
        valid = {JOB, *known, *(name.partition(":")[0] for name in known)}
        ready = settled or over or not tasks or valid.issuperset(tasks)
        chosen = _choose(run, attempt, known, tasks) if ready else []
        fresh = False
        for name, path in chosen:
            if path not in following:
                following[path] = _Follower(path, _prefix(name, known, tasks), tail)
            for line in following[path].more():
                fresh = True
                yield line
        tail = None  # logs that appear later are read from their beginning
        if over and not fresh:
            yield from _last(following[path] for _, path in chosen)
            return
        pause = _FASTEST if fresh else min(pause * 1.5, _SLOWEST)
        if not over:
            sleep(pause)


class _Follower:
    """Reads a log as it grows. Opens it anew each time: network file systems show new data only then."""

    def __init__(self, path: Path, prefix: str, tail: int | None) -> None:
        self._path = path
        self._prefix = prefix
        self._tail = tail
        self._offset = 0
        self._partial = b""

    def more(self) -> Iterator[str]:
        """Yield new lines that are complete."""
        caught_up = False
        while not caught_up:
            chunk = self._chunk()
            caught_up = len(chunk) < _CHUNK
            data = self._partial + chunk
            # a \r at the very end may be half of a \r\n
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
            if not end and len(data) > LONGEST_LINE:
                end = len(data)
            self._partial = data[end:]
            yield from self._lines(data[:end])

    def rest(self) -> Iterator[str]:
        """Yield the remaining lines, including a last one without a line break."""
        yield from self.more()
        yield from self._lines(self._partial)
        self._partial = b""

    def _chunk(self) -> bytes:
        try:
            with open_plain(self._path) as file:
                if self._tail is not None:
                    self._offset, self._tail = tail_start(file, self._tail), None
                file.seek(self._offset)
                chunk = file.read(_CHUNK)
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.ENOENT):
                return b""
            raise cannot("read", self._path, error) from None
        self._offset += len(chunk)
        return chunk

    def _lines(self, data: bytes) -> Iterator[str]:
        lines = BREAK.split(data)
        for line in lines if lines[-1] else lines[:-1]:
            yield f"{self._prefix}{line.decode(errors='surrogateescape')}\n"


def _last(followers: Iterable[_Follower]) -> Iterator[str]:
    for follower in followers:
        yield from follower.rest()


def planned(attempt: Attempt) -> tuple[list[str], bool]:
    """Names of an attempt's tasks, such as ``worker:0``.

    Returns:
        (names, whether these are all tasks): a user who may not read the plan gets the tasks that have a log.
    """
    plan = read_private(attempt.plan, recordtypes.Outline)
    if plan:
        return [f"{task['type']}:{task['index']}" for task in plan.get("tasks", ())], True
    if attempt.plan.name not in listdir(attempt.path):
        return [], False
    logs = (_LOG.fullmatch(name) for name in listdir(attempt.logs))
    return [f"{kind}:{index}" for kind, index in sorted((log[1], int(log[2])) for log in logs if log)], False


def _choose(run: RunDir, attempt: Attempt | None, known: Sequence[str], tasks: Sequence[str] | None) -> Chosen:
    """Name and path of the requested logs that exist. Raises NotFoundError for a task that is not known."""
    existing = set(listdir(attempt.logs)) if attempt else set()
    logs = {name: attempt.task_log(*_parts(name)) for name in known} if attempt else {}
    chosen = [(name, logs[name]) for name in _requested(known, tasks) if name != JOB and logs[name].name in existing]
    if (JOB in tasks if tasks else not chosen) and run.log.name in listdir(run.path):
        chosen.append((JOB, run.log))
    return chosen


def _requested(known: Sequence[str], tasks: Sequence[str] | None) -> list[str]:
    if not tasks:
        return list(known)
    for task in tasks:
        if task != JOB and task not in known and not any(name.startswith(f"{task}:") for name in known):
            raise NotFoundError(
                f"no such task: {task}",
                why=f"choose from: {some([*known, JOB])}" if known else "the job has no tasks yet",
                hint=nearest(task, [*known, JOB]) if known else f"--task {JOB} shows the output of its script",
            )
    return [name for name in (*known, JOB) if name in tasks or name.partition(":")[0] in tasks]


def _prefix(name: str, known: Sequence[str], tasks: Sequence[str] | None) -> str:
    """What the lines of a log begin with: the name of its task, if lines of other tasks may appear as well."""
    return f"{name} | " if len(_requested(known, tasks)) > 1 and (tasks or name != JOB) else ""


def _parts(name: str) -> tuple[str, int]:
    task_type, _, index = name.partition(":")
    return task_type, int(index)
