"""Asks a running job to start a command beside one of its tasks, and connects to it (gridtf exec)."""

from __future__ import annotations

import os
import socket
import ssl
import time

from gridtf.errors import GridtfError, NotFoundError, UsageError, nearest
from gridtf.host import encrypted
from gridtf.jobspec.config import forbidden_by_site
from gridtf.observe import jobs
from gridtf.observe.ask import Question, ask, need_allowed, not_running
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import JOINED, Attempt, Record, RunDir, listdir, read_record
from gridtf.states import JobState, TaskState
from gridtf.text import some

_QUESTION = Question("exec", "so that nothing can run beside its tasks")
_CONNECT_LIMIT = 15.0  # seconds until a host counts as one that cannot be reached
_TRY_LIMIT = 5.0  # seconds for one of its addresses
_PAUSE = 0.5  # seconds until its addresses are tried again


def task_of(run: RunDir, name: str | None) -> str:
    """The task beside which a command is to run.

    Args:
        name: The task, such as ``worker:1``; None: the job's only one.

    Raises:
        GridtfError: When the job or the task does not run, or joined another one.
        NotFoundError: When there is no such task.
        RunDirError: When the job is another user's.
        UsageError: When there are several, and none is named.
    """
    registry.need_run(run)
    registry.need_one_job(run, _QUESTION.command)
    need_allowed(run)
    view = jobs.view(run)
    if any(entry.startswith(JOINED) for entry in listdir(run.path)):
        why = "its tasks called gridtf_join: another program has started them, and gridtf has no agent on their hosts"
        raise GridtfError(f"nothing can run beside the tasks of job {view.name}", why=why)
    if view.state != JobState.RUNNING:
        raise not_running(view, _QUESTION.without)
    tasks = {task.name: task for task in view.tasks}
    names = [*tasks]
    if name is None and len(names) != 1:
        raise UsageError("which task is meant?", why=f"choose from: {some(names)}" if names else "none has started yet")
    found = tasks.get(name or names[0])
    if found is None:
        hint = nearest(str(name), names)
        raise NotFoundError(f"no such task: {name}", why=f"choose from: {some(names)}", hint=hint)
    if found.state != TaskState.RUNNING:
        when = time.strftime(" at %H:%M:%S", time.localtime(found.ended)) if found.ended else ""
        how = found.signal or (f"exit code {found.exit}" if found.exit is not None else "")
        why = ": ".join(filter(None, (f"{found.state}{when}", how)))
        raise GridtfError(f"{found.name} is not running", why=why, hint=f"its log: {found.log}" if found.log else "")
    return found.name


def start(run: RunDir, order: Record) -> Record:
    """Have a command started beside a task, as far as it then waits for a connection.

    Args:
        order: Of the kind recordtypes.ExecOrder.

    Returns:
        Where it waits: of the kind recordtypes.ExecState, with ``host`` and its ``addresses``.

    Raises:
        GridtfError: When the site forbids it, the job does not run or does not answer, or its host refuses.
        RunDirError: When the job is another user's.
    """
    if forbidden := forbidden_by_site("exec", os.environ):
        raise GridtfError("this site does not allow commands beside running tasks", why=forbidden)
    name = os.urandom(8).hex()

    def answer(attempt: Attempt, nonce: str) -> Record | None:
        found = read_record(attempt.exec_answers, recordtypes.ExecAnswers, nonce=nonce, own=True)
        return found["answers"].get(name) if found else None

    found = ask(run, _QUESTION, {"id": name, **order}, lambda attempt: attempt.exec_request(name), answer)
    if "port" not in found:
        raise GridtfError(f"nothing can run beside {order['task']}", why=found.get("error", ""))
    return found


def connect(found: Record, own: bytes) -> ssl.SSLSocket:
    """Connect to a command that waits, and prove to each other who both are.

    Args:
        found: As start returns it.
        own: The key and the certificate of this process, as encrypted.identity returns them.

    Raises:
        GridtfError: When its host cannot be reached.
    """
    context, end, why = (
        encrypted.context(own, found["certificate"], server=False),
        time.monotonic() + _CONNECT_LIMIT,
        "",
    )
    while time.monotonic() < end:
        for address in found["addresses"]:
            try:
                plain = socket.create_connection((address, found["port"]), timeout=_TRY_LIMIT)
                encrypted.keep_alive(plain)
                return context.wrap_socket(plain)
            except OSError as error:
                why = f"{address} port {found['port']}: {error.strerror or error}"
        time.sleep(_PAUSE)
    raise GridtfError(
        f"host {found['host']} cannot be reached from {os.uname().nodename}",
        why=why,
        hint="does a firewall let only hosts of the cluster connect to its ports? then try it from one of these",
    )
