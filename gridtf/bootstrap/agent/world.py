"""Where agents of 0.1.0 that an upgrade in place has overtaken find an MPI world. To go after 0.2.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridtf import starters
from gridtf.bootstrap.agent.api import AgentView
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.starters.mpi.world import opened

__all__ = ["World", "opened"]


class World:
    """This host's part of the world."""

    def __init__(self, plan: AttemptPlan, scheduler: Any, environ: Any, cluster: Any, ranks: Any, *of: Any) -> None:
        module = starters.of_agent(plan.request.mpi)
        assert module
        self._world, self._of = module.Starter(AgentView(plan, scheduler, *of)), (environ, cluster)
        self._world.socket = ranks

    def form(self) -> Mapping[str, Mapping[str, str]]:
        """Wait for the ranks; returns task -> its variables."""
        self._world.form(*self._of)
        places: Mapping[str, Mapping[str, str]] = self._world.places
        return places

    def look(self) -> bool:
        """Whether more is known of a task."""
        return bool(self._world.look())
