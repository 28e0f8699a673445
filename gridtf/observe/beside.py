"""Asks a running job to start a command beside one of its tasks, and connects to it (gridtf exec)."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from gridtf import schedulers
from gridtf.errors import GridtfError, NotFoundError, OutputError, UsageError, nearest
from gridtf.host import encrypted
from gridtf.jobspec.config import forbidden_by_site
from gridtf.observe import jobs
from gridtf.observe.ask import ask, ending
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import JOINED, Record, RunDir, is_ours, listdir, read_record
from gridtf.schedulers.api import JobIdentity
from gridtf.states import TaskState
from gridtf.text import some

_CONNECT_LIMIT = 15.0  # seconds until a host counts as one that cannot be reached
_TRY_LIMIT = 5.0  # seconds for one of its addresses
_PAUSE = 0.5  # seconds until its addresses are tried again


def task_of(run: RunDir, name: str | None) -> str:
    """The task beside which a command is to run, where the job has tasks.

    Args:
        name: The task, such as ``worker:1``; None: the job's only one.

    Raises:
        GridtfError: When the task does not run, or joined another one.
        NotFoundError: When there is no such task.
        UsageError: When there are several, and none is named.
    """
    if any(entry.startswith(JOINED) for entry in listdir(run.path)):
        why = "its tasks called gridtf_join: another program has started them, and gridtf has no agent on their hosts"
        raise GridtfError(f"nothing can run beside the tasks in {run.path}", why=why)
    view = jobs.view(run)
    tasks = {task.name: task for task in view.tasks}
    choose = f"choose from: {some([*tasks])}"
    if name is None and len(tasks) > 1 and not view.finished:
        raise UsageError("which task is meant?", why=choose)
    found = tasks.get(name or next(iter(tasks), ""))
    if found is None and name and tasks:
        raise NotFoundError(f"no such task: {name}", why=choose, hint=nearest(name, [*tasks]))
    if found and found.state != TaskState.RUNNING and not view.finished:
        when = time.strftime(" at %H:%M:%S", time.localtime(found.ended)) if found.ended else ""
        how = found.signal or ("" if found.exit is None else f"exit code {found.exit}")
        raise GridtfError(f"{found.name} is not running", why=": ".join(filter(None, (f"{found.state}{when}", how))))
    return found.name if found else name or "worker:0"


def execute(
    run: RunDir,
    task: str,
    command: Sequence[str],
    *,
    term: str = "",
    stdin: bool = False,
    outputs: tuple[int, int] = (1, 2),
    attached: Callable[[encrypted.Relay], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Run a command beside a task, and copy what it prints until it has ended.

    Args:
        run: The run directory, of a job that this user may ask.
        task: The task, as task_of returns it.
        command: The program and its arguments.
        term: The kind of the terminal that it gets; empty: none.
        stdin: Whether it reads this process's standard input; otherwise its own is at its end.
        outputs: The descriptors for its standard output and standard error.
        attached: Makes what is around it while it runs.

    Returns:
        Its exit code.

    Raises:
        GridtfError: As start and connect do, and when the connection ends before the command.
        OutputError: When what it prints cannot be written.
    """
    own, certificate = encrypted.identity()
    about = {"task": task, "command": [*command], "term": term, "certificate": certificate}
    found = start(run, {**about, **registry.who()})
    sinks = dict(zip((encrypted.STDOUT, encrypted.STDERR), outputs, strict=True))
    codes: list[int] = []
    with connect(run, found, own) as connection:
        relay = encrypted.Relay(connection, {0: encrypted.STDIN} if stdin else {}, sinks)
        if not stdin:
            relay.send(encrypted.STDIN, b"")
        with attached(relay):
            while not (relay.closed or codes) or not relay.written:
                _step(relay)
                codes += [data[0] for kind, data in relay.news if kind == encrypted.EXIT]
        relay.leave()
    if codes:
        return codes[0]
    view = jobs.view(run)
    why = f"{view.state}: {view.reason}" if view.finished else "the job is ending, or its host is gone"
    hint = f"see `gridtf status {view.job_id or run.path}`"
    raise GridtfError(f"the connection with {task} on host {found['host']} has ended", why=why, hint=hint)


def _step(relay: encrypted.Relay) -> None:
    try:
        relay.step()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write what the command prints: {error.strerror}") from None


def start(run: RunDir, request: Record) -> Record:
    """Have a command started beside a task, as far as it then waits for a connection.

    Args:
        run: The run directory, of a job that this user may ask.
        request: Of the kind recordtypes.ExecRequest, without its id.

    Returns:
        Of the kind recordtypes.ExecAnswer, with a port.

    Raises:
        GridtfError: When the site forbids it, the job does not run or does not answer, or its host refuses.
    """
    if forbidden := forbidden_by_site("exec", os.environ):
        raise GridtfError("this site does not allow commands beside running tasks", why=forbidden)
    name = os.urandom(8).hex()
    found = ask(run, {"id": name, **request}, lambda attempt: attempt.exec_files(name), recordtypes.ExecAnswer)
    if "port" not in found:
        raise GridtfError(f"nothing can run beside {request['task']}", why=found.get("error", ""))
    return found


def connect(run: RunDir, found: Record, own: bytes) -> ssl.SSLSocket:
    """Connect to a command that waits, and prove to each other who both are.

    Where its host cannot be reached from here, the connection goes through a process that the scheduler starts there,
    if it can: that one copies what it cannot read.

    Args:
        run: The run directory.
        found: As start returns it.
        own: The key and the certificate of this process, as encrypted.identity returns them.

    Raises:
        GridtfError: When its host cannot be reached.
    """
    context, whys = encrypted.context(own, found["certificate"], server=False), []
    detour, end = _detour(run, found["host"]), time.monotonic() + _CONNECT_LIMIT
    while True:
        for address in found["addresses"]:
            try:
                return context.wrap_socket(socket.create_connection((address, found["port"]), timeout=_TRY_LIMIT))
            except OSError as error:
                whys = [f"{address} port {found['port']}: {error.strerror or error}"]
        if detour or time.monotonic() > end or ending(run.latest()):
            break
        time.sleep(_PAUSE)
    if detour:
        try:
            return context.wrap_socket(_through([*detour, *encrypted.COPY, str(found["port"])]))
        except OSError as error:
            whys.append(f"{detour[0]}: {error}")
    if why := ending(run.latest()):
        raise GridtfError(f"the job has ended what was to run on host {found['host']}", why=why)
    what = f"host {found['host']} cannot be reached from {os.uname().nodename}"
    hint = "does a firewall let only hosts of the cluster connect to its ports? then try it from one of these"
    raise GridtfError(what, why="; ".join(whys), hint=hint)


def _detour(run: RunDir, host: str) -> Sequence[str]:
    """The command with which the job's scheduler runs another one on a host of the job; empty: it has none."""
    submitted = read_record(run.submitted, recordtypes.Submitted, own=True) if is_ours(run.path) else None
    if not submitted or not submitted.get("job_id"):
        return ()
    return schedulers.get(submitted["scheduler"]).login.beside(JobIdentity.from_record(submitted), host)


def _through(command: Sequence[str]) -> socket.socket:
    """Start a process whose standard streams are a connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        # in a session of its own: Ctrl-C is for what runs at the other end
        subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
    ours.settimeout(_CONNECT_LIMIT)
    return ours
