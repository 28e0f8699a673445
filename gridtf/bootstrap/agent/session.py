"""A command that a user runs beside a task: a process of its own waits for the user's connection, and serves it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import termios
import time
from collections.abc import Sequence

from gridtf import contract
from gridtf.bootstrap.agent.supervisor import Program, Supervisor, explain
from gridtf.bootstrap.system import System
from gridtf.host import encrypted, processes, sockets
from gridtf.host.encrypted import EXIT, NOTE, SIGNAL, SIZE, STDERR, STDIN, STDOUT, Relay
from gridtf.run.rundir import Record
from gridtf.schedulers.api import LOOPBACK

_CONNECT_LIMIT = 30.0  # seconds for the user's connection
_MOST_VISITORS = 32  # connections at once that have not proved to be the user's; the oldest makes room for another
_GRACE = 2.0  # seconds from SIGHUP, or from SIGTERM to what the command has left, to SIGKILL
_HURRIED = 0.5  # the same where the job ends
_LAST_LOOK = 10.0  # seconds for the other side to close a connection on which all was said
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What only the task itself may do, also in its container: share its port with other servers, and report as the task.
_OF_THE_TASK = (contract.REUSE_PORT, contract.LOCAL_DIR)


def serve(agent: socket.socket, order: Record, program: Program, address: str, parent: int) -> None:
    """Run a command for a user, in this process, a new child of the agent. It ends with the agent.

    Tells the agent, in lines of JSON, where it listens, why it cannot, and how the command has ended.

    Args:
        order: The command, as in messages.EXEC.
        program: What the task runs.
        address: This host's address; where that is LOOPBACK, nobody else connects.
        parent: The id of the agent.
    """
    processes.die_with_parent(parent, signal.SIGKILL)
    processes.become_subreaper()
    processes.keep_only([agent.fileno()])
    ends: list[int] = []  # signals that end the job
    for number in _ENDING:
        signal.signal(number, lambda number, _: ends.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # it ends a wait
    processes.unblock_signals()

    def tell(**state: object) -> None:
        agent.sendall(json.dumps(state).encode() + b"\n")

    try:
        secret, certificate = encrypted.identity()
        context = encrypted.context(secret, order["certificate"], server=True)
        with socket.create_server((LOOPBACK, 0)) if address == LOOPBACK else sockets.bound() as listener:
            listener.listen(_MOST_VISITORS)
            tell(port=listener.getsockname()[1], certificate=certificate)
            connection = meet(listener, context, time.monotonic() + _CONNECT_LIMIT, ends)
        tell(exit=_Session(connection, order, program, ends).run() if connection else None)
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")


def meet(
    listener: socket.socket, context: ssl.SSLContext, deadline: float, ends: Sequence[int] = ()
) -> ssl.SSLSocket | None:
    """Wait for the one whose certificate is known; what others send, or do not send, keeps nobody waiting.

    Args:
        listener: Where they connect.
        context: As encrypted.context makes it.
        deadline: Until when to wait, by the monotonic clock.
        ends: Not empty as soon as nobody is to be waited for any more.

    Returns:
        The connection; None where nobody has come.
    """
    listener.setblocking(False)
    visitors: list[ssl.SSLSocket] = []
    try:
        while time.monotonic() < deadline and not ends:
            readable, _, _ = select.select([listener, *visitors], [], [], 0.5)
            if listener in readable:
                with contextlib.suppress(OSError):  # it is gone again
                    accepted = listener.accept()[0]
                    accepted.setblocking(False)
                    encrypted.keep_alive(accepted)
                    visitors.append(context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False))
            for one in [one for one in visitors if one in readable]:
                try:
                    one.do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                except OSError:  # somebody else
                    visitors.remove(one)
                    one.close()
                else:
                    visitors.remove(one)
                    return one
            for late in visitors[:-_MOST_VISITORS]:
                visitors.remove(late)
                late.close()
    finally:
        for one in visitors:
            one.close()
    return None


class _Session:
    """A command and the connection of its user. ends: signals that end the job, as they come."""

    def __init__(self, connection: ssl.SSLSocket, order: Record, program: Program, ends: Sequence[int]) -> None:
        self._connection, self._order, self._program, self._ends = connection, order, program, ends
        self._supervisor = Supervisor([], System())
        self._terminal: int | None = None  # this process's side of it

    def run(self) -> int:
        """Run the command to its end, with no process left; returns its exit code, as of a shell."""
        argv = [*self._program.entrance, *self._order["command"]]
        env = {name: text for name, text in self._program.env.items() if not name.endswith(_OF_THE_TASK)}
        if self._order["tty"]:
            env["TERM"] = self._order["term"]
        try:
            pid, relay = self._start(argv, env)
        except OSError as error:
            code, relay = 127 if isinstance(error, FileNotFoundError) else 126, Relay(self._connection, {}, {})
            relay.send(STDERR, f"gridtf: {explain(error, argv[0], self._program.cwd, env)}\n".encode())
        else:
            code = self._supervise(pid, relay)
        relay.send(EXIT, bytes([code]))
        said = time.monotonic()
        while not relay.closed and not (relay.sent and time.monotonic() - said > _LAST_LOOK):
            if self._ends and time.monotonic() - said > _HURRIED:
                break
            relay.step(0.1)
        with contextlib.suppress(OSError):
            self._connection.close()
        return code

    def _start(self, argv: Sequence[str], env: dict[str, str]) -> tuple[int, Relay]:
        parent, tty, stdin = os.getpid(), self._order["tty"], self._order["stdin"]

        def child() -> None:
            processes.die_with_parent(parent, signal.SIGKILL)
            if tty:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            processes.unblock_signals()

        theirs: list[int] = []
        ours = {STDIN: -1, STDOUT: -1, STDERR: -1}
        if tty:
            self._terminal, theirs_only = os.openpty()
            theirs = [theirs_only] * 3
            self._resize(encrypted.Size.pack(*self._order["size"]))
            ours = {STDIN: os.dup(self._terminal), STDOUT: self._terminal}
        else:
            (given, ours[STDIN]), (ours[STDOUT], out), (ours[STDERR], err) = os.pipe(), os.pipe(), os.pipe()
            theirs = [given, out, err]
            if not stdin:
                os.close(ours.pop(STDIN))
        try:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=self._program.cwd,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                start_new_session=True,
                preexec_fn=child,  # safe: this process has one thread
            )
        finally:
            for descriptor in {*theirs}:
                os.close(descriptor)
        process.returncode = 0  # reaped by the supervisor
        for descriptor in ours.values():
            os.set_blocking(descriptor, False)
        sinks = {STDIN: ours.pop(STDIN)} if STDIN in ours else {}
        return process.pid, Relay(self._connection, {one: kind for kind, one in ours.items()}, sinks)

    def _supervise(self, pid: int, relay: Relay) -> int:
        """Serve until the command has ended, or its user or the job has."""
        supervisor, others = self._supervisor, self._supervisor.others
        others[pid] = None
        begun, grace = float("inf"), _GRACE  # when it was told to end, and how long it has for that
        while others[pid] is None and time.monotonic() - begun < grace:
            relay.step(0.1 if begun < float("inf") else 1.0)
            for kind, data in relay.news():
                self._take(kind, data, pid)
            supervisor.collect()
            if begun == float("inf") and (relay.closed or self._ends):
                begun = time.monotonic()
                if self._ends:
                    grace = _HURRIED
                    relay.send(NOTE, b"the job ends, and what runs beside its tasks with it")
                self._signal(pid, signal.SIGHUP)
                self._signal(pid, signal.SIGCONT)
        code = others.pop(pid)
        survivors = supervisor.tear_down(0.0 if code is None else grace, lambda: relay.step(0.0))
        while relay.sources and not relay.closed and not survivors:  # the user may read slowly
            relay.step(0.5)
        code = -signal.SIGKILL if code is None else code
        return code if code >= 0 else 128 - code

    def _take(self, kind: int, data: bytes, pid: int) -> None:
        if kind == SIZE and len(data) == encrypted.Size.size:
            self._resize(data)
        elif kind == SIGNAL and len(data) == 1 and 0 < data[0] < signal.NSIG:
            self._signal(pid, data[0])

    def _resize(self, size: bytes) -> None:
        if self._terminal is not None:
            lines, columns = encrypted.Size.unpack(size)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(pid, number)
