"""The launcher while it waits: signals reach it, its agents get signs of life, and users their records."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.heartbeat import interval
from gridtf.host import processes

if TYPE_CHECKING:
    from gridtf.bootstrap.launcher.api import Feature, LauncherView
    from gridtf.features import Features

_LONGEST_PAUSE = 2.0  # seconds; news from hosts, ends of processes and signals end a pause at once


class TerminatedBySignal(Exception):
    """A signal that ends the job has been received.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number


class Contact:
    """Waits, and keeps the agents informed meanwhile.

    Args:
        view: The attempt.
        features: Those of the job.

    Attributes:
        longest: The longest pause, in seconds: short enough to tell a launcher that was stopped from one that waits.
        stall: The last long time, in seconds, for which this process was not scheduled.
    """

    def __init__(self, view: LauncherView, features: Features[Feature]) -> None:
        self._view, self._features, self._system = view, features, view.job.system
        self._reporter, self._listener, self._hosts = view.reporter, view.hosts.listener, view.hosts
        self._limit = view.job.spec.heartbeat_timeout
        self._warnings = view.job.scheduler.injob.last_warnings
        self.longest = min(_LONGEST_PAUSE, self._limit / 8)
        self.stall = 0.0
        self._woken = float("-inf")  # when that time ended, by the monotonic clock
        self._last_pause = self._system.monotonic()
        self._beat = float("-inf")  # when the last sign of life was given

    def pause(self, seconds: float) -> None:
        """Wait, until there is news at the latest, and give the agents signs of life, without which they end.

        Args:
            seconds: The longest time to wait.

        Raises:
            TerminatedBySignal: A signal that ends the job was received.
        """
        self.tell_alive()
        seconds = min(seconds, self._reporter.idle())
        number = self._system.wait(seconds)
        now = self._system.monotonic()
        if now - self._last_pause - seconds > self._limit / 2:
            self.stall, self._woken = now - self._last_pause - seconds, now
        self._last_pause = now
        if number is not None and (processes.is_end(number) or number in self._warnings):
            raise TerminatedBySignal(number)
        if number == signal.SIGUSR1:
            self.request_checkpoint()

    def was_stalled(self) -> bool:
        """Whether this process was not scheduled for so long, a moment ago, that agents may have given it up."""
        return self._system.monotonic() - self._woken < self._limit

    def tell_alive(self) -> None:
        """What goes on all the time: signs of life for the agents, records for the users."""
        now = self._system.monotonic()
        if now - self._beat >= interval(len(self._hosts.hosts), self._limit):
            self._beat = now
            self._listener.alive()
        self._reporter.record()
        if self._view.now is None:  # else they look when it is known what has become of the tasks
            self._features.tell(lambda one: one.look())

    def request_checkpoint(self) -> None:
        """Request a checkpoint on all hosts."""
        if not self._reporter.checkpoint:
            self._reporter.checkpoint = True
            self._reporter.notice("a checkpoint was requested")
            self.tell_agents()
            self._reporter.record()

    def tell_agents(self) -> None:
        """Tell the agents which process this is, and whether a checkpoint was requested."""
        self._listener.send_all(messages.LAUNCHER, self._reporter.identity())
