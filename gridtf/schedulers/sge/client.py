"""Grid Engine's commands: where they lie, and what they print when the qmaster of their cell does not answer. Pure but
for the file system below SGE_ROOT."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.schedulers.batch import Answer

# Patterns are not compiled until a command has failed: rendering has no use for them.
# unable to send message to qmaster using port 6444 on host "sge0": got send error
# commlib error: got select error (Connection refused)
# failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
_NO_QMASTER = (
    r"(?i)unable to (send message to|contact) qmaster|commlib error: (got|can't|error)|can't get connection|"
    r"can't connect to service|(failed|error) receiving gdi request|got (no|0) data from qmaster|"
    r"qmaster (is not|isn't) (running|reachable)"
)
# Please set the environment variable SGE_ROOT. · fopen("/opt/sge/default/common/bootstrap") failed: …
_NO_CELL = (
    r"(?i)environment variable SGE_ROOT|SGE_ROOT directory|SGE_CELL|cell directory|/common/(bootstrap|act_qmaster)|"
    r"SGE_QMASTER_PORT|could not get .*service"
)
_OPENING = r"(?i)^((critical )?error|fatal|warning|unable to run job): *"
_CLOSING = ("", "Exiting.", "Unable to run job.")


def locate(command: str, environ: Mapping[str, str]) -> str:
    """The path of a command of Grid Engine; its bare name where it is not found.

    In a job PATH holds no commands of Grid Engine, but SGE_BINARY_PATH says where they are. On a login node those
    below SGE_ROOT are preferred to those on PATH: some distributions put slow shell scripts there.
    """
    folders = [Path(environ["SGE_BINARY_PATH"])] if environ.get("SGE_BINARY_PATH") else []
    if environ.get("SGE_ROOT"):
        folders += sorted(Path(environ["SGE_ROOT"], "bin").glob("*"))
    return next((str(folder / command) for folder in folders if os.access(folder / command, os.X_OK)), command)


def unreachable(answer: Answer) -> bool:
    """Whether a command, or libdrmaa, says that it cannot reach the qmaster of its cell, or finds no cell."""
    text = f"{answer.err}\n{answer.out}"
    return re.search(_NO_QMASTER, text) is not None or re.search(_NO_CELL, text) is not None


def message(answer: Answer) -> str:
    """The line of a command's complaints that says most, without the words that every complaint begins or ends with."""
    lines = _lines(f"{answer.err}\n{answer.out}")
    telling = [line for line in reversed(lines) if re.search(_NO_QMASTER, line)]
    telling += [line for line in lines if re.search(_NO_CELL, line)] + _lines(answer.err or answer.out)[-1:]
    return telling[0] if telling else f"exit code {answer.code}"


def no_answer(text: str, environ: Mapping[str, str], hint: str) -> SchedulerError:
    """The error for commands that cannot reach the qmaster of their cell, or find no cell.

    Args:
        text: What they have printed.
        environ: The environment that they had.
        hint: What to do about a qmaster that does not answer.
    """
    if re.search(_NO_CELL, text) and not re.search(_NO_QMASTER, text):
        return SchedulerError(
            f"Grid Engine's commands do not find their cell: {text}",
            hint="load Grid Engine's settings: `source $SGE_ROOT/$SGE_CELL/common/settings.sh` or `module load`",
        )
    host = _qmaster(environ)
    return SchedulerError(f"Grid Engine's qmaster{f' on {host}' if host else ''} does not answer: {text}", hint=hint)


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [plain for line in lines if line not in _CLOSING and (plain := re.sub(_OPENING, "", line))]


def _qmaster(environ: Mapping[str, str]) -> str:
    """The host in $SGE_ROOT/$SGE_CELL/common/act_qmaster; empty where it cannot be read."""
    file = Path(environ.get("SGE_ROOT") or "/", environ.get("SGE_CELL") or "default", "common/act_qmaster")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
