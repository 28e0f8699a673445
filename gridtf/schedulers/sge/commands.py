"""Grid Engine's commands: where they are, and what they print when they fail."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gridtf.schedulers.commands import TRY_LATER, Answer, Commands, NoAnswerError

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


class GridEngineCommands(Commands):
    """Runs Grid Engine's commands."""

    title = "Grid Engine"
    query_limit = 10.0  # short: the run directory says most about a running job

    def locate(self, command: str) -> str:
        return locate(command, os.environ)

    def unreachable(self, answer: Answer) -> bool:
        return any(re.search(pattern, answer.text) for pattern in (_NO_QMASTER, _NO_CELL))

    def unknown_job(self, answer: Answer) -> bool:
        # denied: job "4711" does not exist · job "4711" task "7" does not exist · Following jobs do not exist:
        return re.search(r"\bjobs?\b.* do(es)? not exist", answer.text, re.IGNORECASE) is not None

    def outcome_unknown(self, answer: Answer) -> bool:
        # failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
        return re.search(r"(fail|error)\w* receiving|receive timeout", answer.text, re.IGNORECASE) is not None

    def message(self, answer: Answer) -> str:
        """The most specific line of a command's error messages, without prefixes such as ``error:``."""
        lines = _lines(answer.text)
        specific = [line for line in reversed(lines) if re.search(_NO_QMASTER, line)]
        specific += [line for line in lines if re.search(_NO_CELL, line)] + _lines(answer.err or answer.out)[-1:]
        return specific[0] if specific else f"exit code {answer.code}"

    def no_answer(self, message: str) -> NoAnswerError:
        """The error for a qmaster that does not answer, or a cell that the commands do not find."""
        if re.search(_NO_CELL, message) and not re.search(_NO_QMASTER, message):
            return NoAnswerError(
                f"Grid Engine's commands do not find their cell: {message}",
                hint="load Grid Engine's settings: `source $SGE_ROOT/$SGE_CELL/common/settings.sh` or `module load`",
            )
        host = qmaster(os.environ)
        what = f"Grid Engine's qmaster{f' on {host}' if host else ''} does not answer: {message}"
        return NoAnswerError(what, hint=TRY_LATER)


def locate(command: str, environ: Mapping[str, str]) -> str:
    """The path of a command of Grid Engine; its bare name when it is not found.

    In a job, PATH has no commands of Grid Engine, but SGE_BINARY_PATH names their folder. On a login node, commands
    below SGE_ROOT are preferred to those on PATH, where some distributions put slow shell scripts.
    """
    folders = [Path(environ["SGE_BINARY_PATH"])] if environ.get("SGE_BINARY_PATH") else []
    if environ.get("SGE_ROOT"):
        folders += sorted(Path(environ["SGE_ROOT"], "bin").glob("*"))
    return next((str(folder / command) for folder in folders if os.access(folder / command, os.X_OK)), command)


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [plain for line in lines if line not in _CLOSING and (plain := re.sub(_OPENING, "", line))]


def qmaster(environ: Mapping[str, str]) -> str:
    """The host in $SGE_ROOT/$SGE_CELL/common/act_qmaster; empty where it cannot be read."""
    file = Path(environ.get("SGE_ROOT") or "/", environ.get("SGE_CELL") or "default", "common/act_qmaster")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


sge = GridEngineCommands()
