"""This machine in the place of a test bed, so that a fault that is the same everywhere is brought about in one way."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.cluster import Bed
from tests.support.disks import fill


class LocalBed(Bed):
    """This machine: every host is itself, every user this one, and jobs are the local scheduler's.

    Args:
        state: The folder that run directories lie in.
    """

    kind = "local"
    hosts = (os.uname().nodename,)
    options = ("--scheduler", "local")
    questions = ()

    def spoil(self, host: str, state: str) -> None:
        """Have the disk that ``state`` is on be full; any other state: no longer."""
        if state == "full":
            self._filled = fill(self.state)
        else:
            self._filled.unlink()

    def run(
        self,
        host: str,
        *argv: str,
        user: str = "",
        timeout: float = 180,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            # ignored where tests run in the background
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert not check or done.returncode == 0, f"{argv}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def processes(self) -> list[int]:
        """The ids of the processes of jobs whose run directories lie in its folder."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._runs(path)]

    def _runs(self, process: Path) -> bool:
        try:
            words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            return False
        return bytes(self.state) in words and int(process.name) != os.getpid()
