"""Grid Engine's commands: their paths, and their messages when the qmaster does not answer.

Pure, except for the file system below SGE_ROOT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.schedulers.batch import Answer

# unable to send message to qmaster using port 6444 on host "sge0": got send error
# commlib error: got select error (Connection refused)
# failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
_NO_QMASTER = re.compile(
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
_OPENING = re.compile(r"^((critical )?error|fatal|warning|unable to run job): *", re.IGNORECASE)
_CLOSING = ("", "Exiting.", "Unable to run job.")


def locate(command: str, environ: Mapping[str, str]) -> str:
    """Locate a command of Grid Engine.

    In a job, PATH has no commands of Grid Engine, but SGE_BINARY_PATH names their folder. On a login node, commands
    below SGE_ROOT are preferred to those on PATH, where some distributions put slow shell scripts.

    Args:
        command: Its name, such as ``qstat``.
        environ: The environment with SGE_BINARY_PATH and SGE_ROOT.

    Returns:
        Its path; its bare name when it is in none of these folders.
    """
    folders = [Path(environ["SGE_BINARY_PATH"])] if environ.get("SGE_BINARY_PATH") else []
    if environ.get("SGE_ROOT"):
        folders += sorted(Path(environ["SGE_ROOT"], "bin").glob("*"))
    return next((str(folder / command) for folder in folders if os.access(folder / command, os.X_OK)), command)


def unreachable(answer: Answer) -> bool:
    """Whether a command, or libdrmaa, reports that it cannot reach the qmaster of its cell, or finds no cell."""
    text = f"{answer.err}\n{answer.out}"
    return _NO_QMASTER.search(text) is not None or _NO_CELL.search(text) is not None


def message(answer: Answer) -> str:
    """The most specific line of a command's error messages, without prefixes such as ``error:``."""
    lines = _lines(f"{answer.err}\n{answer.out}")
    specific = [line for line in reversed(lines) if _NO_QMASTER.search(line)]
    specific += [line for line in lines if _NO_CELL.search(line)] + _lines(answer.err or answer.out)[-1:]
    return specific[0] if specific else f"exit code {answer.code}"


def no_answer(text: str, environ: Mapping[str, str], hint: str) -> SchedulerError:
    """The error for commands that cannot reach the qmaster of their cell, or find no cell.

    Args:
        text: Their error message.
        environ: Their environment.
        hint: What to do about a qmaster that does not answer.
    """
    if _NO_CELL.search(text) and not _NO_QMASTER.search(text):
        return SchedulerError(
            f"Grid Engine's commands do not find their cell: {text}",
            hint="load Grid Engine's settings: `source $SGE_ROOT/$SGE_CELL/common/settings.sh` or `module load`",
        )
    host = _qmaster(environ)
    return SchedulerError(f"Grid Engine's qmaster{f' on {host}' if host else ''} does not answer: {text}", hint=hint)


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [plain for line in lines if line not in _CLOSING and (plain := _OPENING.sub("", line))]


def _qmaster(environ: Mapping[str, str]) -> str:
    """The host in $SGE_ROOT/$SGE_CELL/common/act_qmaster; empty where it cannot be read."""
    file = Path(environ.get("SGE_ROOT") or "/", environ.get("SGE_CELL") or "default", "common/act_qmaster")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
