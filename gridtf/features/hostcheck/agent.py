"""The agent's half: it starts the program that measures, and passes orders and answers on.

It is a process of its own: drivers, disks and packages may block it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from gridtf.bootstrap.agent import api
from gridtf.bootstrap.agent.supervisor import Program, explain
from gridtf.bootstrap.plan import environment
from gridtf.features.hostcheck import CHECK, CHECKED
from gridtf.host import interpreter, processes
from gridtf.run import recordtypes
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record

PROGRAM = environment.HOME / "hook" / "hostcheck.py"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_END_LIMIT = 5.0  # seconds for a process that was killed to leave the GPUs: one that a driver blocks never does
_MOST = 1 << 16  # bytes that are taken at once
_LONGEST = 300  # characters of what the program prints in place of an answer
_ANSWER = b'{"values": '  # begins an answer: libraries, and a Python that fails, print other lines


class InAgent(api.Feature):
    """The agent's end of that process, which nobody starts on a host without tasks."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {CHECK: {"number": recordtypes.Count, "order": {str: object}}}

    def __init__(self, view: api.AgentView) -> None:
        super().__init__(view)
        self._talk, self._system = view.conversation, view.system
        self._pid = self._number = 0  # of the process, and of the last order
        self._waits, self._heard = False, b""

    def look(self) -> Mapping[str, Record]:
        """Pass a new order on, and the answer to the last one, until the tasks may start."""
        if self._talk.rendezvous is None:
            self._pass_on(self._talk.latest.get(CHECK, {"number": 0}))
        elif self._pid:
            self._end()
        return {}

    def _pass_on(self, order: Record) -> None:
        if order["number"] > self._number:
            self._number, self._waits, self._heard = order["number"], True, b""
            if not self._pid:
                self._start()
            with contextlib.suppress(OSError):  # it has ended
                self._line.sendall(json.dumps({**order["order"], "number": self._number}).encode() + b"\n")
        if not self._waits:
            return
        try:
            said = self._line.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._heard += said
        answer = next((json.loads(line) for line in self._heard.split(b"\n")[:-1] if line.startswith(_ANSWER)), None)
        if answer is None and not said:
            words = " ".join(self._heard.decode(errors="replace").split())[-_LONGEST:]
            why = dict.fromkeys(order["order"]["measures"], f"the check has ended: {words}".rstrip(": "))
            answer = {"values": {}, "alike": {}, "missing": why, "port": 0, "time": self._system.time()}
        if answer is not None:
            self._waits = False
            self._talk.send(CHECKED, {**answer, "number": self._number})

    def _start(self) -> None:
        program = self._program()
        argv, env, cwd = program.argv, program.env, program.cwd
        self._line, theirs = socket.socketpair()
        processes.signal_at_end_of(self._line.fileno())
        with theirs:
            try:
                self._pid = self._system.start(argv, env, cwd=cwd, output=theirs.fileno(), given=theirs.fileno())
            except OSError as error:
                theirs.sendall(explain(error, argv[0], cwd, env).encode())

    def _end(self) -> None:
        """End the process, with all that it has started; the GPUs are free then."""
        pid, self._pid = self._pid, 0
        self._system.signal([*self._system.descendants(pid), pid], signal.SIGKILL)
        self._line.close()
        deadline = self._system.monotonic() + _END_LIMIT
        while pid in self._system.children() and self._system.monotonic() < deadline:
            self.view.state.supervisor.collect()
            self._system.sleep(0.01)

    def _program(self) -> Program:
        view, plan = self.view, self.view.plan
        task = max(view.mine, key=lambda task: task.gpus)
        threads = str(min(len(os.sched_getaffinity(0)), sum(task.cpus or 1 for task in view.mine)))
        given = {**plan.spec.env, **plan.spec.task(task.type).env, **dict.fromkeys(_THREADS, threads)}
        program = environment.program(plan, task)
        python = program if program.rpartition("/")[2].startswith("python") else plan.python
        argv, env = interpreter.asked(python, [str(PROGRAM)], {**view.environ, **given}, plan.cwd)
        log = plan.attempt.agents_log
        return view.wrapped(task, Program(argv, env, Path(interpreter.ROOT), log, own=given.keys))
