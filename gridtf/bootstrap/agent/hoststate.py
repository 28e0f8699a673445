"""The state of a host of a job, as its agent reports it to the launcher."""

from __future__ import annotations

from pathlib import Path

from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.supervisor import Supervisor, TaskProcess
from gridtf.bootstrap.system import System
from gridtf.run import ranges
from gridtf.run.rundir import Record


class HostState:
    """What is reported of this host.

    Args:
        host: This host, as the allocation calls it.
        system: This host.

    Attributes:
        supervisor: The processes of the tasks.
        local_dir: The folder of the attempt on this host; None where there is none.
        waits: Why the agent waits, before it has published anything; empty: it does not.
        checkpoint: Whether a checkpoint was requested on this host.
        gone: Why this agent ends although the launcher has not stopped it.
        left: What else the job has left on this host, one line each.
        over: Whether no process of the job is left on this host.
    """

    def __init__(self, host: str, system: System) -> None:
        self.host, self._system = host, system
        self.supervisor = Supervisor([], system)
        self.local_dir: Path | None = None
        self.waits = ""
        self.checkpoint = False
        self.gone: Record | None = None
        self.left: list[str] = []
        self.over = False

    def log(self, text: str) -> None:
        """Write a line about this host to the log of the agents."""
        self._system.log(f"agent on {self.host}: {text}")

    def record(self) -> Record:
        """The content of a message of the kind messages.STATE, without its time."""
        self.read_notes()
        tasks = {name: task.record() for name, task in self.supervisor.tasks.items()}
        exceptions = {"gone": self.gone, "left": self.left, "waits": self.waits, "checkpoint": self.checkpoint}
        more = {name: value for name, value in exceptions.items() if value}
        return {"host": self.host, "pid": self._system.pid, "tasks": tasks, "over": self.over, **more}

    def read_notes(self) -> None:
        """Read what tasks, and the hook in them, have written for the agent."""
        for name, task in self.supervisor.tasks.items():
            if self.local_dir and task.pid is not None:
                self._read_progress(self.local_dir, task)
                task.exception = local_dir.exception(self.local_dir, name) or task.exception

    def _read_progress(self, folder: Path, task: TaskProcess) -> None:
        """Read how far a task has come, and widen the ranges of its values until a sample takes them."""
        if found := local_dir.progress(folder, task.name):
            more = found.pop("ranges", {})
            if found != task.progress:
                task.ranges = ranges.together(task.ranges, ranges.of_values(found["values"]), more)
            task.progress = found
