"""Whether a task writes its checkpoints to a folder that its host alone has: a task on another host does not find them.

Nothing is asked of the program. gridtf.training notes its folder for the agent; sessions and supervisors of TensorFlow
keep the file of their summaries open, beside the checkpoints. The launcher tells what the agents have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import api as agent_api
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.judge.evidence import NOTE, Evidence
from gridtf.bootstrap.launcher import api as launcher_api
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.run.rundir import Record
from gridtf.states import JobState
from gridtf.text import some

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import TaskProcess

HINT = "write them to OUTPUT_DIR, which all hosts share and a further start finds again; in a command, to {output_dir}"


def told(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> str:
    """The warning; empty where no checkpoint is written to such a folder. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    found = [(task, str(records.get(task.name, {}).get("own_folder") or "")) for task in tasks]
    found = [(task, folder) for task, folder in found if folder]
    if not found:
        return ""
    first, folder = found[0]
    same = [task.name for task, where in found if (where, task.host) == (folder, first.host)]
    others = [task.name for task, _ in found if task.name not in same]
    also = f", and those of {some(others, most=2)} in another such folder" if others else ""
    return f"checkpoints of {some(same, most=2)} are in {folder} on {first.host}, which no other host sees{also}"


def notes(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Iterator[Evidence]:
    """The warning, for the verdict on a job that no task has failed. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    if warning := told(tasks, records):
        yield Evidence(NOTE, warning, hint=HINT, on=(JobState.COMPLETED, JobState.SAVED, JobState.TIMEOUT))


class InLauncher(launcher_api.Feature):
    """Warns of such folders."""

    vital = False

    def __init__(self, view: launcher_api.LauncherView, before: launcher_api.Feature | None) -> None:
        super().__init__(view, before)
        self._judged = 0  # states that were reported then
        self._told = ""

    def look(self) -> None:
        view, reports = self.view, self.view.hosts.reports
        if view.now is not None and reports.states != self._judged:
            self._judged = reports.states
            before, self._told = self._told, told(view.tasks, reports.tasks)
            if self._told and not before:
                view.reporter.notice(self._told, HINT)

    def status(self) -> str:
        return self._told

    def known(self, end: Evidence) -> Iterator[Evidence]:
        yield from notes(self.view.tasks, self.view.hosts.reports.tasks)


_SUMMARIES = "events.out.tfevents."  # beginning of the name of such a file
_STATE = "checkpoint"  # the file in which TensorFlow's savers note their newest checkpoint
_MOST_PROCESSES = 16  # of a task
_SHORTEST, _LONGEST = 1.0, 30.0  # seconds between two looks


class InAgent(agent_api.Feature):
    """Looks for such folders of the tasks of this host."""

    vital = False

    def __init__(self, view: agent_api.AgentView) -> None:
        super().__init__(view)
        self._known: set[str] = set()  # tasks whose folder was told
        self._begin = 0.0  # when it first looked
        # the local scheduler starts a job again on the same host
        here = view.plan.host_count == 1 and view.plan.request.scheduler == "local"
        self._next = float("inf") if here else 0.0

    def look(self) -> Mapping[str, Record]:
        now = self.view.system.monotonic()
        if now < self._next:
            return {}
        self._begin = self._begin or now
        self._next = now + min(max(_SHORTEST, (now - self._begin) / 10), _LONGEST)
        running = [task for task in self.view.state.supervisor.running() if task.name not in self._known]
        found = {task.name: {"own_folder": folder} for task in running if (folder := next(self._found(task), ""))}
        self._known.update(found)
        return found

    def _found(self, task: TaskProcess) -> Iterator[str]:
        run, notes_of, system = self.view.plan.attempt.run.path, self.view.state.local_dir, self.view.system
        noted = local_dir.checkpoints(notes_of, task.name) if notes_of else None
        if noted and system.own_folder(Path(noted), run):
            yield noted
        for name in system.open_files(task.pid or 0, _MOST_PROCESSES):
            folder, _, file = name.rpartition("/")
            own = file.startswith(_SUMMARIES) and system.own_folder(Path(folder), run)
            if own and Path(folder, _STATE).exists():  # of another folder, this may never be answered
                yield folder
