"""The log of the agents: why one could not start or go on. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

# Lines that srun and slurmstepd print whatever the cause of an end was. Compiled only when an agent has failed.
_NOISE = (
    r"srun: (cluster configuration lacks|launch/slurm: |Terminating |Job step aborted|Force Terminated|"
    r"error: \S+: tasks? [\d,-]+: )|(slurmstepd\S*:|\[[\dT:.-]+\]) error: \*\*\* STEP "
)
# gridtf: agent on n3: cannot write …      slurmstepd-n3: error: execve(): …
# [2026-11-25T19:56:03.248] error: execve(): …                                    slurmstepd of Slurm 26.05
_OF_HOST = r"gridtf: agent on (?P<ours>\S+): |slurmstepd-(?P<slurms>[^\s:]+): (?:error: )?|\[[\dT:.-]+\] error: "

_ELSEWHERE = "the Python that runs gridtf must be visible and executable on all hosts"
# Where slurmstepd cannot execute a program, the error of execve(2) is the exit code; what it prints may be lost.
_NOT_EXECUTED = errno.ENOENT, errno.EACCES
# A substring of a line -> the hint.
_AGENT_HINTS = (
    ("No module named 'gridtf", "gridtf must be installed where all hosts see it, such as in the home directory"),
    ("Too many open files", "the limit on open files is too low on that host: see ulimit -n, or the site's limit"),
    ("file descriptors", "the limit on open files is too low on that host: see ulimit -n, or the site's limit"),
    ("Permission denied", _ELSEWHERE),
    ("No such file or directory", _ELSEWHERE),
    ("not found", _ELSEWHERE),
)


def relevant(lines: Sequence[str], host: str | None) -> list[str]:
    """Select the lines that may explain why an agent has ended.

    Args:
        lines: Lines of the log of the agents.
        host: The host of the agent; None where it is unknown.
    """
    lines = [line for line in lines if line.strip() and not re.match(_NOISE, line)]
    return [line for line in lines if not host or _host(line) in (None, host)]


def agent_cause(lines: Sequence[str], code: int = 0) -> str:
    """The line with the cause: the first that an agent printed, else the last that srun or qrsh printed.

    Args:
        lines: As relevant returns them.
        code: The exit code of the agent, which may say it where there are no lines.

    Returns:
        The line without the name of its program; empty where nothing is known.
    """
    if not lines and code in _NOT_EXECUTED:
        return f"its Python could not be executed: {os.strerror(code)}"
    agents = [line for line in lines if (match := re.match(_OF_HOST, line)) and match["ours"]]
    return re.sub(_OF_HOST, "", (agents or list(lines[-1:]) or [""])[0], count=1)


def agent_hint(line: str) -> str:
    """The hint for a line of the log of the agents; empty where there is none."""
    return next((hint for piece, hint in _AGENT_HINTS if piece in line), "")


def _host(line: str) -> str | None:
    match = re.match(_OF_HOST, line)
    return (match["ours"] or match["slurms"]) if match else None
