"""The launcher's view of the hosts of an attempt: how their agents end, and which host is silent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gridtf.bootstrap.judge import agentslog, verdict
from gridtf.bootstrap.launcher.reports import Reports
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.heartbeat import Watch, interval
from gridtf.bootstrap.wire.stream import RECONNECT_LIMIT, Listener
from gridtf.errors import CleanedUpError, GridtfError, HostLostError, TerminatedError
from gridtf.host.processes import signal_name
from gridtf.run.rundir import Attempt, Record, listdir
from gridtf.schedulers.agents import ForkedAgent, StartedAgents
from gridtf.schedulers.api import AgentEnd, AgentHandle
from gridtf.text import some
from gridtf.values import Fields

_TEAR_DOWN_PAUSE = 0.1  # seconds between two looks at the hosts in a tear-down
_SIGNALS_LIMIT = 2.0  # seconds within which a scheduler that ends a job has signalled all of its processes
_KILL_LIMIT = 5.0  # seconds within which a killed agent has ended
_LAST_WORDS = 2.0  # seconds for the reason why an agent has ended
_LAST_WORDS_OF_SRUN = 15.0  # seconds for it while srun runs, which prints it
_CLOSED_LIMIT = 1.0  # seconds after which, in a tear-down, an agent that has closed its connection does not come back


class LauncherSilentError(GridtfError):
    """Agents have lost contact with the launcher."""


class AgentEndedError(GridtfError):
    """An agent could not start or continue.

    Attributes:
        cause: As in a Verdict; its log is the log of the agents.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", cause: Record | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.cause = cause


class HostMonitor(Fields):
    """The hosts of one attempt: how their agents end, and which host is silent.

    Attributes:
        attempt: The attempt.
        listener: The streams from the agents.
        limit: Seconds of silence after which a host counts as lost.
        pause: Waits for a number of seconds; raises when a signal ends the job meanwhile.
        system: This host.
        hosts: The names of its hosts; none before the allocation is known.
        agents: Handles on the agents of these hosts.
        reports: What the hosts have reported.
        heard: Kind of a message that is not for reports -> who takes it, with its host.
    """

    attempt: Attempt
    listener: Listener
    limit: float
    pause: Callable[[float], None]
    system: System
    hosts: Sequence[str] = ()
    agents: Sequence[AgentHandle] = ()

    def __post_init__(self) -> None:
        self.reports = Reports(self.system)
        self._watches: dict[str, Watch] = {}
        self.heard: dict[str, Callable[[str, Record], None]] = {}

    @property
    def met(self) -> bool:
        """Whether all hosts have reported their ports."""
        return bool(self.hosts) and self.reports.published.keys() >= set(self.hosts)

    def listen(self) -> None:
        """Measure the silence of the hosts from now on."""
        self._watches = {host: Watch(self.limit, self.system) for host in self.hosts}

    def read(self) -> None:
        """Take note of what the hosts have reported since the last call.

        Raises:
            MessageError: A host has sent something that cannot be read.
        """
        for host, kind, content in self.listener.receive():
            if host in self._watches:
                self._watches[host].heard()
            if kind in self.heard:
                self.heard[kind](host, content)
            else:
                self.reports.take(host, kind, content)

    def check(self) -> None:
        """Check that all agents run and that no host is silent. Call read() first.

        Raises:
            GridtfError: An agent has ended although the launcher has not stopped it, or a host is silent.
        """
        for end in self._ends():
            if end.code < 0 and end.error is not None:  # a process of this host was killed: this came first
                # If SIGKILL does not end the launcher as well, it was that process alone. A signal that comes now is a
                # consequence: Grid Engine deletes a job whose qrsh is gone.
                for left in self.system.within(_SIGNALS_LIMIT):
                    self.system.wait(left)
                raise end.error
            self._hear_last_words(end.host)
            self._check_gone()
            raise self._ended(end)
        self._check_gone()
        if self.reports.over:
            host = min(self.reports.over)
            raise GridtfError(f"the agent on host {host} has ended all processes there", hint="did a user signal it?")
        for host, watch in self._watches.items():
            if watch.silence() > watch.limit:
                raise HostLostError(
                    f"no heartbeat from host {host} for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network?",
                    host=host,
                )
        now = self.system.monotonic()
        for host, since in self.listener.lost.items():
            if now - since > RECONNECT_LIMIT:
                self.check_starts()  # srun ends all agents when one has failed, which is the cause then
                raise HostLostError(
                    f"the agent on host {host} has closed its connection and has not come back within "
                    f"{RECONNECT_LIMIT:g} s",
                    hint="has the host crashed, or has a firewall closed the connection?",
                    host=host,
                )

    def check_starts(self) -> None:
        """Check that no agent has failed while the program that has started it waits for another one.

        Reads what such a program has printed, where it starts the agents of several hosts: srun, not qrsh.

        Raises:
            GridtfError: An agent has failed.
        """
        for agent in self.agents if len(self.agents) < len(self.hosts) else ():
            if isinstance(agent, StartedAgents) and (end := agent.failed()) is not None:
                raise self._ended(end, agent)

    def ended_before(self) -> GridtfError | None:
        """Why the job of a host has ended before a signal that ends the whole job; None where none has.

        Grid Engine deletes a job one of whose processes on another host has died of a signal, and its warning may be
        here before qrsh has ended. A host that has lost its agent has closed its connection, or never had one; that of
        an agent whose qrsh was killed may still stand.
        """
        until = self.system.monotonic() + _SIGNALS_LIMIT
        while True:
            for end in self._ends():
                if end.code and end.error is not None and not isinstance(end.error, TerminatedError):
                    return end.error
            left = until - self.system.monotonic()
            if left <= 0 or all(host in self.listener.connected for host in self.hosts):
                return None
            self.system.wait(min(left, _TEAR_DOWN_PAUSE))
            with contextlib.suppress(GridtfError):
                self.read()

    def cleaned_up(self) -> CleanedUpError | None:
        """That the scheduler has ended an agent, as it should have ended that of an earlier start of the job."""
        for end in self._ends():
            if isinstance(end.error, CleanedUpError):
                # with all processes there; and no host has tasks before all have reported their ports
                self.reports.over |= {end.error.host} if self.met else set(self.hosts)
                return end.error
        return None

    def _ends(self) -> Iterator[AgentEnd]:
        """How the agents that have ended did so; each agent is polled when its turn comes."""
        return filter(None, (agent.poll() for agent in self.agents))

    def end(self, seconds: float, beat: Callable[[], None]) -> None:
        """Terminate all agents, which then tear their tasks down; kill agents that take too long.

        Args:
            seconds: How long the agents may take.
            beat: Called about 20 times a second meanwhile.
        """
        for agent in self.agents:
            agent.terminate()
        if not self._ended_within(seconds, beat):
            for agent in self.agents:
                agent.kill()
            self._ended_within(_KILL_LIMIT, beat)

    def _ended_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        begin = self.system.monotonic()
        deadline, look, ended = begin + seconds, begin + 1.0, False
        while (running := any(agent.poll() is None for agent in self.agents)) or self._cut_off():
            now = self.system.monotonic()
            if now > deadline:
                return False
            if now > look or not (running or ended):
                ended = not running
                # srun waits for lost hosts, and for hosts where no process is left that could report to it
                look = now + _TEAR_DOWN_PAUSE
                with contextlib.suppress(GridtfError):
                    self.read()
                if self._all_over():
                    deadline = min(deadline, now + 1.0)
            self.system.wait(0.05)
            beat()
        return True

    def _cut_off(self) -> bool:
        """Whether a host still reports although srun or qrsh has lost its agent: the stream tells it to stop."""
        recent = 3 * interval(len(self.hosts), self.limit)
        lost = {end.host for end in self._ends() if isinstance(end.error, HostLostError)} - self.reports.over
        return any(host in lost and watch.silence() < recent for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether every host has reported that no process is left, is silent, or has closed its connection for good: an
        agent that was killed reports nothing, and its tasks have died with it."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        now = self.system.monotonic()
        closed = {host for host, since in self.listener.lost.items() if now - since > _CLOSED_LIMIT}
        return self.reports.over | silent | closed >= set(self.hosts)

    def alone(self, here: str) -> bool:
        """Whether nothing has been heard of any host but this one for some time.

        Args:
            here: The scheduler's name of this host.
        """
        from gridtf.host.names import same_host

        others = [watch for host, watch in self._watches.items() if not same_host(host, here)]
        return bool(others) and all(watch.silence() > self.limit / 2 for watch in others)

    @property
    def forked(self) -> list[str]:
        """The hosts whose agents this process has forked: it is their subreaper."""
        return [agent.host for agent in self.agents if isinstance(agent, ForkedAgent)]

    def note_over(self, host: str) -> None:
        """Note that no process of the attempt is left on this host."""
        self.reports.over.add(host)

    def left(self) -> dict[str, float]:
        """The hosts where it is not certain that no process is left -> seconds since they were last heard of."""
        silence = {host: watch.silence() for host, watch in self._watches.items()}
        return {host: silence.get(host, 0.0) for host in self.hosts if host not in self.reports.over}

    def _check_gone(self) -> None:
        if not self.reports.gone:
            return
        if any(gone.get("orphaned") for gone in self.reports.gone.values()):
            self._wait_a_moment()  # if all processes of the job are being killed, the launcher is next
            for end in self._ends():
                if end.error is not None and (end.host is None or end.code < 0):  # srun or qrsh was, not an agent
                    raise end.error
        if all("signal" in gone for gone in self.reports.gone.values()):
            # Usually the scheduler is ending the whole job and signals the launcher too, so wait briefly. Otherwise one
            # agent crashed and srun or qrsh stopped the rest; which one is known once all have ended.
            self._wait_a_moment()
            self.read()
            for end in self._ends():
                if isinstance(end.error, TerminatedError) or (end.host and end.code):
                    raise self._ended(end)
            raise self._terminated()
        gone = min(self.reports.gone.values(), key=lambda gone: "signal" in gone)
        kind = LauncherSilentError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _hear_last_words(self, host: str | None) -> None:
        """Wait for what an agent still has to say: srun or qrsh may end before its last message has come."""
        self.read()
        for left in self.system.within(_LAST_WORDS):
            if host not in self.listener.connected or host in self.reports.gone or host in self.reports.over:
                return
            self.system.wait(left)
            self.read()

    def _wait_a_moment(self) -> None:
        for left in self.system.within(_SIGNALS_LIMIT):
            self.pause(left)

    def _terminated(self) -> TerminatedError:
        hosts = sorted(self.reports.gone)
        agents = "the agent on host" if len(hosts) == 1 else "the agents on hosts"
        how = "/".join(sorted({signal_name(gone["signal"]) for gone in self.reports.gone.values()}))
        what = f"{agents} {some(hosts)} received {how}"
        return TerminatedError(what, hint="from the scheduler, which signals agents when it ends a job, or from a user")

    def _ended(self, end: AgentEnd, starter: StartedAgents | None = None) -> GridtfError:
        if end.error is not None:
            return end.error
        from gridtf.bootstrap.agent.exits import EXITS, NO_LAUNCHER

        who = f"the agent on host {end.host}" if end.host else "an agent"
        killed = signal_name(-end.code) if end.code < 0 else None
        how = f"was killed by {killed}" if killed else EXITS.get(end.code, f"ended with exit code {end.code}")
        lines = [] if killed else self._said_by(end.host, starter)
        log = self._log_of_agents()
        why = "; ".join(end.messages) or agentslog.agent_cause(lines, end.code)
        hint = agentslog.agent_hint(why) or f"see {log}"
        if end.code == NO_LAUNCHER:
            return LauncherSilentError(f"{who} {how}", why=why, hint=hint)
        exit_code = None if killed else end.code
        cause = {"task": None, "host": end.host, "exit": exit_code, "signal": killed, "log": str(log), "tail": lines}
        return AgentEndedError(f"{who} {how}", why=why, hint=hint, cause=cause)

    def _log_of_agents(self) -> Path:
        attempt = self.attempt
        return attempt.agents_log if attempt.agents_log.name in listdir(attempt.path) else attempt.run.log

    def _said_by(self, host: str | None, starter: StartedAgents | None) -> list[str]:
        """The last lines of an agent that has ended: slurmstepd may print them after srun has reported the end.

        Args:
            host: Its host.
            starter: What has started it and may still print them; None: that has ended.
        """
        begin = self.system.monotonic()
        while True:
            runs = starter is not None and starter.poll() is None  # asked first: it may print a line and end
            lines = agentslog.relevant(verdict.final_lines(self._log_of_agents()), host)
            if lines or self.system.monotonic() - begin >= (_LAST_WORDS_OF_SRUN if runs else _LAST_WORDS):
                return lines
            self.system.wait(_TEAR_DOWN_PAUSE)
