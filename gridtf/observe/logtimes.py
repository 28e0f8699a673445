"""When the lines of logs were printed, as far as logtimes.jsonl tells: it says when a log had which length."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from gridtf.run import jsonlines, recordtypes
from gridtf.run.reading import known
from gridtf.run.rundir import Attempt

UNKNOWN = float("inf")  # the time of lines that are newer than all that is known


class Known:
    """The lengths of one log, oldest first.

    What lies between two lengths was printed by the time of the second one, at which a line counts whose end it has.
    """

    def __init__(self) -> None:
        self._times = array("d")
        self._ends = array("q")

    def __bool__(self) -> bool:
        return bool(self._times)

    def add(self, time: float, end: int) -> None:
        """Note that the log had a length (bytes) at a time (seconds since the epoch)."""
        if self._times:  # clocks may be set, and a log may be begun anew
            time, end = max(time, self._times[-1]), max(end, self._ends[-1])
        self._times.append(time)
        self._ends.append(end)

    def before(self, time: float) -> int:
        """How long the log was at that time at least, in bytes."""
        number = bisect_left(self._times, time)
        return self._ends[number - 1] if number else 0

    def split(self, data: bytes, at: int, unknown: float) -> Iterator[tuple[float, bytes]]:
        """Split lines by their times.

        Args:
            data: Complete lines of the log.
            at: The offset of the first one.
            unknown: The time of lines for which no time is known.

        Yields:
            (time, lines).
        """
        marks = data.replace(b"\r", b"\n")
        begin = 0
        while begin < len(data):
            line_end = marks.find(b"\n", begin) + 1 or len(data)
            number = bisect_left(self._ends, at + line_end)
            if number == len(self._ends):
                yield unknown, data[begin:]
                return
            end = max(line_end, marks.rfind(b"\n", begin, min(self._ends[number] - at, len(data))) + 1)
            end += data[end - 1 : end + 1] == b"\r\n"
            yield self._times[number], data[begin:end]
            begin = end


class LogTimes:
    """The lengths of all logs of an attempt.

    Args:
        attempt: The attempt; None: nothing is known.
    """

    def __init__(self, attempt: Attempt | None) -> None:
        self._logs: dict[str, Known] = {}
        if attempt is None:
            return
        nonce = known(attempt.plan, recordtypes.Outline).get("nonce")
        for record in jsonlines.read(attempt.log_times, recordtypes.LogTimes, nonce):
            log = self._logs.setdefault(record["task"], Known())
            log.add(record["time"], record["offset"])
            times = accumulate(record["then"][::2], initial=0)
            ends = accumulate(record["then"][1::2], initial=record["offset"])
            for milliseconds, end in zip([*times][1:], [*ends][1:], strict=False):
                log.add(record["time"] + milliseconds / 1000, end)

    def of(self, name: str) -> Known:
        """The lengths of the log of a task."""
        return self._logs.get(name) or Known()
