"""Asks Grid Engine's commands, and tells a qmaster that does not answer from what it answers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.schedulers.client import Answer, NoAnswerError, ask

# unable to send message to qmaster using port 6444 on host "sge0": got send error
# commlib error: got select error (Connection refused)
# failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
_SILENT = re.compile(
    r"unable to (send message to|contact) qmaster|commlib error: (got|can't|error)|can't get connection|"
    r"can't connect to service|(failed|error) receiving gdi request|got (no|0) data from qmaster|"
    r"qmaster (is not|isn't) (running|reachable)",
    re.IGNORECASE,
)
# Please set the environment variable SGE_ROOT. · fopen("/opt/sge/default/common/bootstrap") failed: …
_NO_CELL = re.compile(
    r"environment variable SGE_ROOT|SGE_ROOT directory|SGE_CELL|cell directory|/common/(bootstrap|act_qmaster)|"
    r"SGE_QMASTER_PORT|could not get .*service",
    re.IGNORECASE,
)
_CLOSING = ("Exiting.", "Unable to run job.")


def program(name: str, environ: Mapping[str, str]) -> str:
    """Where a command of Grid Engine lies; its bare name where nobody knows.

    In a job PATH holds no commands of Grid Engine, but SGE_BINARY_PATH says where they are. On a login node those
    below SGE_ROOT are preferred to what is on the PATH: some distributions put slow shell scripts there.
    """
    folders = [Path(environ["SGE_BINARY_PATH"])] if environ.get("SGE_BINARY_PATH") else []
    if environ.get("SGE_ROOT"):
        folders += sorted(Path(environ["SGE_ROOT"], "bin").glob("*"))
    return next((str(folder / name) for folder in folders if os.access(folder / name, os.X_OK)), name)


def query(argv: Sequence[str], *, limit: float) -> Answer:
    """What a command of Grid Engine answers, whatever its exit code.

    argv: the command by its bare name, and its arguments. limit: seconds. Raises SchedulerError, whose message is one
    line, when the command is not there, knows no cell, or the qmaster does not answer.
    """
    name, *arguments = argv
    try:
        answer = ask([program(name, os.environ), *arguments], limit=limit)
    except NoAnswerError:
        raise silent(f"{name} has waited for {limit:g} s", os.environ) from None
    if answer.code:
        problem(f"{answer.err}\n{answer.out}", os.environ)
    return answer


def problem(text: str, environ: Mapping[str, str]) -> None:
    """Raise SchedulerError when this is what a command, or libdrmaa, says that cannot reach the qmaster of its cell."""
    lines = [_plain(line) for line in text.splitlines()]
    for line in reversed(lines):
        if _SILENT.search(line):
            raise silent(line, environ)
    for line in lines:
        if _NO_CELL.search(line):
            raise SchedulerError(
                f"Grid Engine's commands do not find their cell: {line}",
                hint="load Grid Engine's settings: `source $SGE_ROOT/$SGE_CELL/common/settings.sh` or `module load`",
            )


def silent(words: str, environ: Mapping[str, str]) -> SchedulerError:
    """The error for a qmaster that does not answer. words: what a command said of it."""
    host = _qmaster(environ)
    return SchedulerError(
        f"Grid Engine's qmaster{f' on {host}' if host else ''} does not answer: {words}",
        hint="jobs that run go on; try again later, or ask the administrators",
    )


def complaint(answer: Answer) -> str:
    """What a command complained of, in one line and without the words that every complaint begins or ends with."""
    lines = [line for raw in (answer.err or answer.out).splitlines() if (line := _plain(raw))]
    return lines[-1] if lines else f"exit code {answer.code}"


def _plain(line: str) -> str:
    line = line.strip()
    if line in _CLOSING:
        return ""
    return re.sub(r"^((critical )?error|fatal|warning|unable to run job): *", "", line, flags=re.IGNORECASE)


def _qmaster(environ: Mapping[str, str]) -> str:
    """The host in $SGE_ROOT/$SGE_CELL/common/act_qmaster; empty where nobody says it."""
    file = Path(environ.get("SGE_ROOT") or "/", environ.get("SGE_CELL") or "default", "common/act_qmaster")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
