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
import select
import signal
import socket
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from gridtf.bootstrap.wire.helper import Helper
from gridtf.host import gates, network, processes, procfs, sockets
from gridtf.host.gates import Gate, Syn
from gridtf.host.sockets import Connections, Ends
from gridtf.run.rundir import Record
from gridtf.text import some
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.system import System

USERS, HOSTS, OFF, AUTO = "users", "hosts", "off", "auto"


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


# --- words between guards

LET, TAKE, ASK, HELLO, WELCOME = range(1, 6)
_WORD = struct.Struct("!BBHQ16s16sHH")  # kind, size of an address, sender, count, addresses, ports
_MARK = 32  # bytes of an HMAC with SHA-256
NOBODY: Ends = (bytes(4), 0, bytes(4), 0)


class Word(Value):
    """What a guard says to another one.

    Attributes:
        kind: LET or TAKE, let this connection in, or no longer; ASK, look for new connections; HELLO and WELCOME.
        sender: The place of its host in the plan.
        count: Grows with every word of a sender.
        ends: The connection; its client's end first.
    """

    kind: int
    sender: int
    count: int
    ends: Ends = NOBODY

    def sealed(self, key: bytes) -> bytes:
        """The word as a datagram, with a mark that only owners of the key can make."""
        source, port, target, target_port = self.ends
        word = _WORD.pack(self.kind, len(source), self.sender, self.count, source, target, port, target_port)
        return word + _mark(key, word)


def opened(data: bytes, key: bytes) -> Word | None:
    """Read a datagram. Pure.

    Args:
        data: What was received.
        key: The key of the attempt.

    Returns:
        The word; None if somebody without the key has made it.
    """
    word, mark = data[:-_MARK], data[-_MARK:]
    if len(word) != _WORD.size or not _same(_mark(key, word), mark):
        return None
    kind, size, sender, count, source, target, port, target_port = _WORD.unpack(word)
    return Word(kind, sender, count, (source[:size], port, target[:size], target_port))


def _mark(key: bytes, word: bytes) -> bytes:
    import hmac  # a guard needs it, the agent does not

    return hmac.digest(key, word, "sha256")


def _same(mark: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(mark, other)


class Peer(Value):
    """A host of the job, as the fence sees it.

    Attributes:
        addresses: Those that other hosts may see.
        door: The UDP port of its guard; 0 where it has none that can vouch for connections.
        ports: Of its tasks.
    """

    addresses: tuple[bytes, ...]
    door: int
    ports: tuple[int, ...]


def peers(doors: Mapping[str, Record]) -> dict[str, Peer]:
    """Read what the hosts have published. Pure.

    Args:
        doors: Host -> ``addresses``, ``door`` and ``ports``.
    """
    return {
        host: Peer(tuple(network.packed(text) for text in door["addresses"]), door["door"], tuple(door["ports"]))
        for host, door in doors.items()
    }


# --- the agent's part

FILES = 4  # that a fence opens beside its gates
_AGAIN, _LONGEST = 0.5, 30.0  # seconds between two starts of a guard: more each time that it ends soon


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
        self._helper = Helper(_AGAIN, system)  # the guard's process
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
        guard = Guard(self.mode, self._gates, known, host, self._key, self._udp)
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
            self._helper.again = min(2 * self._helper.again, _LONGEST) if lived < _LONGEST else _AGAIN
        if self._helper.due:
            self._helper.start(self._guard.run)

    def _give_up(self, why: str) -> None:
        self.mode, self.why = OFF, why
        for gate in self._gates.values():
            with suppress(OSError):
                gate.admit(gates.EVERYBODY)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# --- the guard of a host

# Seconds. Linux sends a SYN again after one, two or three, and so on, but later than it says by up to an eighth of the
# pause, since its timers are the coarser the longer they run.
_LOOK, _QUIET = 0.2, 0.6  # between two looks: for new connections, and only at the gates
_LIVELY = 10.0  # after a connection of this host's has begun, in which others are likely
_EARLY, _LATE = 0.1, 0.05  # that a word is given before the SYN is due again, and holds after it was sent
_WATCH = 0.002  # between two looks whether a word has done its work
_REPEAT = 0.03  # between two words on one connection, in case one gets lost
_EXPIRES = 0.15  # that a word holds which is not repeated
_START = 30.0  # after the start, in which everyone looks
_DEAF = 10.0  # after the start, in which another guard answers; in vain: no word gets through
_LINGER = 3.0  # after the agent's end, in which its tasks die

_MOST_ADDRESSES = 4  # of a host, on which its guard is sought
_MOST_SYNS = 250  # in a gate's program
_MOST_WORDS = 64  # that are heard at once


class Guard:
    """Vouches for the connections of its user that begin on this host, and opens gates to those that others vouch for.

    Args:
        mode: USERS or HOSTS.
        gates: Port -> the gate on it.
        known: The hosts of the job.
        host: This host.
        key: The key of the attempt.
        udp: The socket of its door; None: it has none.
    """

    def __init__(
        self,
        mode: str,
        gates: Mapping[int, Gate],
        known: Mapping[str, Peer],
        host: str,
        key: bytes,
        udp: socket.socket | None,
    ) -> None:
        self._gates = gates
        self._peers = known
        self._host = host
        self._key = key
        self._udp = udp
        self._all_hosts = {address for peer in known.values() for address in peer.addresses} | {_IPV6_LOOPBACK}
        # where connections cannot be seen, all of them are a friend's
        self._unseen = {address for peer in known.values() if not peer.door for address in peer.addresses}
        self._local = mode == HOSTS
        self._hosts: Collection[bytes] = self._all_hosts if self._local else self._unseen
        self._targets = {
            (address, port): name for name, peer in known.items() for address in peer.addresses for port in peer.ports
        }
        own = known[host]
        self._targets.update(((address, port), host) for address in own.addresses for port in own.ports)
        self._own_ports = frozenset(own.ports)
        self._place = list(known).index(host)
        self._count = 0
        self._heard: dict[int, int] = {}  # sender -> the count of its last word
        # connections of this host -> when their SYN is sent again, the inode of their socket
        self._coming: dict[Ends, tuple[float, int]] = {}
        self._vouched: dict[Ends, float] = {}  # those that others were told of -> until when
        self._borrowed: dict[Ends, int] = {}  # those that cannot vanish meanwhile -> a descriptor
        self._borrowing = 0.0  # seconds that it took the last time: long where many processes want few CPUs
        self._given_back: list[tuple[float, int]] = []  # from when a descriptor is not needed, in order
        self._said: dict[Ends, float] = {}
        self._let: dict[int, dict[Syn, float]] = {port: {} for port in gates}  # port -> who is let in, until when
        self._changed: set[int] = set()
        self._drops = 0

    def begin(self) -> None:
        """Let in whoever needs no word, and hear only other guards.

        Raises:
            OSError: The kernel refuses, as with too many hosts.
        """
        for port in self._gates:
            self._admit(port)
        if self._udp:
            doors = {(address, peer.door) for peer in self._peers.values() for address in peer.addresses}
            gates.attach(self._udp, gates.source_filter(doors))

    def run(self, agent: socket.socket) -> None:
        """Guard until the agent ends, and then until no task listens any more. For a process of its own.

        Args:
            agent: A connection to the agent.
        """
        kept = [agent.fileno(), *(gate.fileno() for gate in self._gates.values())]
        processes.keep_only([*kept, self._udp.fileno()] if self._udp else kept)
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
        gone = time.monotonic() + _LINGER
        own = {os.fstat(gate.fileno()).st_ino for gate in self._gates.values()}
        while time.monotonic() < gone and sockets.listening(self._gates, own):
            time.sleep(0.01)

    def guard(self, agent: socket.socket) -> None:
        """Guard until the agent ends.

        Args:
            agent: As for run.

        Raises:
            OSError: The kernel refuses.
        """
        self._agent = agent
        if self._udp is None:
            select.select([agent], [], [])
            return
        with Connections() as self._connections:
            self._guard()

    def _guard(self) -> None:
        assert self._udp is not None
        self._udp.setblocking(False)
        self._lines = [self._agent, self._udp]
        begin = self._next = time.monotonic()
        self._calm = begin + _START
        self._deaf_at = begin + _DEAF if self._neighbour() else _NEVER
        self._count = time.monotonic_ns()  # more than a guard before this one
        self._drops = self._knocks()
        self._asked = begin + _START  # until then, everyone looks
        while True:
            self._rest()
            now = time.monotonic()
            ready, _, _ = select.select(self._lines, [], [], self._pause(now))
            if self._agent in ready:
                return
            now = time.monotonic()
            if self._udp in ready:
                self._hear(now)
            if now >= self._next:
                self._look(now)
            self._vouch(now)
            self._watch(now)
            for port in self._changed:
                self._admit(port)
            self._changed.clear()
            while self._given_back and self._given_back[0][0] <= now:
                os.close(self._given_back.pop(0)[1])

    def _rest(self) -> None:
        """Wait, with as little work as possible, until something happens."""
        busy = self._coming or self._given_back or self._vouched or self._deaf_at < _NEVER or any(self._let.values())
        if busy or time.monotonic() < self._calm:
            return
        while self._knocks() == self._drops and not select.select(self._lines, [], [], _QUIET)[0]:
            pass
        self._next = time.monotonic()

    def _pause(self, now: float) -> float:
        if self._vouched or any(self._let.values()):
            return _WATCH
        return max(0.0, min([self._next, *(due - self._ahead for due, _ in self._coming.values())]) - now)

    @property
    def _ahead(self) -> float:
        """How long before a SYN is due again the work on its word begins."""
        return _EARLY + self._borrowing

    def _look(self, now: float) -> None:
        """Look for new connections while there are some, and while somebody knocks here."""
        knocks = self._knocks()
        knocked, self._drops = knocks != self._drops, knocks
        if knocked and now >= self._asked:
            self._asked = now + _QUIET
            for name in self._peers:
                self._tell(name, ASK)
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
            self._tell(self._neighbour(), HELLO)
            if now >= self._deaf_at and not self._local:
                self._trust(self._all_hosts)
        self._next = now + (_LOOK if now < self._calm else _QUIET)

    def _knocks(self) -> int:
        return sum(gate.drops() for gate in self._gates.values())

    def _neighbour(self) -> str:
        """The next host that has a guard with a door; empty if there is none."""
        names = list(self._peers)
        others = names[self._place + 1 :] + names[: self._place]
        return next((name for name in others if self._peers[name].door), "")

    def _trust(self, hosts: Collection[bytes]) -> None:
        """Let in all users of these hosts; if they are all hosts, say so."""
        self._local, self._hosts = hosts is self._all_hosts, hosts
        self._changed.update(self._gates)
        more = f"all users of the job's hosts, since no word from host {self._neighbour()} arrives: is UDP blocked?"
        whom = more if self._local else "their user alone again"
        self._report(f"the tasks' ports on host {self._host} are open to {whom}")

    def _report(self, text: str) -> None:
        with suppress(OSError):  # the agent has ended
            self._agent.send(text.encode())

    def _owner(self, ends: Ends) -> str | None:
        """The host of the task that a connection is for; None if it is for none."""
        _, _, target, port = ends
        if target == _IPV6_LOOPBACK or (len(target) == 4 and target.startswith(b"\x7f")):
            return self._host if port in self._own_ports else None
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
        for port, syns in self._let.items():
            for (source, target, source_port), until in list(syns.items()):
                ended = until < _OWN and self._connections.exists((target, port, source, source_port))
                if ended or now > until:
                    del syns[source, target, source_port]
                    self._changed.add(port)

    def _give_back(self, ends: Ends, now: float) -> None:
        """Close the duplicate of a socket once no gate knows the connection any more."""
        here = self._owner(ends) == self._host
        self._given_back.append((now if here else now + 2 * _EXPIRES, self._borrowed.pop(ends)))
        self._given_back.sort()

    def _say(self, kind: int, ends: Ends, now: float) -> None:
        self._said[ends] = now
        name = self._owner(ends)
        if name == self._host:
            self._hold(kind, ends, _OWN)
        elif name is not None:
            self._tell(name, kind, ends)

    # --- connections that others vouch for

    def _hold(self, kind: int, ends: Ends, until: float) -> None:
        source, source_port, target, port = ends
        syn = source, target, source_port
        syns = self._let.get(port)
        if syns is None or (kind == TAKE and syn not in syns):
            return
        if kind == TAKE:
            del syns[syn]
            self._changed.add(port)
            return
        if syn not in syns:
            self._changed.add(port)
        syns[syn] = until

    def _hear(self, now: float) -> None:
        assert self._udp is not None
        for _ in range(_MOST_WORDS):
            try:
                data, sender = self._udp.recvfrom(512)
            except OSError:  # no more, or one of ours did not reach its host
                return
            word = opened(data, self._key)
            if word is None or not is_new(word, self._heard):
                continue
            if word.kind in (LET, TAKE):
                self._hold(word.kind, word.ends, now + _EXPIRES)
            elif word.kind == ASK:
                self._calm, self._next = max(self._calm, now + 2 * _QUIET), now
            elif word.kind == HELLO:
                self._send(Word(WELCOME, self._place, self._counted()), sender)
            elif word.kind == WELCOME:
                self._deaf_at = _NEVER
                if self._local:
                    self._trust(self._unseen)

    # --- sending and admitting

    def _tell(self, name: str, kind: int, ends: Ends = NOBODY) -> None:
        peer = self._peers[name]
        if not peer.door or name == self._host:
            return
        word = Word(kind, self._place, self._counted(), ends)
        for target in peer.addresses[:_MOST_ADDRESSES]:  # which of them arrive is not known; only the first one is new
            self._send(word, (self._written(target), peer.door))

    def _written(self, address: bytes) -> str:
        assert self._udp is not None
        text = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
        return f"::ffff:{text}" if len(address) == 4 and self._udp.family == socket.AF_INET6 else text

    def _send(self, word: Word, target: tuple[object, ...]) -> None:
        assert self._udp is not None
        with suppress(OSError):  # it is said again
            self._udp.sendto(word.sealed(self._key), target)

    def _counted(self) -> int:
        self._count += 1
        return self._count

    def _admit(self, port: int) -> None:
        syns = list(self._let[port])[:_MOST_SYNS]  # the others get in with their next SYN
        self._gates[port].admit(gates.gate_program(self._hosts, syns, local=self._local))


_NEVER = float("inf")
_OWN = float("inf")  # a word of this guard's own, which it takes back itself
_IPV6_LOOPBACK = bytes(15) + b"\x01"


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


def is_new(word: Word, heard: dict[int, int]) -> bool:
    """Whether a word is newer than all others of its sender, and no old one that somebody sends again.

    Args:
        word: The word.
        heard: Sender -> the count of its newest word, which this call updates.
    """
    if word.count <= heard.get(word.sender, -1):
        return False
    heard[word.sender] = word.count
    return True
