"""The check of this host before its tasks start (`check`): a program beside the agent measures, as the launcher orders.

It is a process of its own, run by the tasks' Python in the tasks' container: drivers, disks and packages may block it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket

from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.supervisor import Program, explain
from gridtf.bootstrap.plan import environment
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.host import processes

PROGRAM = environment.HOME / "hook" / "hostcheck.py"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_END_LIMIT = 5.0  # seconds for a process that was killed to leave the GPUs: one that a driver blocks never does
_MOST = 1 << 16  # bytes that are taken at once
_LONGEST = 300  # characters of what the program prints in place of an answer
_ANSWER = b'{"values": '  # begins an answer: libraries, and a Python that fails, print other lines


class HostCheck:
    """The agent's end of that process.

    Args:
        program: What it runs.
        state: The state of this host.
        talk: The conversation with the launcher.
        system: This host.
    """

    def __init__(self, program: Program, state: HostState, talk: Conversation, system: System) -> None:
        self._program, self._state, self._talk, self._system = program, state, talk, system
        self._pid = self._number = 0  # of the process, and of the last order
        self._waits, self._heard = False, b""

    def look(self) -> None:
        """Pass a new order on, and the answer to the last one, until the tasks may start."""
        if self._talk.rendezvous is not None:
            self._end()
            return
        order = self._talk.latest.get(messages.CHECK, {"number": 0})
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
            self._talk.send(messages.CHECKED, {**answer, "number": self._number})

    def _start(self) -> None:
        argv, env, cwd = self._program.argv, self._program.env, self._program.cwd
        self._line, theirs = socket.socketpair()
        processes.signal_at_end_of(self._line.fileno())
        with theirs:
            try:
                self._pid = self._system.start(argv, env, cwd=cwd, output=theirs.fileno(), given=theirs.fileno())
            except OSError as error:
                theirs.sendall(explain(error, argv[0], cwd, env).encode())

    def _end(self) -> None:
        """End the process, with all that it has started; the GPUs are free then."""
        if self._pid:
            self._system.signal([*self._system.descendants(self._pid), self._pid], signal.SIGKILL)
            self._line.close()
        deadline = self._system.monotonic() + _END_LIMIT
        while self._pid in self._system.children() and self._system.monotonic() < deadline:
            self._state.supervisor.collect()
            self._system.sleep(0.01)
