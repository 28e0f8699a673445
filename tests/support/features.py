"""What features see of a job, without processes and connections."""

from __future__ import annotations

from gridtf import schedulers
from gridtf.bootstrap.agent.api import AgentView
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.supervisor import Supervisor
from gridtf.bootstrap.judge.outcome import Outcome
from gridtf.bootstrap.launcher.api import LauncherView
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from tests.support.streams import FakeLink, FakeListener, InlineRecorder
from tests.support.system import FakeSystem


def agent_view(plan: AttemptPlan, system: FakeSystem, host: str = "h0") -> AgentView:
    """A host of a job, with ports from 2000 on."""
    state = HostState(host, system)
    talk = Conversation(state, system)
    talk.link = FakeLink(system)
    view = AgentView(plan, schedulers.get("local"), state, talk, system)
    state.supervisor = Supervisor([task.name for task in view.mine], system)
    view.ports = {task.name: 2000 + number for number, task in enumerate(view.mine)}
    return view


def launcher_view(plan: AttemptPlan, system: FakeSystem) -> LauncherView:
    """An attempt whose tasks run."""
    job = LaunchedJob(plan.attempt.run, plan.spec, plan.request, schedulers.get("local"), "7", system)
    listener = FakeListener(system=system)
    hosts = HostMonitor(plan.attempt, listener, 30.0, system.sleep, system, [*plan.hosts])
    reporter = Reporter(job, plan.attempt, plan.nonce, InlineRecorder(system), hosts, "")
    return LauncherView(job, plan.attempt, hosts, reporter, plan, Outcome(False))


class FakeHelper:
    """A process of a feature's, which says what the test wants.

    Args:
        started: Gets those that were started.

    Attributes:
        said: What it says at each look, from now on.
    """

    def __init__(self, started: list[FakeHelper], *_: object) -> None:
        self._started = started
        self.pid: int | None = None
        self.said: list[bytes] = []

    def start(self, work: object) -> bool:
        """In the place of Helper.start."""
        self.pid = 100 + len(self._started)
        self._started.append(self)
        return True

    def hear(self) -> bytes:
        """In the place of Helper.hear."""
        return self.said.pop(0) if self.said else b""

    def forget(self) -> None:
        """In the place of Helper.forget."""
        self.pid = None
