"""The common part of the ways to start tasks with any scheduler. Runs on the hosts of a test bed."""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from marks import TASK, TASK_FILE

GRIDTF, MPIRUN = "gridtf", "mpirun"
WORLD = "gridtf-mpi"  # as mpirun: the tasks are ranks of one world


class Ways(ABC):
    """The ways to start tasks, as commands.

    Args:
        folder: A folder that the hosts share, for the files of the commands.
        each: Tasks a host.
        request: Fields of the JobSpec of gridtf's job.
    """

    def __init__(self, folder: Path, each: int, **request: Any) -> None:
        self.folder = folder
        self.each = each
        self._request = request
        self._task = self.write(TASK_FILE, TASK)
        self._count = 0

    def command(self, way: str, marks: Path, stay: float = 0) -> list[str]:
        """The command of a way.

        Args:
            way: Its name.
            marks: The folder in which tasks record the time.
            stay: Seconds that tasks run after that.
        """
        self._count += 1
        task = [sys.executable, str(self._task), str(marks), str(stay)]
        if way in (GRIDTF, WORLD):
            return ["bash", str(self._script(tuple(task), mpi=way == WORLD))]
        return self.other(way, task)

    @abstractmethod
    def other(self, way: str, task: list[str]) -> list[str]:
        """The command of a way that is not gridtf."""

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def _script(self, command: tuple[str, ...], *, mpi: bool) -> Path:
        """A job script with its run directory, as `gridtf submit` makes them."""
        import gridtf
        from gridtf.login import submission
        from gridtf.run import registry
        from gridtf.run.rundir import RunDir

        run = RunDir(self.folder / f"run-{self._count}")
        about: dict[str, Any] = {"name": "bench", "chdir": str(self.folder), "run_dir": str(run.path), "mpi": mpi}
        spec = gridtf.JobSpec(command=command, **about, **self._request)
        plan = submission.prepare(spec)
        run.output.mkdir(parents=True)
        registry.write_job(run, plan.spec, plan.sources)
        run.script.write_text(submission.script(plan))
        return run.script

    def tidy(self) -> None:
        """Remove run directories, which would make the listing of their folder longer with each way."""
        for run in self.folder.glob("run-*"):
            shutil.rmtree(run, ignore_errors=True)
