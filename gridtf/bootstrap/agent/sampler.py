"""What the tasks of a host use, and when their logs have grown: found out every few seconds, for the launcher.

A process of its own reads /proc, so that the agent never waits for it; a thread of that process asks the driver of the
GPUs, which blocks for ever when a GPU has fallen off the bus. No file system that hosts share is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent.supervisor import TaskProcess
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.host import processes
from gridtf.run.rundir import Record
from gridtf.states import TaskState

if TYPE_CHECKING:
    from types import ModuleType

    from gridtf.host.sockets import Ends
    from gridtf.host.usage import HostUse, ProcessUse

_START_DELAY = 1.0  # seconds from the start of the tasks to that of the sampler, which delays no short job
_A_SECOND = 50  # samples that the launcher hears
_FIRST_SAMPLE = 2.0  # seconds until the first sample
_RESTART_PAUSE = 60.0  # seconds until a sampler that was killed is started again
_END_LIMIT = 1.0  # seconds for a killed process to close its pipe
_LOGS, _SILENT_LOGS = 0.25, 1.0  # seconds between two looks at the lengths of the logs, and while no task prints
_SOON_SILENT = 5.0  # seconds without output after which no task prints
_THREADS = 0.002  # the share of a core that is spent on all threads, of which TensorFlow has hundreds, and connections
_SHARED = 0.002  # the share of a core that is spent on finding out which memory processes share
_BACKLOG = 1 << 14  # bytes that wait on a connection that is held up by its network
_LINKS = 4  # pairs of addresses that a sample tells
_FAMILY = {4: socket.AF_INET, 16: socket.AF_INET6}  # by the length of an address
_LOOPBACK = 127  # the first byte of the addresses of a host that only it reaches
_FRESH = 3  # intervals after which a reading of the GPUs is no longer told
_MOST_UNSENT = 1 << 20  # bytes
_SILENT = 10.0  # seconds without a report after which a task makes no steps any more, if its reports came faster before

Points = Mapping[str, list[tuple[float, int]]]  # task -> (time, bytes that it had printed), oldest first
Printed = Mapping[str, Callable[[], int]]  # task -> returns how many bytes its log has received


def sample_interval(wanted: float, hosts: int) -> float:
    """The time between two samples: longer with many hosts, of which the launcher hears 50 a second at most.

    Args:
        wanted: Seconds that the user wants; 0: there are no samples.
        hosts: The number of hosts of the job.

    Returns:
        Seconds; 0: there are none.
    """
    return max(wanted, hosts / _A_SECOND) if wanted else 0.0


class Sampler:
    """The agent's end: starts the process that samples, and takes what it has found out.

    Args:
        interval: Seconds between two samples; 0: there are none.
        gpus: The GPUs of this host.
        host: This host, as the allocation calls it.
        system: This host.
    """

    def __init__(self, interval: float, gpus: Collection[str], host: str, system: System) -> None:
        self._interval, self._gpus, self._host, self._system = interval, gpus, host, system
        self._due: float | None = None  # when the process is started
        self._helper = Helper(_RESTART_PAUSE, system, wakes=False)
        self._received = b""
        self._sampled: dict[str, int] = {}  # the tasks that it looks at, and their process ids
        self._rates = Rates()

    def look(self, tasks: Collection[TaskProcess]) -> list[Record]:
        """Start the process if that is due, and take what it has found out.

        Args:
            tasks: All tasks: a sample may be of one that has ended since.

        Returns:
            Messages for the launcher, of the kind messages.SAMPLE.
        """
        running = {task.name: task.pid for task in tasks if task.pid and task.state == TaskState.RUNNING}
        now = self._system.monotonic()
        if not self._interval:
            return []
        if self._due is None and running:
            self._due = now + _START_DELAY
        found = self._take(tasks)
        if self._helper.pid and not running.items() <= self._sampled.items():  # a task was started again
            self._helper.end(signal.SIGTERM)
            self._helper.begun = float("-inf")
        if self._helper.due and running and self._due is not None and now >= self._due:
            printed = {task.name: task.printed for task in tasks if task.printed}
            self._sampled, self._received = running, b""
            self._helper.start(partial(self._run, running, printed))
        return found

    def last(self, tasks: Iterable[TaskProcess]) -> list[Record]:
        """Take what the process has found out last, after a tear-down has ended it.

        Args:
            tasks: The tasks, which have ended.

        Returns:
            As look.
        """
        found = self._take(tasks)
        deadline = self._system.monotonic() + _END_LIMIT
        while (
            self._helper.pid is not None and self._system.monotonic() < deadline
        ):  # only a driver keeps it from ending
            self._system.sleep(0.005)
            found += self._take(tasks)
        return found

    def _run(self, tasks: Mapping[str, int], printed: Printed, agent: socket.socket) -> None:
        """Sample until a signal ends this process, which then tells what it has seen last."""
        processes.die_with_parent(self._system.pid, signal.SIGKILL)
        processes.block_signals()
        processes.keep_only([agent.fileno()])
        agent.setblocking(False)
        interval = self._interval
        logs, readings = _Logs(tasks, printed), _Gpus(self._gpus, interval)
        taken = _Samples(tasks, self._host)
        due = time.monotonic() + min(interval, _FIRST_SAMPLE)
        unsent, ended = b"", False
        while not ended:
            ended = processes.is_end(processes.wait_for_signal(logs.pause()))
            logs.look()
            if ended or time.monotonic() >= due:
                due = max(due + interval, time.monotonic())
                told: Record = {"logs": logs.take()}
                sample = {**taken.take(), "gpus": readings.newest()}
                if sample["tasks"] or not ended:  # the last sample is of tasks that still ran
                    told["sample"] = sample
                unsent += json.dumps(told, separators=(",", ":")).encode() + b"\n"
            try:
                unsent = unsent[agent.send(unsent) :] if unsent else b""
            except BlockingIOError:  # the agent is stopped
                unsent = unsent if len(unsent) < _MOST_UNSENT else b""

    @property
    def pids(self) -> frozenset[int]:
        """The id of the process; nothing while there is none."""
        return frozenset(() if self._helper.pid is None else {self._helper.pid})

    def _take(self, tasks: Iterable[TaskProcess]) -> list[Record]:
        *lines, self._received = (self._received + self._helper.hear()).split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        for record in found:
            if "sample" in record:
                self._rates.add(record["sample"], tasks)
        return found


class Rates:
    """Adds to samples what tasks have reported: their step, and how many steps a second that makes."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}  # task -> step and time of its newest report
        self._rate: dict[str, tuple[float, float]] = {}  # task -> steps a second, and over how many seconds

    def add(self, sample: Record, tasks: Iterable[TaskProcess]) -> None:
        """Add to a sample of this host.

        Args:
            sample: The sample; is changed.
            tasks: The tasks, with what they have reported.
        """
        for task in tasks:
            found, progress = sample["tasks"].get(task.name), task.progress
            if found is None or not progress:
                continue
            step, at = progress["step"], progress["time"]
            before = self._last.get(task.name)
            self._last[task.name] = (step, at)
            if before and at > before[1]:
                self._rate[task.name] = (max(0, step - before[0]) / (at - before[1]), at - before[1])
            found.update(step=step, values=progress["values"])
            if wide := {name: both for name, both in task.ranges.items() if both[0] < both[1]}:
                found["ranges"] = wide
            task.ranges = {}
            if task.name in self._rate:
                rate, gap = self._rate[task.name]
                found["rate"] = 0.0 if sample["time"] - at > max(_SILENT, 2 * gap) else round(rate, 4)


# --- the process that samples


class _Samples:
    """Takes samples of this host and its tasks.

    Args:
        tasks: Task -> its process.
        host: The name of this host.
    """

    def __init__(self, tasks: Mapping[str, int], host: str) -> None:
        from gridtf.host import usage

        self._usage, self._name = usage, host
        self._families, self._host = usage.Families(tasks), usage.Host()
        self._waiting, self._shared = _Waiting(usage), _Shared(usage)
        self._before = self._look()

    def _look(self) -> tuple[float, HostUse, dict[str, ProcessUse]]:
        families, now = self._families.look(), time.monotonic()
        used = {name: self._usage.of_processes(pids, self._shared.known) for name, pids in families.items()}
        self._waiting.look(families)
        self._shared.look([pid for use in used.values() for pid in use.sharing])
        return now, self._host.use(), used

    def take(self) -> Record:
        """Take the next sample, without GPUs."""
        then, host_before, tasks_before = self._before
        self._before = now, host, tasks = self._look()
        span = max(now - then, 1e-3)
        hertz = os.sysconf("SC_CLK_TCK")

        def a_second(after: int, before: int, size: int = 1) -> float:
            # less than before: what a child had used is gone with it, if its parent has not waited for it
            return round(max(0, after - before) / span / size, 3)

        return {
            "time": time.time(),
            "host": self._name,
            "cpus": os.cpu_count() or 1,
            "cpu": a_second(host.ticks, host_before.ticks, hertz),
            "memory": host.memory,
            "memory_total": host.memory_total,
            "received": a_second(host.received, host_before.received),
            "sent": a_second(host.sent, host_before.sent),
            "links": self._waiting.links,
            "tasks": {
                name: {
                    "cpu": a_second(use.ticks, before.ticks, hertz),
                    "memory": use.memory,
                    "read": a_second(use.read, before.read),
                    "written": a_second(use.written, before.written),
                    "processes": use.processes,
                    "threads": {},
                    **self._waiting.tasks.get(name, {}),
                }
                for name, use in tasks.items()
                if (before := tasks_before.get(name)) is not None
            },
        }


class _Shared:
    """The memory that processes share, by a thread: with hundreds of GiB, the kernel takes seconds to tell.

    Attributes:
        known: As usage.shared_memory() returned it last.
    """

    def __init__(self, usage: ModuleType) -> None:
        self._usage, self._due = usage, float("-inf")
        self.known: dict[int, int] = {}

    def look(self, pids: Sequence[int]) -> None:
        """Find out anew, if that is due.

        Args:
            pids: The processes.
        """
        if pids and time.monotonic() >= self._due:
            import threading

            self._due = float("inf")
            threading.Thread(target=self._read, args=(pids,), daemon=True).start()

    def _read(self, pids: Sequence[int]) -> None:
        begin = time.thread_time()
        self.known = self._usage.shared_memory(pids)
        self._due = time.monotonic() + (time.thread_time() - begin) / _SHARED


class _Waiting:
    """What tasks wait for: all threads and connections are looked at, less often where there are many.

    Attributes:
        tasks: Task -> the states of its ``threads``, and from the second look on ``delay``: for how many seconds in a
            second they have waited for a CPU, in all.
        links: Address of this host and of another, with a blank between them -> the share of the time in which a
            connection between them had data that the network had not taken (a half at most, unless there is a backlog
            now): of the busiest pairs, and of one of each address of this host.
    """

    def __init__(self, usage: ModuleType) -> None:
        from gridtf.host.sockets import Connections, held

        self._usage, self._due = usage, float("-inf")
        self._of_agent = partial(held, os.getppid())  # its connection to the launcher is none of the tasks'
        self._at = 0.0
        self._delays: dict[str, int] = {}
        self._sent: dict[Ends, tuple[int, int]] = {}
        self._connections: Connections | None = None
        with contextlib.suppress(OSError):  # the kernel does not tell of connections
            self._connections = Connections()
        self.tasks: dict[str, Record] = {}
        self.links: dict[str, float] = {}

    def look(self, families: Mapping[str, Sequence[int]]) -> None:
        """Look, if that is due.

        Args:
            families: Task -> its processes.
        """
        now, begin = time.monotonic(), time.thread_time()
        if now < self._due:
            return
        span, self._at = max(now - self._at, 1e-3), now
        found = {name: self._usage.threads(pids) for name, pids in families.items()}
        self.tasks = {name: {"threads": threads.states} for name, threads in found.items()}
        for name in found.keys() & self._delays.keys():
            delay = max(0, found[name].delay - self._delays[name]) / 1e9 / span
            self.tasks[name]["delay"] = round(delay, 3)
        self._delays = {name: threads.delay for name, threads in found.items()}
        self.links = self._look_at_links(span)
        self._due = now + (time.thread_time() - begin) / _THREADS

    def _look_at_links(self, span: float) -> dict[str, float]:
        before, self._sent = self._sent, {}
        with contextlib.suppress(OSError):
            self._sent = self._connections.sending(os.getuid(), self._of_agent()) if self._connections else {}
        busy: dict[str, float] = {}
        for ends in self._sent.keys() & before.keys():
            here, there = ends[0], ends[2]
            (sent, waiting), (was, _) = self._sent[ends], before[ends]
            # of small messages, an acknowledgement that is late is no sign of a slow link
            share = min(1.0 if waiting >= _BACKLOG else 0.5, max(0, sent - was) / 1e6 / span)
            if here != there and not (len(here) == 4 and here[0] == _LOOPBACK):
                pair = " ".join(socket.inet_ntop(_FAMILY[len(each)], each) for each in (here, there))
                busy[pair] = max(round(share, 3), busy.get(pair, 0.0))
        ordered = sorted(busy, key=lambda pair: -busy[pair])
        own = {pair.split()[0]: pair for pair in reversed(ordered)}
        return {pair: busy[pair] for pair in ordered if pair in ordered[:_LINKS] or pair in own.values()}


class _Logs:
    """Notes when the tasks print.

    Args:
        tasks: Task -> its process.
        printed: Task -> how many bytes its log has, of those that do not write it themselves.
    """

    def __init__(self, tasks: Mapping[str, int], printed: Printed) -> None:
        from gridtf.host import usage

        self._sizes = {name: printed.get(name) or partial(usage.printed, pid) for name, pid in tasks.items()}
        self._last: dict[str, int] = {}
        self._points: dict[str, list[tuple[float, int]]] = {}
        self._grown = float("-inf")  # when a log has, by the monotonic clock
        self.look()

    def look(self) -> None:
        """See which logs have grown."""
        now = round(time.time(), 3)
        for name, printed in self._sizes.items():
            size = printed()
            if size is not None and size != self._last.get(name):
                self._last[name], self._grown = size, time.monotonic()
                self._points.setdefault(name, []).append((now, size))

    def pause(self) -> float:
        """Seconds until the next look."""
        return _LOGS if time.monotonic() - self._grown < _SOON_SILENT else _SILENT_LOGS

    def take(self) -> Points:
        """What was noted since the last call."""
        found, self._points = self._points, {}
        return found


class _Gpus:
    """The newest reading of the GPUs, by a thread of its own.

    Args:
        gpus: The GPUs.
        interval: Seconds between two readings.
    """

    def __init__(self, gpus: Collection[str], interval: float) -> None:
        self._interval = interval
        self._newest: tuple[float, dict[str, dict[str, float]]] = float("-inf"), {}
        if gpus:
            import threading

            threading.Thread(target=self._read, args=(gpus,), daemon=True).start()

    def _read(self, gpus: Collection[str]) -> None:
        from gridtf.host.gpus import use

        for found in use(gpus):
            self._newest = time.monotonic(), found
            time.sleep(self._interval)

    def newest(self) -> dict[str, dict[str, float]]:
        """The newest reading; nothing where the driver has not answered for some time."""
        at, found = self._newest
        return found if time.monotonic() - at < _FRESH * self._interval else {}
