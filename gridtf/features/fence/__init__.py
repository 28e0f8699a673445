"""The fence round the ports of the tasks, whose gRPC has no authentication: who may connect, and how gates learn it.

Each port has a gate (host/gates.py), which the agent closes before anybody knows the port. Two ways to know a friend:

hosts: whoever connects from an address of the job's hosts. Nothing has to be done for a connection.
users: a connection of this user's, vouched for on the host where it begins. A guard on each host, a process forked from
    the agent, finds connections of its user to ports of the job whose SYN was not answered (host/sockets.py), and tells
    the guard of the other host shortly before the kernel sends the SYN again, which is after a second. That word is
    taken back as soon as it has done its work, since the addresses and ports may then become another user's.

So that a quiet job costs next to nothing, a guard looks for new connections only while there are some. Otherwise it
reads how many SYNs its own gates have dropped; if somebody knocks, it asks all guards to look.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import api as agent_api
from gridtf.bootstrap.launcher import api as launcher_api
from gridtf.bootstrap.wire.helper import Helper
from gridtf.features.fence.guard import AUTO, HOSTS, OFF, USERS, Guard
from gridtf.features.fence.guardmail import Mail, peers
from gridtf.host import gates, network, sockets
from gridtf.host.gates import Gate
from gridtf.host.sockets import Connections
from gridtf.run.rundir import Record
from gridtf.text import some

if TYPE_CHECKING:
    from gridtf.bootstrap.system import System


def wanted(fence: str, *, exclusive: bool) -> str:
    """What a job wants: USERS, HOSTS or OFF. Pure.

    Args:
        fence: As JobSpec.fence.
        exclusive: Whether the job has its hosts for itself.
    """
    return fence if fence != AUTO else HOSTS if exclusive else USERS


def note(records: Mapping[str, Record]) -> str:
    """What is not as the job wants it, for the status; empty where all is. Pure.

    Args:
        records: Host -> the record that it has published.
    """
    weak: dict[str, list[str]] = {}
    for host, record in records.items():
        if why := record.get("unfenced"):
            weak.setdefault(f"{_WEAKER.get(record['fence'], _PARTLY)} ({why})", []).append(host)
    return "; ".join(f"{how}: {some(hosts)}" for how, hosts in weak.items())


_PARTLY = "some ports are open to other users"
_WEAKER = {OFF: "ports are open to other users", HOSTS: "ports are open to other users of the job's hosts"}


class InLauncher(launcher_api.Feature):
    """Says whom the ports are open to, where that is not as the job wants it."""

    vital = False
    _told = ""

    def met(self) -> None:
        self._told = note(self.view.hosts.reports.published)
        if self._told:
            self.view.reporter.notice(self._told)

    def status(self) -> str:
        return self._told


# --- the agent's part

# Seconds between two starts of a guard: more each time that it ends soon.
_RESTART_PAUSE, _LONGEST_RESTART_PAUSE = 0.5, 30.0


class InAgent(agent_api.Feature):
    """The fence of a host."""

    vital = True

    def __init__(self, view: agent_api.AgentView) -> None:
        super().__init__(view)
        exclusive = view.scheduler.injob.is_exclusive(view.plan.request)
        self._fence = Fence(wanted(view.plan.spec.fence, exclusive=exclusive), view.plan.secret, view.system)
        self._opened = False

    def published(self, held: Collection[socket.socket], *, released: bool) -> agent_api.Published:
        self._fence.close(held, released=released)
        return agent_api.Published(self._fence.record(), self._fence.inodes)

    def look(self) -> Mapping[str, Record]:
        if self._opened:
            self._fence.keep()
        elif met := self.view.conversation.rendezvous:
            self._opened = True
            self._fence.open(met.get("doors", {}), self.view.state.host)
        return {}

    def end(self) -> None:
        self._fence.leave()


class Fence:
    """The gates of the tasks of one host, and the guard that opens them to friends.

    Args:
        mode: What the job wants: USERS, HOSTS or OFF.
        key: The key of the attempt.
        system: This host.

    Attributes:
        mode: What is in force: USERS, HOSTS or OFF.
        why: Why that is less than the job wants; empty where it is not.
    """

    def __init__(self, mode: str, key: bytes, system: System) -> None:
        self.mode, self.why = mode, ""
        self._key = key
        self._system = system
        self._gates: dict[int, Gate] = {}
        self._addresses: list[str] = []
        self._udp: socket.socket | None = None
        self._guard: Guard | None = None
        self._helper = Helper(_RESTART_PAUSE, system)  # the guard's process
        if mode == OFF:
            return
        try:
            self._addresses = network.all_addresses()
            with sockets.bound() as trial:
                Gate(trial)
        except OSError as error:
            self.mode, self.why = OFF, _reason(error)
            return
        if mode == USERS:
            try:
                with Connections() as connections:
                    connections.beginning(os.getuid())
                self._udp = sockets.bound(socket.SOCK_DGRAM)
            except OSError as error:
                self.mode, self.why = HOSTS, f"connections cannot be seen: {_reason(error)}"

    @property
    def inodes(self) -> frozenset[int]:
        """The sockets of the gates, which listen but are no servers."""
        return frozenset(os.fstat(gate.fileno()).st_ino for gate in self._gates.values())

    def record(self) -> Record:
        """The entries of this host's record."""
        door = self._udp.getsockname()[1] if self._udp else 0
        why = {"unfenced": self.why} if self.why else {}
        return {"fence": self.mode, "door": door, "addresses": self._addresses, **why}

    def close(self, held: Collection[socket.socket], *, released: bool = False) -> None:
        """Close a gate on each port.

        Args:
            held: The sockets that hold the ports.
            released: Whether other tasks have ports that are not held.
        """
        if self.mode == OFF:
            return
        for each in held:
            try:
                self._gates[each.getsockname()[1]] = Gate(each)
            except OSError as error:
                with suppress(OSError):
                    gates.attach(each, gates.EVERYBODY)
                self._give_up(_reason(error))
                return
        if released:
            self.mode = self.mode if held else OFF
            self.why = "ports are released, for old versions of TensorFlow"

    def open(self, doors: Mapping[str, Record], host: str) -> None:
        """Let friends in, and start the guard.

        Args:
            doors: What the hosts have published, as in Rendezvous.
            host: This host.
        """
        self._guard = self.admit(doors, host)
        self.keep()

    def admit(self, doors: Mapping[str, Record], host: str) -> Guard | None:
        """Let in whoever needs no word of a guard.

        Args:
            doors: As for open.
            host: This host.

        Returns:
            The guard of this host, which has not been started; None without a fence.
        """
        if not doors or self.mode == OFF:
            return None
        known = peers(doors)
        guard = Guard(self.mode, self._gates, Mail(known, host, self._key, self._udp))
        hidden = [name for name, peer in known.items() if not peer.addresses and name != host]
        why = f"addresses are not known of {some(hidden)}" if hidden else ""
        try:
            guard.begin()
        except OSError as error:
            why = _reason(error)
        if why:
            self._give_up(why)
            self._system.log(f"no fence on host {host}: {self.why}")
            return None
        return guard

    def leave(self) -> None:
        """Close the sockets of this process, when the tasks have ended. The gates go with the ports."""
        if self._udp is not None:
            self._udp.close()
        self._helper.forget()

    def keep(self) -> None:
        """Start the guard again if it was killed: until then, nobody else gets in."""
        if self._guard is None:
            return
        was = self._helper.pid
        if report := self._helper.hear():
            self._system.log(report.decode(errors="replace"))
        if was is not None and self._helper.pid is None:
            self._system.log("the guard of the tasks' ports has ended, and is started again")
            with suppress(OSError):
                self._guard.begin()  # whom it has let in just now is not known any more
            lived = self._system.monotonic() - self._helper.begun
            self._helper.again = (
                min(2 * self._helper.again, _LONGEST_RESTART_PAUSE)
                if lived < _LONGEST_RESTART_PAUSE
                else _RESTART_PAUSE
            )
        if self._helper.due:
            self._helper.start(self._guard.run)

    def _give_up(self, why: str) -> None:
        self.mode, self.why = OFF, why
        for gate in self._gates.values():
            with suppress(OSError):
                gate.admit(gates.EVERYBODY)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
