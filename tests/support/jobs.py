"""Real jobs for tests: the launcher in a process of its own, as a rendered script starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.host.procfs import alive
from gridtf.run.rundir import Attempt, RunDir, read_record

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds that a test waits for something that happens at once on a quiet machine

# How the bootstrap script starts the launcher (scripts/gridtf-bootstrap.sh).
_EXEC = [
    sys.executable,
    "-c",
    "import sys; from gridtf.bootstrap.main import main; sys.exit(main(sys.argv[1:]))",
    "exec",
]
# Runs a program that inherits an ignored signal: ``python -c IGNORING NUMBER PROGRAM …``.
IGNORING = """
import os, signal, sys
signal.signal(int(sys.argv[1]), signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_MANY_HOSTS = [sys.executable, "-m", "tests.support.many_hosts"]


def until(
    condition: Callable[[], Any], what: str, seconds: float = PATIENCE, said: Callable[[], str] = lambda: ""
) -> Any:
    """Wait until a condition returns a true value, and return it; ``said`` is added to the failure."""
    deadline = time.monotonic() + seconds
    while True:
        begin = time.monotonic()
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{said()}"
        time.sleep(max(0.05, (took := time.monotonic() - begin), min(8 * took, 1.0)))  # a command on a bed takes a core


def hosts_of(attempt: Attempt | None) -> dict[str, dict[str, Any]]:
    """Host -> its record, as the launcher of an attempt has written it; empty before that."""
    return dict((read_record(attempt.summary) or {}).get("hosts", {})) if attempt else {}


class StartedJob:
    """A job, seen through its run directory: of the launcher below, or of a scheduler.

    Attributes:
        run: Its run directory as this machine sees it.
        patience: Seconds that a test waits for it.
    """

    run: RunDir
    patience = PATIENCE

    @property
    def output(self) -> str:
        """What its script or launcher has printed."""
        raise NotImplementedError

    def said(self) -> str:
        """All that a failed test shows of it."""
        return f"{self.output}\n{self.agents_output()}"

    def until(self, condition: Callable[[], Any], what: str, seconds: float | None = None) -> Any:
        """Wait until a condition returns a true value, and return it."""
        return until(condition, what, seconds or self.patience, self.said)

    @property
    def attempt(self) -> Attempt:
        """The latest attempt; waits for the first one."""
        found: Attempt = self.until(self.run.latest, "an attempt")
        return found

    def agents_output(self, attempt: int = 0) -> str:
        """The output of the agents of an attempt; 0: of the latest one."""
        which = self.run.attempt(attempt) if attempt else self.run.latest()
        return which.agents_log.read_text(errors="replace") if which and which.agents_log.exists() else ""

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Host -> its record, as the launcher has written it."""
        return hosts_of(self.run.latest())

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Task name -> its record, with ``host`` and the agent's pid as ``agent``."""
        return {
            name: {**task, "host": host, "agent": record.get("pid")}
            for host, record in self.hosts().items()
            for name, task in record["tasks"].items()
        }

    def gpus(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Task name -> (host, GPUs), as published by the hosts."""
        hosts = self.hosts().items()
        return {name: (host, tuple(own)) for host, record in hosts for name, own in record["gpus"].items()}

    def logs(self) -> dict[str, str]:
        """Task name -> its output."""
        return {path.stem: path.read_text(errors="replace") for path in sorted(self.attempt.logs.glob("*.log"))}


class LaunchedJob(StartedJob):
    """A launcher that runs in the background.

    Args:
        folder: The working folder, as this process sees it.
        spec: The job, as in a job file.
        hosts: Simulated hosts, as in many_hosts.py; none: this host alone.
        prefix: Prefix of the launcher's command.
        seen_as: The working folder, as the job sees it; None: ``folder``.
        env: Further environment variables.
    """

    def __init__(
        self,
        folder: Path,
        spec: Mapping[str, Any],
        hosts: Sequence[Mapping[str, Any]] = (),
        prefix: Sequence[str] = (),
        seen_as: Path | None = None,
        **env: str,
    ) -> None:
        self.run = RunDir(folder / "run")
        self.folder = folder
        environ = {**os.environ, "GRIDTF_LOCKS": str(folder), "XDG_STATE_HOME": str(folder / "state"), **env}
        environ["PYTHONPATH"] = str(ROOT)
        environ["GRIDTF_RUN_DIR"] = str((seen_as or folder) / "run")
        environ["GRIDTF_SPEC"] = json.dumps({"scheduler": "local", "kill_grace": 1.0, **spec})
        command = [*_MANY_HOSTS, json.dumps(list(hosts))] if hosts else _EXEC
        self.log = folder.with_name(f"{folder.name}.log")  # outside the folder, which may be a full disk
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *command],
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for the launcher; returns its exit code."""
        return self.process.wait(seconds)

    def verdict(self, seconds: float = PATIENCE) -> dict[str, Any]:
        self.wait(seconds)
        verdict = read_record(self.attempt.verdict)
        assert verdict is not None, f"no verdict; the log says:\n{self.output}"
        return verdict

    def running(self, *names: str) -> dict[str, int]:
        """Wait until these tasks run; returns task name -> pid."""

        def pids() -> dict[str, int]:
            tasks = self.tasks()
            found = {name: tasks[name]["pid"] for name in names if tasks.get(name, {}).get("state") == "RUNNING"}
            return found if len(found) == len(names) else {}

        running: dict[str, int] = until(pids, f"{names} to run; the log says:\n{self.output}")
        return running

    def written(self, name: str) -> int:
        """Wait for a pid that a task writes into a file of the working folder."""
        path = self.folder / name
        return int(until(lambda: path.exists() and path.read_text().strip(), f"{name} to be written"))

    def agent_pid(self, host: str) -> int:
        return int(until(lambda: self.hosts().get(host), f"a state of {host}")["pid"])

    def end(self) -> None:
        """End the launcher, and thereby its job, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)


def gone(*pids: int, seconds: float = PATIENCE) -> bool:
    """Wait until all of these processes are gone."""
    return bool(until(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}", seconds))
