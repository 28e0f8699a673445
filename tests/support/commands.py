"""Runs gridtf commands, each in its own process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.support.jobs import until

TWO = ("--workers", "2", "--kill-grace", "1")
Done = subprocess.CompletedProcess[str]


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


PRINTS = python("import os; print('I am', os.environ['GRIDTF_TASK_TYPE'], os.environ['GRIDTF_TASK_INDEX'])")
FAILS = python(
    "import os, sys, time; print('last words', flush=True)\n"
    "sys.exit(3) if os.environ['GRIDTF_TASK_INDEX'] == '1' else time.sleep(600)"
)
SLEEPS = python("import time; print('up', flush=True); time.sleep(600)")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gridtf", *words]


def call(*words: str, code: int = 0, timeout: float = 180) -> Done:
    """Run a command line; it must end with this exit code."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in the background, in its own session as in a terminal."""
    with subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def as_json(*words: str, code: int = 0) -> Any:
    return json.loads(call(*words, "--json", code=code).stdout)


def submit(*words: str) -> dict[str, str]:
    """Submit a job; returns its name, job_id and run_dir."""
    return dict(json.loads(call("submit", "--json", *words).stdout))


def status(job: str) -> dict[str, Any]:
    return dict(json.loads(call("status", "--json", job).stdout))


def running(job: str) -> dict[str, Any]:
    """Wait until all tasks of a job run."""

    def look() -> dict[str, Any] | None:
        view = status(job)
        states = {task["state"] for task in view["tasks"]}
        return view if view["state"] == "RUNNING" and states == {"RUNNING"} else None

    return dict(until(look, f"{job} to run"))
