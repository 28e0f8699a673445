"""A silent launcher on this host, and one whose host is lost: only an agent can see to it that the job ends.

Otherwise the job would keep all its hosts until its walltime, with no task running.
"""

from __future__ import annotations

import contextlib
import signal

from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.run.rundir import Attempt, Record, listdir
from gridtf.schedulers.agents import STOP_SIGNAL
from gridtf.schedulers.api import Scheduler
from gridtf.values import Fields

_WAKE_LIMIT = 10.0  # seconds within which a launcher that was continued (SIGCONT) has to write a heartbeat
_LAUNCHER_PAUSE = 2.0  # seconds between two looks at it
_QUERY_PAUSE, _LONGEST_QUERY_PAUSE = 20.0, 300.0  # seconds between two questions of an agent to the scheduler
_LOSS_LIMIT = 1800.0  # seconds within which a scheduler notices that a host is lost


class Rescue(Fields):
    """What an agent does for the job after its tear-down.

    Attributes:
        attempt: The attempt.
        nonce: Its nonce.
        scheduler: The scheduler of the job.
        conversation: The conversation with the launcher, which is watched.
        system: This host.
    """

    attempt: Attempt
    nonce: str
    scheduler: Scheduler
    conversation: Conversation
    system: System

    def recover_launcher(self, *, released: bool) -> None:
        """Continue a stalled launcher on this host (SIGCONT), and kill it if it stays silent.

        A launcher that has stopped the agents is healthy; a slow one has a little more than its heartbeat timeout.

        Args:
            released: Whether the launcher has stopped this agent.
        """
        talk = self.conversation
        assert talk.watch is not None
        soon, woken, stopped = 3 * talk.interval, 0.0, False
        while not released and (launcher := talk.launcher) is not None and self.system.is_alive(launcher):
            talk.hear()
            released = talk.stop
            silence, now = talk.watch.silence(), self.system.monotonic()
            if not woken and silence < soon:
                return
            if woken and min(silence, now - woken) > _WAKE_LIMIT:
                self._end_launcher(launcher, silence, stopped=stopped)
                return
            if not woken and talk.watch.lost() and self.scheduler.injob.suspended(self.system.environ) is False:
                woken, stopped = now, self.system.is_stopped(launcher["pid"])
                self.system.signal([launcher["pid"]], signal.SIGCONT)  # no effect where it was not stopped
            released = self.system.wait(_LAUNCHER_PAUSE) == STOP_SIGNAL or released

    def launcher_is_elsewhere(self) -> bool:
        """Whether the launcher is a process of another host, or has ended."""
        return self.conversation.launcher is not None and not self.system.is_alive(self.conversation.launcher)

    def give_back(self, hosts: int) -> None:
        """See to it that a job whose launcher's host is lost does not keep its other hosts.

        The scheduler may need minutes to notice that loss; and if it never does, only the way to this host was lost.

        Args:
            hosts: The number of hosts of the job, all of which may ask it.
        """
        from random import uniform

        pause = min(max(_QUERY_PAUSE, _QUERY_PAUSE * hosts / 8), _LONGEST_QUERY_PAUSE)
        now = self.system.monotonic()
        end, due = now + _LOSS_LIMIT, now
        while now < end:
            due += pause * uniform(0.5, 1)
            over = False
            while not over and (now := self.system.monotonic()) < due:
                over = processes.is_end(self.system.wait(due - now))
            with contextlib.suppress(GridtfError):
                if self.scheduler.injob.give_back(self.system.environ) or over:
                    return

    def _end_launcher(self, launcher: Record, silence: float, *, stopped: bool) -> None:
        """Kill the launcher, and write the verdict in its place.

        Args:
            launcher: Its last record.
            silence: Seconds since its last heartbeat.
            stopped: Whether it was stopped, as by SIGSTOP or gdb, before it was continued.
        """
        from gridtf.bootstrap.judge import verdict

        self.system.signal([launcher["pid"]], signal.SIGKILL)
        end = verdict.of_silent_launcher(launcher, silence, stopped=stopped)
        self.system.log(end.text())
        with contextlib.suppress(GridtfError):
            if self.attempt.verdict.name in listdir(self.attempt.path):  # the launcher had written it before it stalled
                return
            now = self.system.time()
            self.attempt.write_verdict(end.record(self.nonce, launcher.get("began", now), now))
