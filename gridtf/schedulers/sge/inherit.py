"""Agents on the other hosts of a job, one ``qrsh -inherit`` each: qrsh(1), sge_pe(5)."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from gridtf.errors import GridtfError, HostLostError, SchedulerError
from gridtf.host.processes import signal_name
from gridtf.schedulers.agents import SENT
from gridtf.schedulers.base import AgentCall, AgentEnd
from gridtf.schedulers.sge.hostfile import short

# A task of a parallel job that a signal ends may take the whole job along: this outer process exits by itself.
_OUTER = ("/bin/sh", "-c", "trap '' USR1 USR2; \"$@\"; exit $?", "sh")

# The outer process got SIGHUP, as the kernel sends it when the one above it, that has the terminal, is gone.
_HUNG_UP = 128 + signal.SIGHUP

_REFUSED = re.compile(r"didn't accept task|cannot start|not allowed|not permitted", re.IGNORECASE)
_NO_EXECD = re.compile(r"got send error|unable to contact|connection refused", re.IGNORECASE)
_NO_NAME = re.compile(r"can't resolve", re.IGNORECASE)


def command(qrsh: str, host: str, call: AgentCall) -> list[str]:
    """qrsh for the agent of one host. qrsh: where it lies.

    -noshell: or a shell would read the words once more. qrsh takes no environment along; its -v could, but would have
    commas for separators.
    """
    words = [*_OUTER, *call.command, host, *call.arguments]
    return [qrsh, "-inherit", "-noshell", "-v", f"{SENT}=1", host, *words]


def blame(host: str, pe: str, code: int, printed: Sequence[str]) -> AgentEnd:
    """How the agent of a host has ended. code: qrsh's exit code, which is the agent's or a lie. printed: on its way."""
    words = [line for line in printed if _speaks_of(host, line)][-3:]
    if code < 0:
        killed = f"qrsh, the connection to host {host}, was killed by {signal_name(-code)}"
        return AgentEnd(code, host, tuple(words), GridtfError(killed, hint="was it killed by hand?"))
    if code == _HUNG_UP:
        return AgentEnd(code, host, tuple(words), _deserted(host))
    error = _known(host, pe, words) if code else _lost(host, words)
    return AgentEnd(code if code < 128 else 128 - code, host, tuple(words), error)


def _speaks_of(host: str, line: str) -> bool:
    return not line.startswith("gridtf:") and re.search(rf"\b{re.escape(short(host))}\b", line.lower()) is not None


def _known(host: str, pe: str, words: Sequence[str]) -> GridtfError | None:
    said = " ".join(words)
    what = f"Grid Engine has not started the agent on host {host}"
    if _REFUSED.search(said):
        hint = f"does the PE allow it (`qconf -sp {pe}`: control_slaves TRUE)? do others of this job's qrsh run there?"
    elif _NO_EXECD.search(said):
        hint = f"does sge_execd run on {host} (`qhost -h {host}`)?"
    elif _NO_NAME.search(said):
        hint = "is the host known by this name on all hosts?"
    else:
        return None
    return SchedulerError(what, why="; ".join(words), hint=hint)


def _deserted(host: str) -> GridtfError:
    what = f"what had started the agent on host {host} was killed: its sge_shepherd, or all of the job there"
    return GridtfError(what, hint="by hand, or by the kernel because memory ran out: see dmesg on that host")


def _lost(host: str, words: Sequence[str]) -> GridtfError:
    """0 although nobody has told the agent to end: what qrsh gives when the other side is gone."""
    hint = "has the host crashed, or has somebody killed sge_shepherd there?"
    return HostLostError(f"the connection to host {host} is lost", why="; ".join(words), hint=hint)
