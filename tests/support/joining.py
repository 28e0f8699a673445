"""Processes that call gridtf_join, as srun or mpirun would start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.python import ROOT, environment

SCRIPT = ROOT / "scripts" / "gridtf-bootstrap.sh"
TASK = """
import json, os, sys
print(json.dumps(dict(os.environ)), flush=True)
sys.stdin.readline()
"""
STARTERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_", "PMI_", "PMIX_", "CUDA_VISIBLE_DEVICES", "OMP_", "TF_")


class Rank:
    """A process that calls gridtf_join in bash with all strict options on, and then becomes its task."""

    def __init__(
        self, folder: Path, options: str, env: dict[str, str], script: str | None, descriptors: Sequence[int]
    ) -> None:
        default = (
            f'set -euo pipefail\nsource "$GRIDTF_BOOTSTRAP"\ngridtf_join {options}\nexec "$GRIDTF_PYTHON" -c "$TASK"\n'
        )
        base = {name: text for name, text in environment().items() if not name.startswith(STARTERS)}
        known = {"GRIDTF_PYTHON": sys.executable, "GRIDTF_BOOTSTRAP": str(SCRIPT), "TASK": TASK}
        self.process = subprocess.Popen(
            ["bash", "-c", script or default],
            cwd=folder,
            env={**base, **known, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self._environment: dict[str, str] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the task, once it has joined."""
        if self._environment is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, self.end()[1]
            self._environment = json.loads(line)
        return self._environment

    def end(self, seconds: float = 180.0) -> tuple[int, str]:
        """End the task; returns its exit code, and the stderr of gridtf_join and the task."""
        _, errors = self.process.communicate("\n", timeout=seconds)
        return self.process.returncode, errors

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=180)
