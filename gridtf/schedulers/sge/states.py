"""Grid Engine's job states and the ends in its accounting, in ours and in words: sge_status(5). Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PENDING,
    RUNNING,
    TIMEOUT,
    UNKNOWN,
    JobStatus,
)

SUSPENDED = {
    "s": "suspended: qmod -usj lets it go on",
    "S": "suspended with its queue",
    "T": "suspended because its host is overloaded",
    "N": "suspended: some of what it holds is given to others meanwhile",  # these two are Altair's
    "P": "preempted: it goes on when what it held is free again",
}
_KNOWN = frozenset("qwhrtRdE").union(SUSPENDED)
_LIMITED, _KILLED, _AFTER_JOB, _EXIT_100, _RESCHEDULED = 37, 17, 100, 30, (24, 25)
# The shepherd or the host did not live to tell how the job ended, or nobody knows the job there.
_LOST = (19, 21, 22)
_ASKED_TIME, _ASKED_MEMORY = ("h_rt", "s_rt", "h_cpu", "s_cpu"), ("h_vmem", "s_vmem")
_DECIMAL = r"[0-9]{1,18}(?:\.[0-9]+)?"
_SIZES = {"": 1.0, "k": 1e3, "K": 1024.0, "m": 1e6, "M": 1024.0**2, "g": 1e9, "G": 1024.0**3, "T": 1024.0**4}


def ours(state: str) -> tuple[str, str]:
    """Grid Engine's state, such as ``Eqw``, as (our state, in words what it means where that says too little).

    A letter that is not in the manual page makes it UNKNOWN, named in the words.
    """
    letters = set(state)
    if not letters or letters - _KNOWN:
        return UNKNOWN, f"Grid Engine says {state or 'nothing'}"
    waits = bool(letters & {"q", "w"})
    if "d" in letters:
        return PENDING if waits else RUNNING, "it is being deleted"
    if "E" in letters:
        return PENDING, "in error"
    if waits:
        return PENDING, "held" if "h" in letters else ""
    for letter, words in SUSPENDED.items():
        if letter in letters:
            return RUNNING, words
    return RUNNING, ""


def seconds(text: str) -> int | None:
    """``90``, ``1:30`` or ``:1:30``, all in seconds: sge_types(1), TIME; None for INFINITY and anything else."""
    match = re.fullmatch(r"(?:(?:([0-9]{0,18}):)?([0-9]{0,18}):)?([0-9]{0,18})", text.strip())
    if match is None or not any(match.groups()):
        return None
    return int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)


def ended(said: Mapping[str, str]) -> JobStatus | None:
    """How a job has ended, from its record in the accounting; None when it has not, but was put back into the queue.

    said: what qacct prints of it, such as ``failed`` -> ``37  : qmaster enforced h_rt, h_cpu, or h_vmem limit``.
    """
    failed, words = _code(said.get("failed", "")), said.get("failed", "").partition(":")[2].strip()
    code = _code(said.get("exit_status", ""))
    if failed in _RESCHEDULED:
        return None
    if (by := said.get("deleted_by", "NONE")) not in ("", "NONE"):  # Univa's and Altair's
        return JobStatus(CANCELLED, f"by {by}")
    over = _over_a_limit(said, certain=failed == _LIMITED)
    if over is not None and failed in (_LIMITED, _KILLED, _AFTER_JOB):
        return over
    if failed in _LOST:
        return JobStatus(NODE_FAIL, f"its host {said.get('hostname', '')} has failed, or has forgotten it ({words})")
    if failed in (_KILLED, _AFTER_JOB) and code == 128 + signal.SIGUSR2:
        # -notify's warning before KILL, which the script did not live through: of limits the record would say 37
        return JobStatus(CANCELLED, "deleted with qdel")
    if failed in (_KILLED, _AFTER_JOB):
        return JobStatus(FAILED, _killed(code))
    if failed and failed != _EXIT_100:
        return JobStatus(FAILED, f"Grid Engine could not run it on {said.get('hostname', '')}: {words} ({failed})")
    if code:
        return JobStatus(FAILED, f"its script ended with exit code {code}")
    return JobStatus(COMPLETED)


def _code(text: str) -> int:
    """``100 : assumedly after job`` -> 100, ``137                  (Killed)`` -> 137."""
    match = re.match(r"[0-9]{1,9}(?![0-9])", text.strip())
    return int(match[0]) if match else 0


def _killed(code: int) -> str:
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"it was killed (exit code {code})"
    # Son of Grid Engine writes down the same for all of them
    why = ": by qdel, for a limit of its queue, or by somebody on its host" if name == "SIGKILL" else ""
    return f"it was killed by {name}{why}"


def _over_a_limit(said: Mapping[str, str], *, certain: bool) -> JobStatus | None:
    """The limit that it went over. certain: Grid Engine says that it was one."""
    # -u alice -l h_rt=3600,gpu=1 -pe mpi 8
    asked = dict(re.findall(r"([a-z_]\w*)=([^\s,]+)", said.get("category", "")))
    lasted = _number(said.get("ru_wallclock", "")) or 0.0
    for name in ("h_rt", "s_rt"):
        allowed = seconds(asked.get(name, ""))
        if allowed is not None and lasted >= allowed:
            return JobStatus(TIMEOUT, f"the walltime is over ({name}={asked[name]})")
    took = _size(said.get("maxvmem", ""))
    for name in _ASKED_MEMORY:
        most = _size(asked.get(name, ""))
        if most and took >= most * (_number(said.get("slots", "")) or 1):
            return JobStatus(OUT_OF_MEMORY, f"it took more memory than it had asked for ({name}={asked[name]})")
    if not certain:
        return None
    if any(name in asked for name in _ASKED_MEMORY) and not any(name in asked for name in _ASKED_TIME):
        return JobStatus(OUT_OF_MEMORY, "it took more memory than it may")
    return JobStatus(TIMEOUT, "the walltime, or the CPU time, of the job or of its queue is over")


def _number(text: str) -> float | None:
    match = re.match(_DECIMAL, text.strip())
    return float(match[0]) if match else None


def _size(text: str) -> float:
    """``4.773MB``, ``50M`` or ``21045248`` in bytes; 0 where it is none of them."""
    match = re.fullmatch(rf"({_DECIMAL})([kKmMgGT]?)B?", text.strip())
    return float(match[1]) * _SIZES[match[2]] if match else 0.0
