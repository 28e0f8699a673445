"""The conversation of an agent with the launcher: reports, orders, and waits, each of which has a limit."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.exits import NoLauncherError, Stopped
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.heartbeat import Watch, backoff, interval
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.bootstrap.wire.stream import Link
from gridtf.host import processes
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Attempt, Record

_LAST_RECORD = 2.0  # seconds for a record at the end
_LAST_MESSAGES = 5.0  # seconds for the last messages to leave this host
_STOP_LATE = 0.5  # seconds in which the launcher's order comes that STOP_SIGNAL or the end of the input announces
_STOP_LOOK = 0.1  # seconds between two looks for it


class Conversation:
    """The agent's side of the stream.

    Args:
        state: The state of this host.
        system: This host.

    Attributes:
        link: The connection; None before it is known where the launcher listens.
        watch: How long the launcher has been silent; None before the plan is known.
        interval: Seconds between two signs of life.
        ignored: Signals by which the scheduler warns.
        environment: The environment of the job script, where this agent has not inherited it.
        plan: The part of the plan for this host; None before it has come.
        rendezvous: The addresses of all tasks; None before they have come.
        latest: The last message of each other kind: of the check of this host, for starters and features.
        launcher: Which process the launcher is; None before it has said so.
        stop: Whether the launcher has told this agent to stop.
        reported: When the end of a task was last reported, in seconds since the epoch.
    """

    def __init__(self, state: HostState, system: System) -> None:
        self._state, self._system = state, system
        self.link: Link | None = None
        self.watch: Watch | None = None
        self.interval = 1.0
        self.ignored: frozenset[int] = frozenset()
        self.environment: dict[str, str] | None = None
        self.plan: Record | None = None
        self.rendezvous: Record | None = None
        self.latest: dict[str, Record] = {}
        self.launcher: Record | None = None
        self.stop = False
        self.reported = 0.0
        self._stated = 0.0  # when the last state was sent, or would have been with a connection
        self._told = float("-inf")  # when the launcher was last given a sign of life, by the monotonic clock
        self._last: Record = {}  # what was last reported

    def expect_signs_of_life(self, hosts: int, limit: float, excuse: Callable[[], bool]) -> None:
        """Watch the launcher from now on.

        Args:
            hosts: The number of hosts of the job.
            limit: Seconds of silence after which the launcher counts as lost.
            excuse: As in Watch.
        """
        self.interval = interval(hosts, limit)
        self.watch = Watch(limit, self._system, excuse)
        if self.link is not None:
            self.link.patience = max(limit / 4, 2.5 * self.interval)

    # --- what the agent says

    def report(self, *, now: bool = False) -> None:
        """Tell the launcher the state of this host.

        Args:
            now: At once; otherwise as a sign of life, when the last one is old.
        """
        clock = self._system.monotonic()
        if self.link is None or (not now and clock - self._told < self.interval * 0.9):
            return
        self._told = clock
        state = self._state.record()
        if state == self._last:
            self.link.alive()
            return
        self._last = state
        self._stated = self._system.time()
        self.link.send(messages.STATE, {**state, "time": self._stated})
        if self.link.connected:
            self.reported = self._stated

    def send(self, kind: str, content: Record) -> None:
        """Tell the launcher something else.

        Args:
            kind: The kind of the message, as in messages.
            content: Its content.
        """
        assert self.link is not None
        self.link.send(kind, content)

    def send_samples(self, samples: Sequence[Record]) -> None:
        """Tell the launcher what this host has used."""
        for sample in samples:
            self.send(messages.SAMPLE, sample)

    def request_checkpoint(self) -> None:
        """Request a checkpoint of the tasks of this host, and of the launcher one on the other hosts."""
        if self._state.checkpoint:
            return
        self._state.checkpoint = True
        if not (self._state.local_dir and local_dir.notify(self._state.local_dir)):
            self._state.log("cannot pass the request for a checkpoint on: is /tmp or TMPDIR full?")
        self.report(now=True)

    def end(self, attempt: Attempt, nonce: str, recorder_of: Callable[[System], Recorder]) -> None:
        """Close the connection when all is said; write it into the run directory where the launcher has not heard it.

        Args:
            nonce: Its nonce.
            recorder_of: Makes what writes: on a host that is cut off, the file system hangs.
        """
        if self.link is None:
            return
        heard = self.link.connected and self.link.drain(_LAST_MESSAGES)
        self.link.close()
        if self._last and not heard:  # the launcher was killed: this is needed to tell what happened
            recorder = recorder_of(self._system)
            recorder.write(attempt.host_state(self._state.host), json.dumps({"nonce": nonce, **self._last}))
            recorder.settle(_LAST_RECORD)

    # --- what the launcher says

    def hear(self) -> None:
        """Take note of what the launcher has said since the last call."""
        assert self.link is not None
        connected = self.link.connected
        news = self.link.receive()
        if self.link.connected and not connected:  # a new connection begins with the last state
            self.reported = self._stated
        for kind, content in news:
            if self.watch is not None:
                self.watch.heard()
            if kind == messages.ENVIRONMENT:
                self.environment = content["environ"]
            elif kind == messages.PLAN:
                self.plan = content
            elif kind == messages.RENDEZVOUS:
                self.rendezvous = content
            elif kind == messages.LAUNCHER:
                self.launcher = content
                if content.get("checkpoint") and self._state.local_dir:
                    self.request_checkpoint()
            elif kind == messages.STOP:
                self.stop = True
            else:
                self.latest[kind] = content

    def expect(self, kinds: Mapping[str, Kind]) -> None:
        """Let the launcher say something else: kind of a message -> the form of its content."""
        assert self.link is not None
        self.link.kinds.update(kinds)

    def listen(self) -> None:
        """Hear the launcher.

        Raises:
            Stopped: The launcher has stopped all agents.
            NoLauncherError: The launcher has been silent for too long.
        """
        self.hear()
        self.check()

    def check(self) -> None:
        """Go on, unless what was heard forbids it.

        Raises:
            Stopped, NoLauncherError: As in listen.
        """
        if self.stop:
            raise Stopped
        if self.watch is not None and self.watch.lost():
            raise NoLauncherError(f"no heartbeat from the launcher for {self.watch.limit:.0f} s")

    def stop_comes(self) -> bool:
        """Whether the launcher has told this agent to stop; its message may take a little longer than a signal."""
        deadline = self._system.monotonic() + _STOP_LATE
        while True:
            self.hear()
            if self.stop or self._system.monotonic() >= deadline:
                return self.stop
            self._system.wait(_STOP_LOOK)

    def keep_telling(self) -> None:
        """Report in a tear-down, in which no order of the launcher matters any more."""
        self.report()
        self.hear()

    def waiting(self, limit: float) -> Iterator[float]:
        """Wait in steps that grow, or end when a message comes.

        Args:
            limit: Seconds to wait in all.

        Yields:
            The seconds waited so far.

        Raises:
            Stopped: A signal ends the agent.
        """
        begin = self._system.monotonic()
        while (waited := self._system.monotonic() - begin) < limit:
            yield waited
            number = self._system.wait(backoff(waited))
            if processes.is_end(number):
                raise Stopped(number)
            if number == signal.SIGUSR1 and self._state.local_dir and number not in self.ignored:
                self.request_checkpoint()
