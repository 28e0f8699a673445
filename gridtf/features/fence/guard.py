"""The guard of a host (the package): it vouches for its user's connections, and opens gates to those of its friends."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from gridtf.features.fence.guardmail import ASK, HELLO, LET, TAKE, WELCOME, Mail, Peer
from gridtf.host import gates, processes, procfs, sockets
from gridtf.host.gates import Gate, Syn
from gridtf.host.sockets import Connections, Ends

USERS, HOSTS, OFF, AUTO = "users", "hosts", "off", "auto"

# Seconds. Linux sends a SYN again after one, two or three, and so on, but later than it says by up to an eighth of the
# pause, since its timers are the coarser the longer they run.
_LOOK_PAUSE, _QUIET_PAUSE = 0.2, 0.6  # between two looks: for new connections, and only at the gates
_LIVELY = 10.0  # after a connection of this host's has begun, in which others are likely
_EARLY, _LATE = 0.1, 0.05  # that a word is given before the SYN is due again, and holds after it was sent
_WORD_PAUSE = 0.002  # between two looks whether a word has done its work
_REPEAT = 0.03  # between two words on one connection, in case one gets lost
_EXPIRES = 0.15  # that a word holds which is not repeated
_START_LOOK = 30.0  # after the start, in which everyone looks
_DEAF = 10.0  # after the start, in which another guard answers; in vain: no word gets through
_LINGER_LIMIT = 3.0  # after the agent's end, in which its tasks die

_MOST_SYNS = 250  # in a gate's program
_NEVER = float("inf")
_OWN = float("inf")  # a word of this guard's own, which it takes back itself
_IPV6_LOOPBACK = bytes(15) + b"\x01"


class Admissions:
    """Who is let in through the gates of this host.

    Args:
        gates: Port -> the gate on it.
        known: The hosts of the job.
        local: Whether all users of these hosts are let in.

    Attributes:
        local: The same, for now.
        let: Port -> the connections that are let in, until when.
    """

    def __init__(self, gates: Mapping[int, Gate], known: Mapping[str, Peer], *, local: bool) -> None:
        self._gates, self.local = gates, local
        self._all_hosts = {address for peer in known.values() for address in peer.addresses} | {_IPV6_LOOPBACK}
        # where connections cannot be seen, all of them are a friend's
        self._unseen = {address for peer in known.values() if not peer.door for address in peer.addresses}
        self.let: dict[int, dict[Syn, float]] = {port: {} for port in gates}
        self._changed: set[int] = set(gates)

    def trust(self, *, local: bool) -> None:
        """Let in all users of the job's hosts, or only those of hosts where connections cannot be seen."""
        self.local = local
        self._changed.update(self._gates)

    def hold(self, kind: int, ends: Ends, until: float) -> None:
        """Take note of a word on a connection.

        Args:
            kind: LET or TAKE.
            ends: The connection.
            until: Until when it holds.
        """
        source, source_port, target, port = ends
        syn = source, target, source_port
        syns = self.let.get(port)
        if syns is None or (kind == TAKE and syn not in syns):
            return
        if kind == TAKE or syn not in syns:
            self._changed.add(port)
        if kind == TAKE:
            del syns[syn]
        else:
            syns[syn] = until

    def expire(self, connections: Connections, now: float) -> None:
        """Forget words that have done their work, or were not repeated."""
        for port, syns in self.let.items():
            for (source, target, source_port), until in list(syns.items()):
                ended = until < _OWN and connections.exists((target, port, source, source_port))
                if ended or now > until:
                    del syns[source, target, source_port]
                    self._changed.add(port)

    def apply(self) -> None:
        """Tell the gates what has changed.

        Raises:
            OSError: The kernel refuses, as with too many hosts.
        """
        for port in self._changed:
            syns = list(self.let[port])[:_MOST_SYNS]  # the others get in with their next SYN
            hosts = self._all_hosts if self.local else self._unseen
            self._gates[port].admit(gates.gate_program(hosts, syns, local=self.local))
        self._changed.clear()

    def knocks(self) -> int:
        """How many SYNs the gates have dropped."""
        return sum(gate.drops() for gate in self._gates.values())

    def descriptors(self) -> list[int]:
        """Those of the gates."""
        return [gate.fileno() for gate in self._gates.values()]

    def listening(self) -> bool:
        """Whether a task still listens on a port with a gate."""
        own = {os.fstat(descriptor).st_ino for descriptor in self.descriptors()}
        return bool(sockets.listening(self._gates, own))


class Guard:
    """Vouches for the connections of its user that begin on this host, and opens gates to those that others vouch for.

    Args:
        mode: USERS or HOSTS.
        gates: Port -> the gate on it.
        mail: What is said among the guards of the job.
    """

    def __init__(self, mode: str, gates: Mapping[int, Gate], mail: Mail) -> None:
        self._mail, self._gates = mail, Admissions(gates, mail.peers, local=mode == HOSTS)
        known, host, own = mail.peers, mail.host, mail.peers[mail.host]
        self._targets = {
            (address, port): name for name, peer in known.items() for address in peer.addresses for port in peer.ports
        }
        self._targets.update(((address, port), host) for address in own.addresses for port in own.ports)
        self._own_ports = frozenset(own.ports)
        # connections of this host -> when their SYN is sent again, the inode of their socket
        self._coming: dict[Ends, tuple[float, int]] = {}
        self._vouched: dict[Ends, float] = {}  # those that others were told of -> until when
        self._borrowed: dict[Ends, int] = {}  # those that cannot vanish meanwhile -> a descriptor
        self._borrowing = 0.0  # seconds that it took the last time: long where many processes want few CPUs
        self._given_back: list[tuple[float, int]] = []  # from when a descriptor is not needed, in order
        self._said: dict[Ends, float] = {}
        self._drops = 0

    def begin(self) -> None:
        """Let in whoever needs no word, and hear only other guards.

        Raises:
            OSError: The kernel refuses, as with too many hosts.
        """
        self._gates.trust(local=self._gates.local)
        self._gates.apply()
        if self._mail.udp:
            doors = {(address, peer.door) for peer in self._mail.peers.values() for address in peer.addresses}
            gates.attach(self._mail.udp, gates.source_filter(doors))

    def run(self, agent: socket.socket) -> None:
        """Guard until the agent ends, and then until no task listens any more. For a process of its own.

        Args:
            agent: A connection to the agent.
        """
        kept = [agent.fileno(), *self._gates.descriptors()]
        processes.keep_only([*kept, self._mail.udp.fileno()] if self._mail.udp else kept)
        processes.ignore_signals((signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2))
        processes.unblock_signals()
        try:
            self.begin()
            self.guard(agent)
        except Exception as error:  # the agent starts another one
            self._report(f"the guard of the tasks' ports cannot go on: {error!r}")
            return
        # the gates of the agent are gone, and its tasks may still live for a moment
        processes.ignore_signals((signal.SIGTERM,))
        gone = time.monotonic() + _LINGER_LIMIT
        while time.monotonic() < gone and self._gates.listening():
            time.sleep(0.01)

    def guard(self, agent: socket.socket) -> None:
        """Guard until the agent ends.

        Args:
            agent: As for run.

        Raises:
            OSError: The kernel refuses.
        """
        self._agent = agent
        if self._mail.udp is None:
            select.select([agent], [], [])
            return
        with Connections() as self._connections:
            self._guard(self._mail.udp)

    def _guard(self, udp: socket.socket) -> None:
        udp.setblocking(False)
        begin = self._next = time.monotonic()
        self._calm = begin + _START_LOOK
        self._deaf_at = begin + _DEAF if self._mail.neighbour() else _NEVER
        self._mail.count = time.monotonic_ns()  # more than a guard before this one
        self._drops = self._gates.knocks()
        self._asked = begin + _START_LOOK  # until then, everyone looks
        while True:
            self._rest(udp)
            now = time.monotonic()
            ready, _, _ = select.select([self._agent, udp], [], [], self._pause(now))
            if self._agent in ready:
                return
            now = time.monotonic()
            if udp in ready:
                self._hear(now)
            if now >= self._next:
                self._look(now)
            self._vouch(now)
            self._watch(now)
            self._gates.apply()
            while self._given_back and self._given_back[0][0] <= now:
                os.close(self._given_back.pop(0)[1])

    def _rest(self, udp: socket.socket) -> None:
        """Wait, with as little work as possible, until something happens."""
        vouching = self._coming or self._given_back or self._vouched or any(self._gates.let.values())
        if vouching or self._deaf_at < _NEVER or time.monotonic() < self._calm:
            return
        while self._gates.knocks() == self._drops and not select.select([self._agent, udp], [], [], _QUIET_PAUSE)[0]:
            pass
        self._next = time.monotonic()

    def _pause(self, now: float) -> float:
        if self._vouched or any(self._gates.let.values()):
            return _WORD_PAUSE
        return max(0.0, min([self._next, *(due - self._ahead for due, _ in self._coming.values())]) - now)

    @property
    def _ahead(self) -> float:
        """How long before a SYN is due again the work on its word begins."""
        return _EARLY + self._borrowing

    def _look(self, now: float) -> None:
        """Look for new connections while there are some, and while somebody knocks here."""
        knocks = self._gates.knocks()
        knocked, self._drops = knocks != self._drops, knocks
        if knocked and now >= self._asked:
            self._asked = now + _QUIET_PAUSE
            for name in self._mail.peers:
                self._mail.tell(name, ASK)
        if now < self._calm or knocked:
            found = self._connections.beginning(os.getuid())
            self._coming = {
                ends: (now + due, inode)
                for ends, (due, inode) in found.items()
                if ends not in self._vouched and self._owner(ends)
            }
            if self._coming:
                self._calm = max(self._calm, now + _LIVELY)
        if self._deaf_at < _NEVER:
            self._mail.tell(self._mail.neighbour(), HELLO)
            if now >= self._deaf_at and not self._gates.local:
                self._trust(local=True)
        self._next = now + (_LOOK_PAUSE if now < self._calm else _QUIET_PAUSE)

    def _trust(self, *, local: bool) -> None:
        """Let in all users of all hosts, and say so; or no longer."""
        self._gates.trust(local=local)
        near = self._mail.neighbour()
        more = f"all users of the job's hosts, since no word from host {near} arrives: is UDP blocked?"
        whom = more if local else "their user alone again"
        self._report(f"the tasks' ports on host {self._mail.host} are open to {whom}")

    def _report(self, text: str) -> None:
        with suppress(OSError):  # the agent has ended
            self._agent.send(text.encode())

    def _owner(self, ends: Ends) -> str | None:
        """The host of the task that a connection is for; None if it is for none."""
        _, _, target, port = ends
        if target == _IPV6_LOOPBACK or (len(target) == 4 and target.startswith(b"\x7f")):
            return self._mail.host if port in self._own_ports else None
        return self._targets.get((target, port))

    # --- connections that begin here

    def _vouch(self, now: float) -> None:
        near = {ends: inode for ends, (due, inode) in self._coming.items() if due - now <= self._ahead}
        if not near:
            return
        # their sockets could be closed, and ports and addresses be a stranger's, before the word is taken back
        borrowed = processes.borrow_sockets(near.values(), procfs.family(os.getppid()))
        begin, now = now, time.monotonic()
        self._borrowing = now - begin
        for ends, inode in near.items():
            del self._coming[ends]
            due = self._connections.waits(ends)
            if due is not None and due <= self._ahead + _LATE:
                self._vouched[ends] = now + due + _LATE
                if inode in borrowed:
                    self._borrowed[ends] = borrowed.pop(inode)
                self._say(LET, ends, now)
            elif due is not None:  # sent again meanwhile
                self._coming[ends] = now + due, inode
        for descriptor in borrowed.values():
            os.close(descriptor)

    def _watch(self, now: float) -> None:
        """Take words back as soon as they have done their work."""
        for ends, until in list(self._vouched.items()):
            due = self._connections.waits(ends)
            self._vouched[ends] = until = holds_until(until, due, now, self._ahead)
            if now > until:
                del self._vouched[ends]
                self._say(TAKE, ends, now)
                del self._said[ends]
                if ends in self._borrowed:
                    self._give_back(ends, now)
            elif now - self._said[ends] > _REPEAT:
                self._say(LET, ends, now)
        self._gates.expire(self._connections, now)

    def _give_back(self, ends: Ends, now: float) -> None:
        """Close the duplicate of a socket once no gate knows the connection any more."""
        here = self._owner(ends) == self._mail.host
        self._given_back.append((now if here else now + 2 * _EXPIRES, self._borrowed.pop(ends)))
        self._given_back.sort()

    def _say(self, kind: int, ends: Ends, now: float) -> None:
        self._said[ends] = now
        name = self._owner(ends)
        if name == self._mail.host:
            self._gates.hold(kind, ends, _OWN)
        elif name is not None:
            self._mail.tell(name, kind, ends)

    # --- connections that others vouch for

    def _hear(self, now: float) -> None:
        for word, sender in self._mail.hear():
            if word.kind in (LET, TAKE):
                self._gates.hold(word.kind, word.ends, now + _EXPIRES)
            elif word.kind == ASK:
                self._calm, self._next = max(self._calm, now + 2 * _QUIET_PAUSE), now
            elif word.kind == HELLO:
                self._mail.welcome(sender)
            elif word.kind == WELCOME:
                self._deaf_at = _NEVER
                if self._gates.local:
                    self._trust(local=False)


def holds_until(until: float, due: float | None, now: float, ahead: float) -> float:
    """Until when a word on a connection holds: a moment longer than its SYN is due, however late that is sent. Pure.

    Args:
        until: What this function has returned before.
        due: In how many seconds the kernel means to send the SYN again; 0: it is late; None: no process waits any more.
        now: The time.
        ahead: How long before the SYN is due a word may be given.
    """
    if due is None:
        return float("-inf")
    return max(until, now + due + _LATE) if due <= ahead + _LATE else until
