"""Output of a job's tasks, merged by time: read once, or followed."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import NotFoundError, RunDirError, nearest
from gridtf.observe.logtimes import UNKNOWN, Known, LogTimes
from gridtf.run import recordtypes
from gridtf.run.logparts import LogParts
from gridtf.run.reading import known as known_record
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, read_record
from gridtf.run.tail import BREAK, LONGEST_LINE, between, tail_start
from gridtf.text import some
from gridtf.values import Value

if TYPE_CHECKING:
    from typing import Any

    from gridtf.run.rundir import Record

JOB = "job"  # stands for the job script among the names of tasks
AGENTS = "agents"  # stands for the agents, and for srun or qrsh, which start them
ALL = 0  # among the numbers of attempts
_LOG = re.compile(r"([a-z_]+)-(\d+)\.log")
_CHUNK = 1 << 20  # bytes
_MERGED_CHUNK = 1 << 17  # bytes, of which all logs that are merged are in memory
_VERDICT = 1 << 17  # bytes at the end of the job script's log, in which the verdict is
_TURN = 64  # chunks of a log that are read before the other logs have their turn
_FASTEST, _SLOWEST = 0.1, 1.0  # seconds between two looks at logs that are followed


class Source(Value):
    """Where lines come from.

    Attributes:
        name: The name of a task such as ``worker:0``, JOB or AGENTS; empty for a heading between attempts.
        host: The host of the task; empty where it is not known.
        number: Its place among the tasks of the job, from 0.
        alone: Whether lines of no other log can appear.
        gpus: Whether the task has GPUs; True where that is not known.
    """

    name: str
    host: str = ""
    number: int = 0
    alone: bool = False
    gpus: bool = True


class Choice(Value):
    """Which lines of which logs.

    Attributes:
        tasks: Names such as ``worker:0``, task types for all of their tasks, JOB or AGENTS. None: all tasks.
        attempt: The number of the attempt; ALL; None: the latest. What is followed goes on with later ones.
        since: Only lines that were printed after that time, in seconds since the epoch, as far as that is known; None:
            all. Of a log without times all lines count, if it was written after it.
        tail: Number of lines from the end of each log to begin with; None: all.
        script: Whether the job script is among all tasks of a job that has several; otherwise it is as long as no task
            has a log.
        times: Whether the times of lines are needed even where there is one log, so that nothing has to be merged.
    """

    tasks: Sequence[str] | None = None
    attempt: int | None = None
    since: float | None = None
    tail: int | None = None
    script: bool = False
    times: bool = False


# Lines of one log, each with a newline at its end, and when they were printed: seconds since the epoch, UNKNOWN or,
# of lines of the job script before all others, minus infinity.
Piece = tuple[Source, bytes, float]
HEADING = Source("")  # of a line that begins another attempt
_NOTHING = Source("")  # of a look that has found nothing


def pieces(run: RunDir, choice: Choice) -> Iterator[Piece]:
    """Read logs.

    Args:
        choice: Which lines.

    Yields:
        Lines, those of all logs in the order of their times; where those are not known, one log after the other.

    Raises:
        NotFoundError: For a task or an attempt that the job does not have.
        RunDirError: When a log cannot be read.
    """
    chosen = Chosen(run, choice)
    attempts = chosen.first()
    for attempt in attempts:
        chosen.enter(attempt)
        if len(attempts) > 1:
            yield _heading(attempt)
        yield from chosen.merged(over=True, whole=True)
    if not attempts:
        yield from chosen.merged(over=True, whole=True)


def following(
    run: RunDir, choice: Choice, ended: Callable[[], bool], sleep: Callable[[float], None]
) -> Iterator[Piece]:
    """Read logs and then lines as they are added, attempt after attempt, until the job has ended.

    Args:
        choice: Which lines.
        ended: Whether the job has ended; called before each look at the logs, up to ten times a second.
        sleep: Like time.sleep.

    Yields:
        Lines as pieces does, and then as they come, with the time at which they were seen; before those of another
        attempt a heading; after each look at a job that goes on a piece without lines.

    Raises:
        NotFoundError: For a task or an attempt that the job does not have.
        RunDirError: When a log cannot be read.
    """
    chosen = Chosen(run, choice)
    pause = _FASTEST
    while True:
        over = ended()
        fresh = False
        for attempt in chosen.next():
            if chosen.attempt is not None:
                yield from chosen.rest()
                yield _heading(attempt)
            chosen.enter(attempt)
            yield from chosen.merged(over=over)
        for piece in chosen.more(over=over):
            fresh = True
            yield piece
        if over and not fresh:
            yield from chosen.rest()
            return
        pause = _FASTEST if fresh else min(pause * 1.5, _SLOWEST)
        if not over:
            yield _NOTHING, b"", time.time()
            sleep(pause)


def read(run: RunDir, tasks: Sequence[str] | None = None, tail: int | None = None) -> Iterator[str]:
    """Read the logs of the latest attempt as text.

    Args:
        tasks: As in Choice.
        tail: As in Choice.

    Yields:
        Lines with their newlines, each with its task's name unless there is only one log. Bytes that are not UTF-8 are
        surrogate escapes.

    Raises:
        NotFoundError: For a task that the job does not have.
    """
    return _text(pieces(run, Choice(tasks, tail=tail)))


def follow(
    run: RunDir,
    tasks: Sequence[str] | None,
    ended: Callable[[], bool],
    sleep: Callable[[float], None],
    tail: int | None = None,
) -> Iterator[str]:
    """Follow the logs, from the latest attempt on, as text.

    Args:
        tasks: As in Choice.
        ended: As for following.
        sleep: As for following.
        tail: As in Choice.

    Yields:
        Lines as read does.

    Raises:
        NotFoundError: For a task that the job does not have.
    """
    return _text(following(run, Choice(tasks, tail=tail), ended, sleep))


def _text(found: Iterable[Piece]) -> Iterator[str]:
    for source, data, _ in found:
        prefix = f"{source.name} | " if source.name and not source.alone else ""
        for line in data.decode(errors="surrogateescape").split("\n")[:-1]:
            yield f"{prefix}{line}\n"


def _heading(attempt: Attempt) -> Piece:
    return HEADING, f"--- attempt {attempt.number} ---\n".encode(), UNKNOWN


class Chosen:
    """The chosen logs, of one attempt after the other.

    Attributes:
        attempt: The attempt; None before the first.
    """

    def __init__(self, run: RunDir, choice: Choice) -> None:
        self._run = run
        self._choice = choice
        self._tail = choice.tail
        self.attempt: Attempt | None = None
        self._known: Mapping[str, Mapping[str, Any]] = {}
        self._settled = False
        self._times = LogTimes(None)
        self._logs: dict[Path, Log] = {}  # those that have been read from

    def first(self) -> list[Attempt]:
        """The attempts to begin with. Raises NotFoundError for one that there is not."""
        number, attempts = self._choice.attempt, self._run.attempts()
        if number is None:
            return attempts[-1:]
        if number == ALL:
            return attempts
        if not any(attempt.number == number for attempt in attempts):
            numbers = [str(attempt.number) for attempt in attempts]
            why = f"attempts: {some(numbers)}" if numbers else "the job has no attempts yet"
            raise NotFoundError(f"no such attempt: {number}", why=why)
        return [attempt for attempt in attempts if attempt.number == number]

    def next(self) -> list[Attempt]:
        """The attempts that come now, one after the other."""
        if self.attempt is not None:
            return [attempt for attempt in self._run.attempts() if attempt.number > self.attempt.number]
        found = self.first()
        return found + [one for one in self._run.attempts() if found and one.number > found[-1].number]

    def enter(self, attempt: Attempt) -> None:
        """Go on with the logs of another attempt; that of the job script stays the same."""
        self.attempt = attempt
        self._known, self._settled = {}, False
        self._times = LogTimes(attempt)
        self._logs = {path: log for path, log in self._logs.items() if path == self._run.log}

    def merged(self, *, over: bool, whole: bool = False) -> Iterator[Piece]:
        """The lines that there are now, in the order of their times.

        Args:
            over: Whether no task will be added any more.
            whole: Whether last lines without a line break count as well.
        """
        logs = self.look(over=over)
        if not whole:
            self._tail = None  # logs that appear later are read from their beginning
        if len(logs) == 1 and not self._choice.times:
            yield from ((log.source, data, UNKNOWN) for log in logs for data in log.all(whole))
            return
        for at, number, data in heapq.merge(*(log.timed(number, whole) for number, log in enumerate(logs))):
            yield logs[number].source, data, at

    def more(self, *, over: bool) -> Iterator[Piece]:
        """What was added to the logs; ``over`` as for merged."""
        for log in self.look(over=over):
            yield from ((log.source, data, UNKNOWN if over else time.time()) for data in log.more())

    def rest(self) -> Iterator[Piece]:
        """What is left, with last lines that have no line break."""
        for log in self.look(over=True):
            yield from ((log.source, data, UNKNOWN) for data in log.rest())

    def look(self, *, over: bool) -> list[Log]:
        """The chosen logs that exist; ``over`` as for merged. Raises NotFoundError for a task that is not known."""
        attempt, tasks = self.attempt, self._choice.tasks
        if attempt is not None and not self._settled:
            self._known, self._settled = tasks_of(attempt)
        known = [*self._known]
        names = {JOB, AGENTS, *known, *(name.partition(":")[0] for name in known)}
        if tasks and not (self._settled or over or names.issuperset(tasks)):
            return []
        requested = _requested(known, tasks)
        found = []
        for name, path in self._paths(requested):
            task, log = self._known.get(name, {}), self._logs.get(path)
            if log is None or task.get("host", "") != log.source.host:  # which may be seen after the log
                alone = len(requested) <= 1 if tasks or name != JOB else not self._choice.script
                number = known.index(name) if name in self._known else 0
                source = Source(name, task.get("host", ""), number, alone, task.get("gpus", 1) > 0)
                if log is None:
                    times = self._times.of(name) or (_of_script(path, attempt) if name == JOB else Known())
                    log = self._logs[path] = Log(source, path, times, self._choice.since, self._tail)
                log.source = source
            found.append(log)
        return found

    def _paths(self, requested: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Name and path of the requested logs that exist."""
        attempt, tasks = self.attempt, self._choice.tasks
        existing = set(listdir(attempt.logs)) if attempt else set()
        logs = [(name, attempt.task_log(*_parts(name))) for name in requested if ":" in name] if attempt else []
        logs = [(name, path) for name, path in logs if path.name in existing]
        yield from logs
        if AGENTS in requested and attempt and attempt.agents_log.name in listdir(attempt.path):
            yield AGENTS, attempt.agents_log
        merged = self._choice.script and len(requested) > 1
        script = JOB in tasks if tasks else merged or not logs
        if script and self._run.log.name in listdir(self._run.path):
            yield JOB, self._run.log


class Log:
    """Reads a log as it grows.

    Args:
        source: Whose it is.
        path: The log.
        times: When it had which length.
        since: As in Choice.
        tail: As in Choice.
    """

    def __init__(self, source: Source, path: Path, times: Known, since: float | None, tail: int | None) -> None:
        self.source = source
        self.path = path
        self._parts = LogParts(path)
        self._known = times
        # without times these come first: most of their lines are printed before the tasks start
        self._unknown = float("-inf") if source.name in (JOB, AGENTS) and not self._known else UNKNOWN
        self._partial = b""
        self._end = 0
        self._offset = self._begin(since, tail)

    def _begin(self, since: float | None, tail: int | None) -> int:
        offset, self._end = self._parts.extent()
        if since is not None:
            if self._parts.modified() < since:
                return self._end
            offset = max(offset, _line_start(self._parts, self._known.before(since)))
        elif tail is None and offset:
            self._partial = _removed(offset)
        return offset if tail is None else max(offset, tail_start(self._parts, tail))

    def all(self, whole: bool) -> Iterator[bytes]:
        """Yield the lines up to where the log ended when this was made; if ``whole`` also one without a line break."""
        while self._offset < self._end and (chunk := self._chunk(min(_CHUNK, self._end - self._offset))):
            yield from map(_plain_breaks, self._whole_lines(chunk))
        if whole:
            yield from self._last()

    def timed(self, number: int, whole: bool) -> Iterator[tuple[float, int, bytes]]:
        """As all, with times, of which none is before the last one, and the number of this log."""
        last = float("-inf")
        while self._offset < self._end:
            at = self._offset - len(self._partial)
            chunk = self._chunk(min(_MERGED_CHUNK, self._end - self._offset))
            for data in self._whole_lines(chunk):
                for printed, piece in self._known.split(data, at, self._unknown):
                    last = max(last, printed)
                    yield last, number, _plain_breaks(piece)
            if not chunk:
                break
        for data in self._last() if whole else ():
            for printed, piece in self._known.split(data, self._offset - len(data), self._unknown):
                yield max(last, printed), number, piece

    def more(self) -> Iterator[bytes]:
        """Yield lines that were added."""
        for _ in range(_TURN):
            chunk = self._chunk(_CHUNK)
            if not chunk:
                return
            yield from map(_plain_breaks, self._whole_lines(chunk))

    def rest(self) -> Iterator[bytes]:
        """Yield the remaining lines, including a last one without a line break."""
        yield from self.more()
        yield from self._last()

    def _last(self) -> Iterator[bytes]:
        left, self._partial = self._partial, b""
        if left:
            yield _plain_breaks(left)

    def _whole_lines(self, chunk: bytes) -> Iterator[bytes]:
        """Take a chunk, and yield its complete lines, if there are any, behind what was left of the last one."""
        data = self._partial + chunk
        # a \r at the very end may be half of a \r\n
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if not end and len(data) > LONGEST_LINE:
            end = len(data)
        self._partial = data[end:]
        if end:
            yield data[:end]

    def _chunk(self, most: int) -> bytes:
        at, data = self._parts.read(self._offset, most)
        if at < self._offset:
            self._partial = b""  # the log has been begun anew
        elif at > self._offset:
            self._partial += (b"\n" if self._partial else b"") + _removed(at - self._offset)
        self._offset = at + len(data)
        return data


def _removed(count: int) -> bytes:
    """The line in place of bytes that a log does not have any more."""
    return f"gridtf: {count} bytes are missing here: log_limit has removed them\n".encode()


def _line_start(parts: LogParts, offset: int) -> int:
    """Where the line begins that has the byte before an offset, unless it ends there."""
    before = between(parts, max(0, offset - LONGEST_LINE), offset)
    breaks = [match.end() for match in BREAK.finditer(before)]
    return offset - len(before) + breaks[-1] if breaks else offset - len(before)


def _plain_breaks(data: bytes) -> bytes:
    """Lines with a newline at the end of each, instead of any other line break."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data if data.endswith(b"\n") else data + b"\n"


def _of_script(log: Path, attempt: Attempt | None) -> Known:
    """Where lines of the job script count whose times are not known: before all others, but the verdict after them."""
    known = Known()
    verdict = verdict_of(attempt) if attempt else None
    if verdict:
        parts = LogParts(log)
        begin, end = parts.extent()
        begin = max(begin, end - _VERDICT)
        at = between(parts, begin, end).rfind(f"gridtf: {verdict['state']}: ".encode())
        known.add(float("-inf"), begin + at if at >= 0 else end)
    return known


def verdict_of(attempt: Attempt) -> Record | None:
    """How an attempt has ended; None where that is not known, or its record is damaged."""
    with suppress(RunDirError):
        return read_record(attempt.verdict, recordtypes.Verdict)
    return None


def planned(attempt: Attempt) -> list[str]:
    """Names of an attempt's tasks, such as ``worker:0``; for a user who may not read the plan, of those with a log."""
    return [*tasks_of(attempt)[0]]


def tasks_of(attempt: Attempt) -> tuple[Mapping[str, Mapping[str, Any]], bool]:
    """The tasks of an attempt.

    Returns:
        (name, such as ``worker:0`` -> what the plan says of it, whether these are all tasks). A user who may not read
        the plan gets the tasks that have a log, of which nothing is known.
    """
    if plan := known_record(attempt.plan, recordtypes.Outline):
        return recordtypes.tasks_of(plan), True
    if attempt.plan.name not in listdir(attempt.path):
        return {}, False
    logs = (_LOG.fullmatch(name) for name in listdir(attempt.logs))
    found = sorted((log[1], int(log[2])) for log in logs if log)
    return {f"{kind}:{index}": {} for kind, index in found}, False


def _requested(known: Sequence[str], tasks: Sequence[str] | None) -> list[str]:
    if not tasks:
        return list(known)
    for task in tasks:
        if task not in (JOB, AGENTS, *known) and not any(name.startswith(f"{task}:") for name in known):
            raise NotFoundError(
                f"no such task: {task}",
                why=f"choose from: {some([*known, JOB])}" if known else "the job has no tasks yet",
                hint=nearest(task, [*known, JOB]) if known else f"--task {JOB} shows the output of its script",
            )
    return [name for name in (JOB, AGENTS, *known) if name in tasks or name.partition(":")[0] in tasks]


def _parts(name: str) -> tuple[str, int]:
    task_type, _, index = name.partition(":")
    return task_type, int(index)
