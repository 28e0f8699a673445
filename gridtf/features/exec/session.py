"""A command that a user runs beside a task: a process of its own waits for the user's connection, and serves it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import ssl
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from gridtf import contract
from gridtf.bootstrap.agent.supervisor import Program, Supervisor, explain
from gridtf.bootstrap.system import System
from gridtf.host import encrypted, processes, sockets
from gridtf.host.encrypted import EXIT, SIZE, STDERR, STDIN, STDOUT, Relay
from gridtf.run.rundir import Record, write_record
from gridtf.schedulers.api import LOOPBACK

_CONNECT_LIMIT = 30.0  # seconds for the user's connection
_MOST_VISITORS = 32  # connections at once that have not proved to be the user's; the oldest makes room for another
_GRACE = 2.0  # seconds from SIGHUP, or from SIGTERM to what the command has left, to SIGKILL
_LAST_LOOK = 10.0  # seconds for the other side to close a connection on which all was said
# What only the task itself may do, also in its container: share its port with other servers, and report as the task.
_OF_THE_TASK = (contract.REUSE_PORT, contract.LOCAL_DIR)


def serve(order: Record, program: Program | None, answer: Path, where: Record) -> int | None:
    """Run a command for a user in this process, a new child of the agent, and leave none.

    Args:
        order: The command, of the kind recordtypes.ExecRequest.
        program: What the task runs; None: it does not run any more.
        answer: The file for where this process waits, or why it does not.
        where: What else is in it: the nonce of the attempt, the host and its addresses.

    Returns:
        The exit code of the command, as of a shell; None where it was not run.
    """
    try:
        if program is None:
            raise ProcessLookupError(f"{order['task']} does not run any more on host {where['host']}")
        own, certificate = encrypted.identity()
        context = encrypted.context(own, order["certificate"], server=True)
        local = LOOPBACK in where["addresses"]
        with socket.create_server((LOOPBACK, 0)) if local else sockets.bound() as listener:
            listener.listen(_MOST_VISITORS)
            port = listener.getsockname()[1]
            write_record(answer, {**where, "port": port, "certificate": certificate}, mode=0o600)
            connection = meet(listener, context, time.monotonic() + _CONNECT_LIMIT)
            answer.unlink(missing_ok=True)
    except Exception as error:
        write_record(answer, {**where, "error": str(error)}, mode=0o600)
        return None
    return _run(connection, order, program) if connection else None


def meet(listener: socket.socket, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket | None:
    """Wait for the user whose certificate is known; no other connection, talking or silent, delays that one.

    Args:
        listener: Where they connect.
        context: As encrypted.context makes it.
        deadline: Until when to wait, by the monotonic clock.

    Returns:
        The connection; None where the user has not come.
    """
    visitors: list[ssl.SSLSocket] = []
    user = None
    while user is None and (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([listener, *visitors], [], [], left)
        if listener in readable:
            with contextlib.suppress(OSError):  # it is gone again
                accepted = listener.accept()[0]
                accepted.setblocking(False)
                visitors.append(context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False))
        for one in {*visitors} & {*readable}:
            try:
                one.do_handshake()
                user = one
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError:  # another process
                one.close()
            visitors.remove(one)
        for late in visitors[:-_MOST_VISITORS]:
            late.close()
            visitors.remove(late)
    for one in visitors:
        one.close()
    return user


def _run(connection: ssl.SSLSocket, order: Record, program: Program) -> int:
    """Run the command to its end, with no process left; returns its exit code."""
    terminal = -1
    if order["term"]:
        terminal, slave = os.openpty()
        theirs, sources, sinks = [slave] * 3, {terminal: STDOUT}, {STDIN: os.dup(terminal)}
    else:
        (given, gives), (out, prints), (err, complains) = os.pipe(), os.pipe(), os.pipe()
        theirs, sources, sinks = [given, prints, complains], {out: STDOUT, err: STDERR}, {STDIN: gives}
    os.set_blocking(sinks[STDIN], False)
    relay = Relay(connection, sources, sinks)

    def end(*_: object) -> None:  # with the job, as if the user had gone
        relay.closed = True

    signal.signal(signal.SIGTERM, end)
    while terminal >= 0 and not relay.news and not relay.closed:  # the size is that of the user's from the start on
        relay.step()
    _resize(terminal, relay)
    argv = [*program.entrance, *order["command"]]
    env = {name: text for name, text in program.env.items() if not name.endswith(_OF_THE_TASK)}
    env |= {"TERM": order["term"]} if order["term"] else {}
    try:
        code = _supervise(_started(argv, env, program.cwd, theirs), relay, terminal)
    except OSError as error:
        relay.send(STDERR, f"gridtf: {explain(error, argv[0], program.cwd, env)}\n".encode())
        code = 127 if isinstance(error, FileNotFoundError) else 126
    relay.send(EXIT, bytes([code]))
    said = time.monotonic()
    while not relay.closed and (relay.unsent or time.monotonic() - said < _LAST_LOOK):
        relay.step()
    connection.close()
    return code


def _started(argv: Sequence[str], env: dict[str, str], cwd: Path, theirs: Sequence[int]) -> int:
    """Start the command with these standard streams, which are closed here; returns the id of its process."""
    parent = os.getpid()

    def child() -> None:
        processes.die_with_parent(parent, signal.SIGKILL)
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        processes.unblock_signals()

    streams = dict(zip(("stdin", "stdout", "stderr"), theirs, strict=True))
    try:
        # safe: this process has one thread
        process = subprocess.Popen(argv, env=env, cwd=cwd, **streams, start_new_session=True, preexec_fn=child)  # type: ignore[call-overload]
    finally:
        for descriptor in {*theirs}:
            os.close(descriptor)
    process.returncode = 0  # reaped by the supervisor
    return int(process.pid)


def _supervise(pid: int, relay: Relay, terminal: int) -> int:
    """Serve until the command has ended, or its user or the job has. Returns its exit code."""
    supervisor = Supervisor([], System())
    others = supervisor.others
    others[pid] = None
    gone = float("inf")  # since when the user is gone
    while others[pid] is None and time.monotonic() - gone < _GRACE:
        relay.step()
        _resize(terminal, relay)
        supervisor.collect()
        if relay.closed and gone == float("inf") and others[pid] is None:
            gone = time.monotonic()
            for number in (signal.SIGHUP, signal.SIGCONT):
                os.killpg(pid, number)
    code = others.pop(pid)
    survivors = supervisor.tear_down(0.0 if code is None else _GRACE, relay.step)
    while relay.sources and not relay.closed and not survivors:  # the user may read slowly
        relay.step()
    code = -signal.SIGKILL if code is None else code
    return code if code >= 0 else 128 - code


def _resize(terminal: int, relay: Relay) -> None:
    for kind, size in relay.news:
        if kind == SIZE and terminal >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    relay.news.clear()
