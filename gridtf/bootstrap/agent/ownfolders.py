"""Whether a task writes its checkpoints to a folder that its host alone has: a task on another host does not find them.

Nothing is asked of the program. gridtf.training notes its folder for the agent; sessions and supervisors of TensorFlow
keep the file of their summaries open, beside the checkpoints. The launcher tells what the agents have seen
(judge/ownfolders.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import local_dir

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import TaskProcess
    from gridtf.bootstrap.system import System

_SUMMARIES = "events.out.tfevents."  # beginning of the name of such a file
_STATE = "checkpoint"  # the file in which TensorFlow's savers note their newest checkpoint
_MOST_PROCESSES = 16  # of a task
_SHORTEST, _LONGEST = 1.0, 30.0  # seconds between two looks


class OwnFolders:
    """The agent's view of its tasks.

    Args:
        run_dir: The run directory, which all hosts see.
        notes: The folder in which tasks write for the agent; None: there is none.
        system: This host.
        wanted: Whether anybody else is to see the checkpoints: another host, or a further start of the job.
    """

    def __init__(self, run_dir: Path, notes: Path | None, system: System, *, wanted: bool) -> None:
        self._run_dir, self._notes, self._system, self._wanted = run_dir, notes, system, wanted
        self._begin = system.monotonic()
        self._next = self._begin + _SHORTEST

    def look(self, tasks: Iterable[TaskProcess]) -> bool:
        """Look, if it is time, and note in each task which folder it is.

        Args:
            tasks: The tasks that run.

        Returns:
            Whether a folder was found.
        """
        now = self._system.monotonic()
        if not self._wanted or now < self._next:
            return False
        self._next = now + min(max(_SHORTEST, (now - self._begin) / 10), _LONGEST)
        unknown = [task for task in tasks if task.pid is not None and not task.own_folder]
        for task in unknown:
            task.own_folder = next(self._found(task), "")
        return any(task.own_folder for task in unknown)

    def _found(self, task: TaskProcess) -> Iterator[str]:
        noted = local_dir.checkpoints(self._notes, task.name) if self._notes else None
        if noted and self._system.own_folder(Path(noted), self._run_dir):
            yield noted
        for name in self._system.open_files(task.pid or 0, _MOST_PROCESSES):
            folder, _, file = name.rpartition("/")
            own = file.startswith(_SUMMARIES) and self._system.own_folder(Path(folder), self._run_dir)
            if own and Path(folder, _STATE).exists():  # of another folder, this may never be answered
                yield folder
