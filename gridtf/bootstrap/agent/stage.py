"""Where agents of 0.1.0 that an upgrade in place has overtaken find what stages files. To go after 0.2.0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gridtf.bootstrap.agent.api import AgentView
from gridtf.features import stage


class Stage:
    """The agent's end of that process."""

    folders: Sequence[Path] = ()

    def __init__(self, plan: Any, state: Any, talk: Any, system: Any) -> None:
        self._view = AgentView(plan, None, state, talk, system)  # type: ignore[arg-type]
        self._stage = stage.InAgent(self._view)

    def run(self) -> None:
        """Wait until all is there."""
        try:
            prepared = self._stage.prepare()
        finally:
            self._view.state.supervisor.kept = self._view.processes.pids(outlive=True)
        self.folders = prepared.folders
        prepared.set_in(self._view.system.environ)

    def end(self) -> None:
        """Have removed what no other job uses."""
        self._stage.end()
        supervisor = self._view.state.supervisor
        supervisor.kept = ()
        supervisor.tear_down(0.0, self._view.conversation.keep_telling)
