"""What the launcher knows of its hosts: what their records say, how their agents end, and who is silent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from gridtf.bootstrap.exits import EXITS, NO_LAUNCHER
from gridtf.bootstrap.heartbeat import Patience, Watch, interval
from gridtf.errors import GridtfError, HostLostError, ToldToEndError
from gridtf.host.processes import signal_name, wait_for_signal
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, names, read_record
from gridtf.run.tail import last_lines
from gridtf.schedulers.base import AgentEnd, AgentHandle
from gridtf.text import some, were

# What one scheduler tells several processes it tells them within this, in seconds.
_A_MOMENT = 2.0


class UnheardError(GridtfError):
    """Agents have heard no more from us."""


class AgentEndedError(GridtfError):
    """An agent that could not start or go on. cause: as in a verdict, where the log is that of the agents."""

    def __init__(self, what: str, *, why: str = "", hint: str = "", cause: Record | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.cause = cause


class Hosts:
    """The hosts of one attempt. limit: seconds of silence after which one is lost. pause: waits so many seconds, and
    raises when a signal ends the job meanwhile.

    tasks: what they last said of each task, by its name. waits: what hosts wait for, by their name.
    """

    def __init__(
        self,
        attempt: Attempt,
        nonce: str,
        names: Sequence[str],
        limit: float,
        handles: Sequence[AgentHandle],
        pause: Callable[[float], None],
    ) -> None:
        self.names = tuple(names)
        self._attempt = attempt
        self._nonce = nonce
        self._limit = limit
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self._handles = handles
        self._pause = pause
        self._patience = Patience(limit)
        self._watches: dict[str, Watch] = {}
        self._gone: dict[str, Record] = {}  # host -> why its agent has left
        self._over: set[str] = set()  # hosts where nobody of the job is left

    def listen(self) -> None:
        """From now on silence counts."""
        self._watches = {host: Watch(self._limit) for host in self.names}

    def read(self) -> None:
        """Read what the hosts say. Raises RunDirError when that is refused for good."""
        with self._patience.trying():
            self._read()

    def _read(self) -> None:
        attempt = self._attempt
        there = set(names(attempt.state))
        for host in self.names:
            path = attempt.host_state(host)
            if path.name not in there:
                continue
            record = read_record(path, recordtypes.HostState, nonce=self._nonce, listed=True, own=True)
            if record is None:
                continue
            if host in self._watches:
                self._watches[host].heard(record.get("beat"))
            self.tasks.update(record["tasks"])
            if record.get("waits"):
                self.waits[host] = record["waits"]
            if record.get("over"):
                self._over.add(host)
            if record.get("gone"):
                self._gone[host] = record["gone"]

    def check(self) -> None:
        """Raise when an agent has ended or left although nobody told it to, or a host is silent. Read them before."""
        for handle in self._handles:
            end = handle.poll()
            if end is not None:
                if end.code < 0 and end.error is not None:  # on this host, so we know for sure who began
                    # Unless KILL ends us next, it was this alone. A signal that comes now is its consequence: Grid
                    # Engine deletes a job whose qrsh is gone.
                    wait_for_signal(_A_MOMENT)
                    raise end.error
                self.read()
                self._check_gone()
                raise self._ended(end)
        self._check_gone()
        if self._over:
            host = min(self._over)
            raise GridtfError(f"the agent on host {host} has ended all that ran there", hint="was it told to by hand?")
        for host, watch in self._watches.items():
            if watch.silence() > watch.limit:
                if self._patience.trouble is not None:  # it is we who cannot read what they say
                    raise self._patience.trouble
                raise HostLostError(
                    f"host {host} has not been heard of for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network or the shared file system?",
                )

    def end(self, seconds: float, beat: Callable[[], None]) -> None:
        """Tell all agents to tear down and to end; those that have not after so many seconds are ended by force.

        beat: is called meanwhile.
        """
        for handle in self._handles:
            handle.terminate()
        if not self._ended_within(seconds, beat):
            for handle in self._handles:
                handle.kill()
            self._ended_within(5.0, beat)

    def _ended_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        begin = time.monotonic()
        deadline, look, ended = begin + seconds, begin + 1.0, False
        while (running := any(handle.poll() is None for handle in self._handles)) or self._cut_off():
            now = time.monotonic()
            if now > deadline:
                return False
            if now > look or not (running or ended):
                ended = not running
                # srun waits for hosts that are lost, or where nobody is left who could tell it
                look = now + look_again(len(self.names), now - begin)
                with contextlib.suppress(GridtfError):
                    self.read()
                if self._all_over():
                    deadline = min(deadline, now + 1.0)
            wait_for_signal(0.05)
            beat()
        return True

    def _cut_off(self) -> bool:
        """Whether somebody is still heard of on a host that the connection is lost to: stop.json will reach it."""
        heard = 3 * interval(len(self.names), self._limit)
        ends = [handle.poll() for handle in self._handles]
        lost = {end.host for end in ends if end is not None and isinstance(end.error, HostLostError)} - self._over
        return any(host in lost and watch.silence() < heard for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether nothing more is to come: every host has said that nobody is left there, or is silent."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        return self._over | silent >= set(self.names)

    def _check_gone(self) -> None:
        if not self._gone:
            return
        if any(gone.get("orphaned") for gone in self._gone.values()):
            self._pause(_A_MOMENT)  # whoever ends a whole job by KILL may have begun there, and end us next
            for end in filter(None, (handle.poll() for handle in self._handles)):
                if end.error is not None and end.host is None:  # it was not an agent
                    raise end.error
        if all("signal" in gone for gone in self._gone.values()):
            # Mostly the whole job is to end, and whoever ended it tells us as well, in a moment. Else one agent has
            # ended badly, and that was how the others were told: who it was is known when all have ended.
            self._pause(_A_MOMENT)
            self.read()
            for end in filter(None, (handle.poll() for handle in self._handles)):
                if end.host and end.code:
                    raise self._ended(end)
            raise self._told()
        gone = min(self._gone.values(), key=lambda gone: "signal" in gone)
        kind = UnheardError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _told(self) -> ToldToEndError:
        hosts = sorted(self._gone)
        agents = "the agent on host" if len(hosts) == 1 else "the agents on hosts"
        how = "/".join(sorted({signal_name(gone["signal"]) for gone in self._gone.values()}))
        what = f"{agents} {some(hosts)} {were(hosts)} told to end by {how}"
        return ToldToEndError(what, hint="by the scheduler, which does so when it ends a job, or by hand")

    def _ended(self, end: AgentEnd) -> GridtfError:
        if end.error is not None:
            return end.error
        from gridtf.bootstrap import agentslog

        who = f"the agent on host {end.host}" if end.host else "an agent"
        killed = signal_name(-end.code) if end.code < 0 else None
        how = f"was killed by {killed}" if killed else EXITS.get(end.code, f"ended with exit code {end.code}")
        attempt = self._attempt
        log = attempt.agents_log if attempt.agents_log.name in names(attempt.path) else attempt.run.log
        lines = [] if killed else agentslog.telling(last_lines(log), end.host)
        why = "; ".join(end.words) or agentslog.cause(lines)
        hint = agentslog.advice(why) or f"see {log}"
        if end.code == NO_LAUNCHER:
            return UnheardError(f"{who} {how}", why=why, hint=hint)
        exit_code = None if killed else end.code
        cause = {"task": None, "host": end.host, "exit": exit_code, "signal": killed, "log": str(log), "tail": lines}
        return AgentEndedError(f"{who} {how}", why=why, hint=hint, cause=cause)


def look_again(hosts: int, age: float) -> float:
    """Seconds until the next look at the hosts' states. age: of the job, in seconds.

    Quick while it is young, when most jobs that fail do so, then sparing of the file server, which sees one read a host
    and look: 200 a second at the most.
    """
    return max(0.05 if age < 10 else 0.25, hosts / 200)
