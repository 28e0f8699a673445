"""The launcher's view of the hosts of an attempt: what they report, how their agents end, and which host is silent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gridtf.bootstrap import messages, verdict
from gridtf.bootstrap.heartbeat import Watch, interval
from gridtf.bootstrap.stream import Listener
from gridtf.bootstrap.system import System
from gridtf.errors import CleanedUpError, GridtfError, HostLostError, TerminatedError
from gridtf.host.processes import signal_name
from gridtf.run.rundir import Attempt, Record, listdir
from gridtf.schedulers.agents import ForkedAgent, StartedAgents
from gridtf.schedulers.api import AgentEnd, AgentHandle
from gridtf.text import some
from gridtf.values import Fields

_LOOK = 0.1  # seconds between two looks at the hosts in a tear-down
_A_MOMENT = 2.0  # seconds within which a scheduler that ends a job has signalled all of its processes
_KILL_LIMIT = 5.0  # seconds within which a killed agent has ended
_LAST_WORDS = 2.0  # seconds for the reason why an agent has ended
_SKEW = 0.2  # seconds by which clocks of hosts may differ without being corrected: more than a message takes
_CLOSED = 1.0  # seconds after which, in a tear-down, an agent that has closed its connection does not come back
_RETURN = 10.0  # seconds within which an agent connects again when its connection was closed


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
    """The hosts of one attempt: what they report, how their agents end, and which host is silent.

    Attributes:
        attempt: The attempt.
        listener: The streams from the agents.
        hosts: The names of its hosts.
        limit: Seconds of silence after which a host counts as lost.
        agents: Handles on the agents of these hosts.
        pause: Waits for a number of seconds; raises when a signal ends the job meanwhile.
        system: This host.
        published: Host -> its addresses, ports, GPUs and versions.
        tasks: Task name -> its record, as its host has last reported it.
        waits: Host -> what its agent waits for.
        checkpoint: Whether a host reports that a checkpoint was requested there.
        reports: How many states of tasks have been reported.
        changed: Whether something has been reported since the owner of this set it to False.
        progressed: The same for the progress of tasks, and for samples.
        happened: Events of hosts and tasks, until the owner takes them: as in events.jsonl.
        sampled: Samples, and when logs have grown, until the owner takes them: messages of the kind SAMPLE.
        stacks: Host -> its answer to the last request for stacks.
    """

    attempt: Attempt
    listener: Listener
    hosts: Sequence[str]
    limit: float
    agents: Sequence[AgentHandle]
    pause: Callable[[float], None]
    system: System

    def __post_init__(self) -> None:
        self.published: dict[str, Record] = {}
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self.checkpoint = False
        self.reports = 0
        self.changed = self.progressed = False
        self.stacks: dict[str, Record] = {}
        self.happened: list[Record] = []
        self.sampled: list[Record] = []
        self._samples: dict[str, Record] = {}  # host -> its newest sample
        self._states: dict[str, Record] = {}  # host -> what it has reported last
        self._watches: dict[str, Watch] = {}
        self._skew: dict[str, float] = {}  # host -> seconds that its clock is behind this one, and a message's way
        self._gone: dict[str, Record] = {}  # host -> why its agent has ended by itself
        self._over: set[str] = set()  # hosts where no process of the job is left

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
            if kind == messages.HOST:
                if host not in self.published:
                    self.happened.append({"time": self.system.time(), "event": "ready", "host": host})
                self.published[host] = content
                self.changed = True
            elif kind == messages.STATE:
                self._note(host, content)
            elif kind == messages.STACKS:
                self.stacks[host] = content
            elif kind == messages.SAMPLE:
                self._note_sample(host, content)
            elif kind == messages.GONE:
                self._gone[host] = content
                self.changed = True
                if content.get("over"):
                    self._over.add(host)

    def _note(self, host: str, state: Record) -> None:
        self.reports += 1
        if "time" in state:
            late = self.system.time() - state["time"]
            self._skew[host] = min(late, self._skew.get(host, late))  # the least has spent the least time on its way
            state = {name: value for name, value in state.items() if name != "time"}
        before = self._states.get(host, {})
        self._states[host] = state
        self.changed = self.changed or _without_progress(before) != _without_progress(state)
        self.progressed = True
        for name, task in state["tasks"].items():
            self._note_event(host, name, self.tasks.get(name, {}), task)
        self.tasks.update(state["tasks"])
        if state.get("waits"):
            self.waits[host] = state["waits"]
        if state.get("checkpoint"):
            self.checkpoint = True
        if state.get("over"):
            self._over.add(host)
        if state.get("gone"):
            self._gone[host] = state["gone"]

    def _note_event(self, host: str, name: str, before: Record, task: Record) -> None:
        """Note that a task was started, or has ended."""
        skew = self._skew.get(host, 0.0)
        shifted = _shifted(task, skew) if abs(skew) > _SKEW else task
        restarts = task.get("restarts", 0)
        event = {"task": name, "host": host}
        if task.get("started") is not None and (before.get("started") is None or restarts > before.get("restarts", 0)):
            more = {"restarts": restarts} if restarts else {}
            self.happened.append({"time": shifted["started"], "event": "started", **event, **more})
        if task.get("ended") is not None and before.get("ended") != task["ended"]:
            how = {key: task.get(key) for key in ("state", "exit", "signal")}
            self.happened.append({"time": shifted["ended"], "event": "ended", **event, **how})

    def _note_sample(self, host: str, content: Record) -> None:
        """Note what a host has used, and when the logs there have grown, by the clock of this host."""
        skew = self._skew.get(host, 0.0)
        if abs(skew) > _SKEW:
            sample, logs = content.get("sample"), content["logs"]
            logs = {task: [[time + skew, size] for time, size in points] for task, points in logs.items()}
            content = {"logs": logs, **({"sample": {**sample, "time": sample["time"] + skew}} if sample else {})}
        if "sample" in content:
            self._samples[host] = content["sample"]
        self.sampled.append(content)
        self.progressed = True

    def by_one_clock(self) -> dict[str, Record]:
        """Task name -> its record, with its times by the clock of this host."""
        found = dict(self.tasks)
        for host, skew in self._skew.items():
            if abs(skew) > _SKEW:
                found.update({name: _shifted(task, skew) for name, task in self._states[host]["tasks"].items()})
        return found

    def records(self) -> dict[str, Record]:
        """Host -> what it has reported, for the record of all hosts."""
        found: dict[str, Record] = {}
        for host in self.hosts:
            known = {**self.published.get(host, {}), "tasks": {}, **self._states.get(host, {})}
            if host in self._gone:
                known["gone"] = self._gone[host]
            if host in self._samples:
                known["sample"] = self._samples[host]
            if host in self.published or host in self._states or host in self._gone:
                found[host] = known
        return found

    def check(self) -> None:
        """Check that all agents run and that no host is silent. Call read() first.

        Raises:
            GridtfError: An agent has ended although the launcher has not stopped it, or a host is silent.
        """
        for end in self._ends():
            if end.code < 0 and end.error is not None:  # a process of this host was killed: this came first
                # If SIGKILL does not end the launcher as well, it was that process alone. A signal that comes now is a
                # consequence: Grid Engine deletes a job whose qrsh is gone.
                until = self.system.monotonic() + _A_MOMENT
                while (left := until - self.system.monotonic()) > 0:
                    self.system.wait(left)
                raise end.error
            self._hear_last_words(end.host)
            self._check_gone()
            raise self._ended(end)
        self._check_gone()
        if self._over:
            host = min(self._over)
            raise GridtfError(f"the agent on host {host} has ended all processes there", hint="did a user signal it?")
        for host, watch in self._watches.items():
            if watch.silence() > watch.limit:
                raise HostLostError(
                    f"no heartbeat from host {host} for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network?",
                )
        now = self.system.monotonic()
        for host, since in self.listener.lost.items():
            if now - since > _RETURN:
                raise HostLostError(
                    f"the agent on host {host} has closed its connection and has not come back within {_RETURN:g} s",
                    hint="has the host crashed, or has a firewall closed the connection?",
                )

    def check_starts(self) -> None:
        """Check that no agent has failed while the program that has started it waits for another one.

        Reads what such a program has printed, where it starts the agents of several hosts: srun, not qrsh.

        Raises:
            GridtfError: An agent has failed.
        """
        for agent in self.agents if len(self.agents) < len(self.hosts) else ():
            if isinstance(agent, StartedAgents) and (end := agent.failed()) is not None:
                raise self._ended(end)

    def ended_before(self) -> GridtfError | None:
        """Why the job of a host has ended before a signal that ends the whole job; None where none has.

        Grid Engine deletes a job one of whose processes on another host has died of a signal, and its warning may be
        here before qrsh has ended. A host that has lost its agent has closed its connection, or never had one.
        """
        until = self.system.monotonic() + _A_MOMENT
        while (
            any(host not in self.listener.connected for host in self.hosts)
            and (left := until - self.system.monotonic()) > 0
        ):
            for end in self._ends():
                if end.code and end.error is not None and not isinstance(end.error, TerminatedError):
                    return end.error
            self.system.wait(min(left, _LOOK))
            with contextlib.suppress(GridtfError):
                self.read()
        return None

    def cleaned_up(self) -> CleanedUpError | None:
        """That the scheduler has ended an agent, as it should have ended that of an earlier start of the job."""
        for end in self._ends():
            if isinstance(end.error, CleanedUpError):
                # with all processes there; and no host has tasks before all have reported their ports
                met = self.published.keys() >= set(self.hosts)
                self._over |= {end.error.host} if met else set(self.hosts)
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
                look = now + _LOOK
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
        lost = {end.host for end in self._ends() if isinstance(end.error, HostLostError)} - self._over
        return any(host in lost and watch.silence() < recent for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether every host has reported that no process is left, is silent, or has closed its connection for good: an
        agent that was killed reports nothing, and its tasks have died with it."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        now = self.system.monotonic()
        closed = {host for host, since in self.listener.lost.items() if now - since > _CLOSED}
        return self._over | silent | closed >= set(self.hosts)

    def alone(self, here: str) -> bool:
        """Whether nothing has been heard of any host but this one for some time.

        Args:
            here: The scheduler's name of this host.
        """
        from gridtf.schedulers.batch import same_host

        others = [watch for host, watch in self._watches.items() if not same_host(host, here)]
        return bool(others) and all(watch.silence() > self.limit / 2 for watch in others)

    @property
    def forked(self) -> list[str]:
        """The hosts whose agents this process has forked: it is their subreaper."""
        return [agent.host for agent in self.agents if isinstance(agent, ForkedAgent)]

    def note_over(self, host: str) -> None:
        """Note that no process of the attempt is left on this host."""
        self._over.add(host)

    def leftovers(self) -> str:
        """What processes of the attempt have left behind, by host; empty where they have left nothing."""
        found = {host: state["left"] for host, state in sorted(self._states.items()) if state.get("left")}
        return "; ".join(f"left on {host}: {some(lines)}" for host, lines in found.items())

    def left(self) -> dict[str, float]:
        """The hosts where it is not certain that no process is left -> seconds since they were last heard of."""
        silence = {host: watch.silence() for host, watch in self._watches.items()}
        return {host: silence.get(host, 0.0) for host in self.hosts if host not in self._over}

    def _check_gone(self) -> None:
        if not self._gone:
            return
        if any(gone.get("orphaned") for gone in self._gone.values()):
            self._wait_a_moment()  # if all processes of the job are being killed, the launcher is next
            for end in self._ends():
                if end.error is not None and (end.host is None or end.code < 0):  # srun or qrsh was, not an agent
                    raise end.error
        if all("signal" in gone for gone in self._gone.values()):
            # Usually the scheduler is ending the whole job and signals the launcher too, so wait briefly. Otherwise one
            # agent crashed and srun or qrsh stopped the rest; which one is known once all have ended.
            self._wait_a_moment()
            self.read()
            for end in self._ends():
                if isinstance(end.error, TerminatedError) or (end.host and end.code):
                    raise self._ended(end)
            raise self._terminated()
        gone = min(self._gone.values(), key=lambda gone: "signal" in gone)
        kind = LauncherSilentError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _hear_last_words(self, host: str | None) -> None:
        """Wait for what an agent still has to say: srun or qrsh may end before its last message has come."""
        until = self.system.monotonic() + _LAST_WORDS
        self.read()
        while host in self.listener.connected and host not in self._gone and host not in self._over:
            if (left := until - self.system.monotonic()) <= 0:
                return
            self.system.wait(left)
            self.read()

    def _wait_a_moment(self) -> None:
        until = self.system.monotonic() + _A_MOMENT
        while (left := until - self.system.monotonic()) > 0:
            self.pause(left)

    def _terminated(self) -> TerminatedError:
        hosts = sorted(self._gone)
        agents = "the agent on host" if len(hosts) == 1 else "the agents on hosts"
        how = "/".join(sorted({signal_name(gone["signal"]) for gone in self._gone.values()}))
        what = f"{agents} {some(hosts)} received {how}"
        return TerminatedError(what, hint="from the scheduler, which signals agents when it ends a job, or from a user")

    def _ended(self, end: AgentEnd) -> GridtfError:
        if end.error is not None:
            return end.error
        from gridtf.bootstrap.agent import EXITS, NO_LAUNCHER

        who = f"the agent on host {end.host}" if end.host else "an agent"
        killed = signal_name(-end.code) if end.code < 0 else None
        how = f"was killed by {killed}" if killed else EXITS.get(end.code, f"ended with exit code {end.code}")
        lines = [] if killed else self._said_by(end.host)
        log = self._log_of_agents()
        why = "; ".join(end.messages) or verdict.agent_cause(lines)
        hint = verdict.agent_hint(why) or f"see {log}"
        if end.code == NO_LAUNCHER:
            return LauncherSilentError(f"{who} {how}", why=why, hint=hint)
        exit_code = None if killed else end.code
        cause = {"task": None, "host": end.host, "exit": exit_code, "signal": killed, "log": str(log), "tail": lines}
        return AgentEndedError(f"{who} {how}", why=why, hint=hint, cause=cause)

    def _log_of_agents(self) -> Path:
        attempt = self.attempt
        return attempt.agents_log if attempt.agents_log.name in listdir(attempt.path) else attempt.run.log

    def _said_by(self, host: str | None) -> list[str]:
        """The last lines of an agent that has ended: slurmstepd may print them after srun has reported the end."""
        until = self.system.monotonic() + _LAST_WORDS
        while True:
            lines = verdict.relevant(verdict.final_lines(self._log_of_agents()), host)
            if lines or self.system.monotonic() >= until:
                return lines
            self.system.wait(_LOOK)


def _shifted(task: Record, seconds: float) -> Record:
    moved = {name: task[name] + seconds for name in ("started", "ended", "quiet") if task.get(name) is not None}
    if noted := task.get("exception"):
        moved["exception"] = {**noted, "time": noted["time"] + seconds}
    return {**task, **moved}


def _without_progress(state: Record) -> Record:
    tasks = {name: {**task, "progress": None} for name, task in state.get("tasks", {}).items()}
    return {**state, "tasks": tasks}
