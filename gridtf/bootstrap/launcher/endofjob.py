"""When the scheduler will end the job, and so when its checkpoint is requested."""

from __future__ import annotations

import json
import os
import signal
import socket
from time import localtime, strftime

from gridtf.bootstrap.judge.walltime import LAST_QUERY, until_next_look
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.api import Scheduler


class EndOfJob:
    """Knows when the job will be ended, and when to request the checkpoint.

    A process of its own asks the scheduler, which may take long to answer. Where no checkpoint is to be saved before
    the end, it is asked once, unless the end is known without that.

    Args:
        request: What the job requests.
        scheduler: Its scheduler, which knows the end of the job.
        system: This host, whose clock decides.

    Attributes:
        end: What is known of it, in seconds since the epoch; None where it is not known.
    """

    def __init__(self, spec: JobSpec, request: Request, scheduler: Scheduler, system: System) -> None:
        self._before = spec.seconds_to_save
        self._request, self._scheduler, self._system = request, scheduler, system
        self._started = system.time() - system.age()  # the launcher has taken the place of the job script
        self.end = scheduler.injob.planned_end(system.environ, request, self._started)
        known = self._before is None and scheduler.injob.end_is_given(system.environ)
        self._next = float("inf" if known else "-inf")  # when the scheduler is asked again
        self._helper = Helper(0.0, system)
        self._asked = False  # and has not answered yet
        self._answer = b""  # as far as it has come
        self._fixed = False  # what the scheduler has said of the end is so for good
        self._told = False  # that the end is not known

    def save_now(self) -> bool:
        """Whether it is time to request the checkpoint. True once."""
        now, moves = self._system.time(), self._scheduler.injob.end_moves
        if now < self._next or not (self._fixed or self._answered(now)):
            return False
        if self._before is None:
            self._next = float("inf")
            return False
        if self.end is None:
            if not self._told:
                self._told = True
                self._system.log("it is not known when the job will be ended, so no checkpoint is requested before it")
            self._next = now + LAST_QUERY
            return False
        left = self.end - self._before - now
        if left > 0:
            self._next = now + (until_next_look(left) if moves else left)
            return False
        self._next = float("inf")
        self._system.log(f"the walltime will be over at {strftime('%H:%M:%S', localtime(self.end))}")
        return True

    def _answered(self, now: float) -> bool:
        """Whether the scheduler has answered, or has not in its time. Asks it first."""
        if not self._asked:
            self._asked = self._helper.start(self._ask)
            self._next = now if self._asked else now + LAST_QUERY
            if not self._asked:
                return False
        pid = self._helper.pid
        while heard := self._helper.hear():
            self._answer += heard
        if self._helper.pid is not None:
            return False
        self._system.collect(pid)
        (end, error), self._answer, self._asked = json.loads(self._answer or '[null, ""]'), b"", False
        if error and self._before is not None:
            self._system.log(error)
        self.end = self.end if end is None else end
        self._fixed = end is not None and not self._scheduler.injob.end_moves
        return True

    def close(self) -> None:
        """End the process that asks, and the command that it waits for."""
        if self._helper.pid is not None:
            self._system.signal([-self._helper.pid, self._helper.pid], signal.SIGKILL)
        self._helper.forget()

    def _ask(self, launcher: socket.socket) -> None:
        processes.die_with_parent(self._system.pid, signal.SIGKILL)
        os.setpgid(0, 0)
        processes.unblock_signals()
        processes.keep_only([launcher.fileno()])
        launcher.sendall(self.answer())

    def answer(self) -> bytes:
        """[the end as the scheduler says it, an error], as JSON."""
        try:
            said = [self._scheduler.injob.end_of_job(self._system.environ, self._request, self._started), ""]
        except GridtfError as error:
            said = [None, str(error)]
        return json.dumps(said).encode()
