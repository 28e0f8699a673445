"""The agents of a Grid Engine job, on other hosts by qrsh -inherit, and its own sge_shepherd: qrsh(1), sge_pe(5)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from gridtf.errors import GridtfError, HostLostError, SchedulerError
from gridtf.host import procfs
from gridtf.host.names import short_name
from gridtf.host.processes import signal_name
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT
from gridtf.schedulers.api import AgentCall, AgentEnd

# A task of a parallel job that a signal ends may end the whole job: this outer process exits by itself.
_OUTER = ("/bin/sh", "-c", "trap '' USR1 USR2; \"$@\"; exit $?", "sh")

_QRSH = ["-inherit", "-noshell", "-v"]

# The outer process got SIGHUP: the kernel sends it when the process that owns the terminal has died.
_HUNG_UP = 128 + signal.SIGHUP

# What qrsh prints when it cannot start a task -> a hint.
_START_FAILURES = (
    (
        "didn't accept task|cannot start|not allowed|not permitted",
        "does the PE allow it (`qconf -sp {pe}`: control_slaves TRUE)? does another qrsh of this job run there?",
    ),
    (
        "got send error|can't find connection|unable to contact|connection refused",
        "does sge_execd run on {host} (`qhost -h {host}`)?",
    ),
    ("can't resolve", "is the host known by this name on all hosts?"),
)

# qrsh could not reach sge_execd, so nothing has been started: the daemon may only be down for a restart.
_NOT_SENT = "failed sending task to execd"


def qrsh_command(qrsh: str, host: str, call: AgentCall) -> list[str]:
    """The command that starts the agent of one other host of the job: qrsh(1).

    ``-noshell``, because a shell would parse the arguments once more. qrsh forwards no environment: its ``-v`` would
    take commas in values for separators.

    Args:
        qrsh: The path of qrsh.
        call: How to start an agent.
    """
    words = [*_OUTER, *call.command, host, *call.arguments]
    return [qrsh, *_QRSH, f"{NEEDS_ENVIRONMENT}=1", host, *words]


def host_of(pid: int) -> str:
    """The host where a process of qrsh_command, given by its id, starts an agent; empty for any other process."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        if words[1:4] == _QRSH:
            return words[5]
    return ""


def agent_end(host: str, pe: str, code: int, printed: Sequence[str]) -> AgentEnd:
    """How the agent of a host ended.

    Args:
        pe: The parallel environment of the job, for hints.
        code: qrsh's exit code, or minus the signal that ended it. It is the agent's, except that qrsh exits with 0 when
            it loses the connection.
        printed: What qrsh and the agent printed.
    """
    name = re.compile(rf"\b{re.escape(short_name(host))}\b")
    messages = [line for line in printed if not line.startswith("gridtf:") and name.search(line.lower())][-3:]
    why = "; ".join(messages)
    error: GridtfError | None
    if code < 0:
        what = f"qrsh, the connection to host {host}, was killed by {signal_name(-code)}"
        error = GridtfError(what, hint="was it killed by hand?")
    elif code == 0:  # the launcher has not told the agent to end, so qrsh has lost it
        hint = "has the host crashed, or was sge_shepherd killed there?"
        error = HostLostError(f"the connection to host {host} is lost", why=why, hint=hint, host=host)
    elif code == _HUNG_UP:
        what = (
            f"the process that started the agent on host {host} was killed: its sge_shepherd, or all of the job there"
        )
        error = GridtfError(what, hint="by hand, or by the kernel because memory ran out: see dmesg on that host")
    else:
        hints = (hint for pattern, hint in _START_FAILURES if re.search(pattern, why, re.IGNORECASE))
        hint = next(hints, "").format(pe=pe, host=host)
        what = f"Grid Engine has not started the agent on host {host}"
        error = SchedulerError(what, why=why, hint=hint) if hint else None
    again = code > 0 and _NOT_SENT in why
    return AgentEnd(code if code <= _HUNG_UP else 128 - code, host, tuple(messages), error, again)


# --- the job script's sge_shepherd -------------------------------------------------------------------------------

# When it is killed, Grid Engine considers the job ended, and may start it again.
_SHEPHERD = "sge_shepherd"
_POLL_INTERVAL = 0.5  # seconds


def shepherd_pid() -> int | None:
    """The pid of the nearest sge_shepherd among this process's ancestors; None without one."""
    return next((pid for pid in procfs.ancestors(os.getpid()) if procfs.name(pid) == _SHEPHERD), None)


class ShepherdWatch:
    """An AgentHandle without an agent: it ends when the job script loses its shepherd.

    Args:
        host: What Grid Engine calls this host, for messages.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._pid = shepherd_pid()
        self._terminated = False
        self._polled = float("-inf")

    def poll(self) -> AgentEnd | None:
        if self._terminated:
            return AgentEnd(0, None)
        if self._pid is None or time.monotonic() - self._polled < _POLL_INTERVAL:
            return None
        self._polled = time.monotonic()
        if self._pid in procfs.ancestors(os.getpid()):
            return None
        what = f"the job script on host {self._host}, or the {_SHEPHERD} that had started it, was killed"
        return AgentEnd(1, None, (), GridtfError(what, hint="by hand? Grid Engine may start the job again"))

    def terminate(self) -> None:
        self._terminated = True

    kill = terminate
