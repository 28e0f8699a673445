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
PATIENCE = 30.0  # seconds a test waits for something that should come at once

# How the bootstrap script starts the launcher (scripts/gridtf-bootstrap.sh).
_EXEC = [
    sys.executable,
    "-c",
    "import sys; from gridtf.bootstrap.main import main; sys.exit(main(sys.argv[1:]))",
    "exec",
]
# A program that ignores a signal, and then becomes another one, which inherits that: ``python -c IGNORING NUMBER …``.
IGNORING = """
import os, signal, sys
signal.signal(int(sys.argv[1]), signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_MANY_HOSTS = [sys.executable, "-m", "tests.support.many_hosts"]


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for a condition; gives its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


class LaunchedJob:
    """A launcher that runs in the background."""

    def __init__(
        self,
        folder: Path,
        spec: Mapping[str, Any],
        hosts: Sequence[Mapping[str, Any]] = (),
        prefix: Sequence[str] = (),
        seen_as: Path | None = None,
        **env: str,
    ) -> None:
        """folder: the working folder, as this process sees it. prefix: put before the launcher's command.
        seen_as: the same folder, as the job sees it."""
        self.run = RunDir(folder / "run")
        self.folder = folder
        environ = {**os.environ, "GRIDTF_LOCKS": str(folder), "XDG_STATE_HOME": str(folder / "state"), **env}
        environ["PYTHONPATH"] = str(ROOT)
        environ["GRIDTF_RUN_DIR"] = str((seen_as or folder) / "run")
        environ["GRIDTF_SPEC"] = json.dumps({"scheduler": "local", "kill_grace": 1.0, **spec})
        command = [*_MANY_HOSTS, json.dumps(list(hosts))] if hosts else _EXEC
        self.log = folder.with_name(f"{folder.name}.log")  # beside it: the folder may be a full disk
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
    def attempt(self) -> Attempt:
        found: Attempt = until(self.run.latest, "an attempt")
        return found

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        """The launcher's exit code."""
        return self.process.wait(seconds)

    def verdict(self, seconds: float = PATIENCE) -> dict[str, Any]:
        self.wait(seconds)
        verdict = read_record(self.attempt.verdict)
        assert verdict is not None, f"no verdict; the log says:\n{self.output}"
        return verdict

    def tasks(self) -> dict[str, dict[str, Any]]:
        """What the hosts say of their tasks."""
        found: dict[str, dict[str, Any]] = {}
        for path in self.attempt.state.glob("@*.json"):
            found.update((read_record(path) or {}).get("tasks", {}))
        return found

    def running(self, *names: str) -> dict[str, int]:
        """Wait until these tasks run; their pids."""

        def pids() -> dict[str, int]:
            tasks = self.tasks()
            found = {name: tasks[name]["pid"] for name in names if tasks.get(name, {}).get("state") == "RUNNING"}
            return found if len(found) == len(names) else {}

        running: dict[str, int] = until(pids, f"{names} to run; the log says:\n{self.output}")
        return running

    def written(self, name: str) -> int:
        """A pid that a task has written into a file of the working folder."""
        path = self.folder / name
        return int(until(lambda: path.exists() and path.read_text().strip(), f"{name} to be written"))

    def agent_pid(self, host: str) -> int:
        record = until(lambda: read_record(self.attempt.host_state(host)), f"a state of {host}")
        return int(record["pid"])

    def end(self) -> None:
        """End whatever is left, by what this test started."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)


def gone(*pids: int, seconds: float = PATIENCE) -> bool:
    """Wait until none of these processes is left."""
    return bool(until(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}", seconds))
