"""What the launcher keeps of an attempt: its events, what hosts and tasks have used, when logs have grown.

Lines are appended by the recorder's processes, events within a second and the rest once a minute, so that a file system
that is shared notices little of it, however many hosts there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.run import jsonlines, ranges
from gridtf.run.rundir import Attempt, Record

_EVENTS = 1.0  # seconds within which events are written
_SAMPLES = 60.0  # seconds between two writes of samples
# An attempt has one sample of a host for each 1/720 of its age, so that an hour has one every five seconds.
_WHOLE = 720
_EARLY = 2.5  # seconds by which a line may be early: half of the interval
_FINEST, _FINE = 0.25, 3600  # seconds between two lengths of a log at least, and the same as a part of the age

_MEAN = frozenset({"cpu", "received", "sent", "read", "written", "rate", "use", "power", "delay", "clock", "throttled"})
_LARGEST = frozenset({"memory"})


class Journal:
    """Writes events.jsonl, samples.jsonl and logtimes.jsonl.

    Args:
        nonce: Its nonce.
        recorder: What writes.
        system: This host.
    """

    def __init__(self, attempt: Attempt, nonce: str, recorder: Recorder, system: System) -> None:
        self._nonce, self._recorder, self._system = nonce, recorder, system
        self._paths = {"events": attempt.events, "samples": attempt.samples, "logs": attempt.log_times}
        self._begun: set[Path] = set()
        self._events: list[Record] = []
        self._collected: dict[str, list[Record]] = {}  # host -> its samples that will become one line
        self._told: dict[str, float] = {}  # host -> when the last sample in a line was taken
        self._lines: list[Record] = []  # of samples
        self._logs: dict[str, _LogTimes] = {}
        self._began = system.monotonic()
        self._events_due = self._samples_due = float("inf")

    def note(self, event: str, **more: object) -> None:
        """Note an event of the launcher.

        Args:
            event: What has happened, as in docs/seeing.md.
            more: What belongs to it; a ``time``, in seconds since the epoch, if it was not now.
        """
        self.add([{"time": self._system.time(), "event": event, **more}])

    def add(self, events: Iterable[Record]) -> None:
        """Note events of hosts and tasks."""
        self._events += events
        if self._events:
            self._events_due = min(self._events_due, self._system.monotonic() + _EVENTS)

    def sample(self, taken: Iterable[Record]) -> None:
        """Take samples, and when logs have grown.

        Args:
            taken: Messages of the kind messages.SAMPLE, with times by the clock of this host.
        """
        now = self._system.monotonic()
        age = now - self._began
        for record in taken:
            if "sample" in record:
                self._collect(record["sample"], age / _WHOLE)
            for task, points in record["logs"].items():
                self._logs.setdefault(task, _LogTimes(task)).add(points, max(_FINEST, age / _FINE))
            self._samples_due = min(self._samples_due, now + _SAMPLES)

    def _collect(self, sample: Record, pause: float) -> None:
        waiting = self._collected.setdefault(sample["host"], [])
        waiting.append(sample)
        if sample["time"] - self._told.get(sample["host"], 0.0) >= pause - _EARLY:
            self._told[sample["host"]] = sample["time"]
            self._lines.append(merged(waiting))
            waiting.clear()

    def look(self) -> None:
        """Have written what is due."""
        now = self._system.monotonic()
        if now >= self._events_due:
            self._write_events()
        if now >= self._samples_due:
            self._write_samples()

    def hurry(self) -> None:
        """Have the events that were noted written at the next look."""
        if self._events:
            self._events_due = self._system.monotonic()

    def rest(self) -> float:
        """Seconds until events are due to be written; infinite without any."""
        return max(0.0, self._events_due - self._system.monotonic())

    def end(self) -> None:
        """Have everything written that has been noted."""
        self._lines += [merged(waiting) for waiting in self._collected.values() if waiting]
        self._collected.clear()
        self._write_events()
        self._write_samples()

    def _write_events(self) -> None:
        self._events_due = float("inf")
        # hosts are heard of in turn, and an event may be older than one that is known already
        self._append("events", sorted(self._events, key=lambda event: event["time"]))
        self._events = []

    def _write_samples(self) -> None:
        self._samples_due = float("inf")
        self._append("samples", self._lines)
        self._lines = []
        self._append("logs", [line for log in self._logs.values() for line in log.take()])

    def _append(self, which: str, records: Sequence[Record]) -> None:
        if not records:
            return
        path = self._paths[which]
        head = "" if path in self._begun else jsonlines.head(self._nonce)
        self._begun.add(path)
        self._recorder.append(path, head + "".join(map(jsonlines.line, records)))


def merged(samples: Sequence[Record]) -> Record:
    """One sample in place of several of a host: means of CPU time, rates and power, the largest memory, the ranges of
    values. Pure.

    Args:
        samples: At least one, oldest first.
    """
    if len(samples) == 1:
        return samples[0]
    found: Record = {}
    for key, value in samples[-1].items():
        known = [sample[key] for sample in samples if key in sample]
        if key == "values":
            each = (both for one in samples for both in (ranges.of_values(one.get(key, {})), one.get("ranges", {})))
            found |= {key: value, "ranges": ranges.together(*each)}
        elif isinstance(value, Mapping) and key not in ("threads", "ranges"):
            found[key] = merged(known)
        elif key in _MEAN:
            found[key] = round(sum(known) / len(known), 4)
        else:
            found.setdefault(key, max(known) if key in _LARGEST else value)
    return found


class _LogTimes:
    """When the log of a task had which length."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._line: Record | None = None  # that is being made
        self._kept = self._seen = (float("-inf"), 0)  # the last point that belongs to a line, and the last of all

    def add(self, points: Iterable[Sequence[float]], resolution: float) -> None:
        """Add points that are newer.

        Args:
            points: (seconds since the epoch, bytes), oldest first.
            resolution: Seconds between two points that are kept; the last one before a pause is kept as well.
        """
        for time, size in points:
            if time <= self._seen[0]:
                continue  # it was told before, on a connection that was lost
            if time - self._seen[0] >= resolution:
                self._keep()
            self._seen = (time, int(size))
            if time - self._kept[0] >= resolution:
                self._keep()

    def _keep(self) -> None:
        """Add the last point that was seen to the line."""
        if self._seen == self._kept:
            return
        time, size = self._seen
        if self._line is None:
            self._line = {"task": self._task, "time": time, "offset": size, "then": []}
        else:
            self._line["then"] += [round((time - self._kept[0]) * 1000), max(0, size - self._kept[1])]
        self._kept = self._seen

    def take(self) -> list[Record]:
        """The line so far, if there is one; the next point begins another one."""
        self._keep()
        line, self._line = self._line, None
        return [line] if line else []
