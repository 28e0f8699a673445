"""Where agents of 0.1.0 that an upgrade in place has overtaken find their set-up lines. To go after 0.2.0."""

from __future__ import annotations

from typing import Any

from gridtf.bootstrap.agent.api import AgentView
from gridtf.features import hostsetup


def run(plan: Any, scheduler: Any, state: Any, talk: Any, system: Any) -> None:
    """Run the lines, and take what they have exported into the environment of this agent."""
    hostsetup.InAgent(AgentView(plan, scheduler, state, talk, system)).prepare().set_in(system.environ)
