"""What the log of the agents says of one that could not start or go on. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What srun and slurmstepd say of every end, whatever was the cause.
_NOISE = re.compile(
    r"srun: (cluster configuration lacks|launch/slurm: |Job step aborted|Force Terminated|error: \S+: tasks? [\d,-]+: )"
    r"|slurmstepd\S*: error: \*\*\* STEP "
)
# gridtf: agent on n3: cannot write …      slurmstepd-n3: error: execve(): …
_OF_HOST = re.compile(r"gridtf: agent on (?P<ours>\S+): |slurmstepd-(?P<slurms>[^\s:]+): (?:error: )?")

_ELSEWHERE = "the Python that gridtf runs under has to lie where all hosts see it, and to be everybody's to run"
# A piece of a line -> what to do.
_HINTS = (
    ("No module named 'gridtf", "gridtf has to lie where all hosts see it, such as in the home folder"),
    ("Too many open files", "the limit on open files is too low there: ulimit -n, or the site's own"),
    ("file descriptors", "the limit on open files is too low there: ulimit -n, or the site's own"),
    ("Permission denied", _ELSEWHERE),
    ("No such file or directory", _ELSEWHERE),
    ("not found", _ELSEWHERE),
)


def telling(lines: Sequence[str], host: str | None) -> list[str]:
    """The lines that may say why the agent of this host has ended; host: None where nobody knows which one it was."""
    return [
        line for line in lines if line.strip() and not _NOISE.match(line) and (not host or _host(line) in (None, host))
    ]


def cause(lines: Sequence[str]) -> str:
    """The one line that says it: the first of an agent's own, or the last of a program that could not start it."""
    own = [line for line in lines if (match := _OF_HOST.match(line)) and match["ours"]]
    return _OF_HOST.sub("", (own or list(lines[-1:]) or [""])[0], count=1)


def advice(line: str) -> str:
    """What to do about it; empty where nobody knows."""
    return next((hint for piece, hint in _HINTS if piece in line), "")


def _host(line: str) -> str | None:
    match = _OF_HOST.match(line)
    return (match["ours"] or match["slurms"]) if match else None
