"""What a failed test leaves to look at: the jobs that it has begun, and the queue, as they are at that moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gridtf.run.rundir import RunDir
from tests.support.beds import UP
from tests.support.cluster import CHECKOUT, Bed

_LINES = 60  # of a log
_LIMIT = 30.0  # seconds for a command
_ALL = 120.0  # seconds for all commands of a test


def sections(item: pytest.Item, begun: float) -> Iterator[tuple[str, str]]:
    """(title, text) for the report of a test.

    Args:
        item: The test.
        begun: When it began, in seconds since the epoch.
    """
    try:
        yield from _sections(getattr(item, "funcargs", {}), begun)
    # Such as a folder that vanishes, or the limit of the test, which counts this; without a report pytest would end.
    except (Exception, pytest.fail.Exception) as error:
        yield "no more could be found out", f"{type(error).__name__}: {error}"


def _sections(arguments: Mapping[str, object], begun: float) -> Iterator[tuple[str, str]]:
    end = time.monotonic() + _ALL
    if isinstance(folder := arguments.get("tmp_path"), Path):
        for run in _runs(folder, begun):
            yield from _logs(run)
            command = [sys.executable, "-m", "gridtf", "status", str(run.path)]
            yield f"gridtf status {run.path.name}", _said(command, end)
    for bed in UP:
        runs = list(_runs(bed.shared / "home", begun))
        for run in runs:
            yield from _logs(run)
            status = ["python", "-m", "gridtf", "status", bed.seen(run.path)]
            environ = {"PYTHONPATH": str(CHECKOUT), "GRIDTF_SITE_CONFIG": ""}
            command = bed.command("login", *status, user="root", env=environ)
            yield f"gridtf status {run.path.name}", _said(command, end, bed)
        if runs or bed in arguments.values():
            for question in bed.questions:
                if "{" not in question:
                    yield question, _said(bed.command("login", *question.split()), end, bed)


def _runs(folder: Path, begun: float) -> Iterator[RunDir]:
    """The run directories below a folder that were made since then."""
    for record in sorted(folder.rglob("job.json")):
        if record.stat().st_mtime >= begun:
            yield RunDir(record.parent)


def _logs(run: RunDir) -> Iterator[tuple[str, str]]:
    attempt = run.latest()
    for path in (run.log, *((attempt.agents_log, *sorted(attempt.logs.glob("*-*.log"))) if attempt else ())):
        if path.is_file():
            lines = path.read_text(errors="replace").splitlines()[-_LINES:]
            yield f"{path.relative_to(run.path.parent)}", "\n".join(lines)


def _said(command: list[str], end: float, bed: Bed | None = None) -> str:
    limit = min(_LIMIT, end - time.monotonic())
    if limit <= 0:
        return f"not asked: the questions before have taken {_ALL:.0f} s"
    try:
        environ = bed.environ() if bed else {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {limit:.0f} s"
    return done.stdout + done.stderr
