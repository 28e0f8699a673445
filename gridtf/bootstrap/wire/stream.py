"""The connections between the launcher and the agents of an attempt: one TCP stream each, for everything that is news.

The launcher listens, each agent connects. Nothing here blocks: sockets raise SIGIO when there is something to do, which
ends System.wait (block SIGIO first). A connection that breaks is made again; both sides then repeat what they last said
of each kind, so that a message is never lost, and may come twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.messages import MessageError
from gridtf.errors import GridtfError
from gridtf.run.rundir import Record
from gridtf.values import Fields

News = tuple[str, Record]  # kind and content of a message

_CHUNK = 1 << 16
_PROOF_LIMIT = 10.0  # seconds within which a process that connects proves that it belongs to the attempt
_MOST_VISITORS = 64  # connections at once that have not, in addition to one for each host
_MOST_LOGGED = 10  # messages in the log about processes that do not belong to the attempt
_CONNECT_LIMIT = 3.0  # seconds until the next address of the launcher is tried
RECONNECT_LIMIT = 10.0  # seconds within which the other end connects again when its connection was closed
_BACKLOG = 4096  # agents that connect at the same moment
_PAUSES = 0.05, 1.0  # seconds between two attempts to connect: of the first ones, and the most


class BrokenStreamError(GridtfError):
    """The other side has closed the connection, or the network has."""


class Connection:
    """One end of a stream. Neither reading nor writing blocks.

    Args:
        connected: The socket.
        kinds: The messages that may come, one of messages.FROM_LAUNCHER and FROM_AGENT.
        peer: The other end, for messages.

    Attributes:
        most: Bytes that a message may have.
    """

    def __init__(self, connected: socket.socket, kinds: Mapping[str, Any], peer: str) -> None:
        self._socket = connected
        self._kinds = kinds
        self._received = bytearray()
        self._unsent: list[memoryview] = []
        self.peer = peer
        self.most = messages.MOST_UNPROVEN
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has left this process."""
        return not self._unsent

    def send(self, message: bytes) -> None:
        """Send a message, as far as the network takes it now; flush sends the rest.

        Raises:
            BrokenStreamError: The connection is broken.
        """
        self._unsent.append(memoryview(message))
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before.

        Raises:
            BrokenStreamError: The connection is broken.
        """
        while self._unsent:
            try:
                count = self._socket.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise BrokenStreamError(f"the connection with {self.peer} is broken: {error.strerror}") from None
            if count < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][count:]
                return
            del self._unsent[0]

    def receive(self) -> Iterator[News]:
        """The messages that have come, each complete and of a kind that may come.

        Raises:
            BrokenStreamError: The connection is broken.
            MessageError: A message is too long, cannot be read or may not come.
        """
        while True:
            while (message := messages.take(self._received, self.most)) is not None:
                yield messages.decoded(message, self._kinds)
            try:
                chunk = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise BrokenStreamError(f"the connection with {self.peer} is broken: {error.strerror}") from None
            if not chunk:
                raise BrokenStreamError(f"{self.peer} has closed the connection")
            self._received += chunk

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _watch(any_socket: socket.socket) -> None:
    """Have SIGIO raised when there is something to do for a socket, which becomes non-blocking."""
    fcntl.fcntl(any_socket, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(any_socket, fcntl.F_SETFL, fcntl.fcntl(any_socket, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)


class _Visitor:
    """A connection whose other end has not proved yet that it belongs to the attempt."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.challenge = os.urandom(32).hex()


class Listener:
    """The launcher's end of all streams.

    Args:
        secret: The secret of the attempt.
        system: This host; agents that ask for it receive its environ.

    Attributes:
        port: The TCP port that agents connect to.
        kinds: The messages that may come: kind -> the form of its content. Starters and features add theirs.
        expected: How many agents may connect at the same moment.
        connected: The hosts whose agent is connected.
        lost: Host -> since when its connection is broken, by the monotonic clock.

    Raises:
        GridtfError: No port can be opened.
    """

    def __init__(self, secret: bytes, system: System) -> None:
        self._secret = secret
        self._system = system
        self._visitors: dict[int, _Visitor] = {}
        self._hosts: dict[int, str] = {}  # descriptor -> host
        self._connections: dict[str, Connection] = {}
        self._for_all: dict[str, bytes] = {}  # kind -> the last message to all hosts
        self._for_host: dict[str, dict[str, bytes]] = {}
        self._unsent: set[str] = set()  # hosts whose connection could not take everything yet
        self._logged = 0
        self._refused: MessageError | None = None  # to be raised at the next call of receive
        self.expected = 0
        self.kinds = {**messages.FROM_AGENT}
        self.lost: dict[str, float] = {}
        self._socket = _listening()
        self.port = int(self._socket.getsockname()[1])
        self._poll = select.epoll()
        self._add(self._socket)

    @property
    def connected(self) -> set[str]:
        return set(self._connections)

    def _add(self, any_socket: socket.socket) -> None:
        _watch(any_socket)
        self._poll.register(any_socket.fileno(), select.EPOLLIN)

    # --- to the agents

    def send(self, host: str, kind: str, content: Record) -> None:
        """Send a message to the agent of one host, now or as soon as it is connected."""
        message = messages.encoded(kind, content)
        self._for_host.setdefault(host, {})[kind] = message
        self._write(host, message)

    def send_all(self, kind: str, content: Record) -> None:
        """Send a message to all agents, now or as soon as each is connected."""
        message = messages.encoded(kind, content)
        self._for_all[kind] = message
        for host in list(self._connections):
            self._write(host, message)

    def alive(self) -> None:
        """Tell all agents that the launcher is alive, except those that have not read earlier messages yet."""
        message = messages.encoded(messages.ALIVE, {})
        for host, connection in list(self._connections.items()):
            if connection.idle:
                self._write(host, message)

    def _write(self, host: str, message: bytes) -> None:
        connection = self._connections.get(host)
        if connection is None:
            return
        try:
            connection.send(message)
        except BrokenStreamError:
            self._lose(host)
        else:
            if not connection.idle:
                self._unsent.add(host)

    # --- from the agents

    def receive(self) -> list[tuple[str, str, Record]]:
        """What has come from the agents since the last call.

        Returns:
            (host, kind, content) of each message, in the order in which they came from that host.

        Raises:
            MessageError: At the last call, an agent of the attempt had sent something that cannot be read; what came
                from others was returned.
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        news: list[tuple[str, str, Record]] = []
        for host in list(self._unsent):
            self._flush(host)
        for descriptor, _ in self._poll.poll(0, 1 + len(self._hosts) + len(self._visitors)):
            if descriptor == self._socket.fileno():
                self._accept()
            elif descriptor in self._visitors:
                self._hear_visitor(self._visitors[descriptor], news)
            elif descriptor in self._hosts:
                self._hear_host(self._hosts[descriptor], news)
        self._drop_late_visitors()
        return news

    def _flush(self, host: str) -> None:
        connection = self._connections[host]
        try:
            connection.flush()
        except BrokenStreamError:
            self._lose(host)
        else:
            if connection.idle:
                self._unsent.discard(host)

    def _accept(self) -> None:
        while True:
            try:
                connected, (address, port, *_) = self._socket.accept()
            except OSError as error:
                # the process on the other side is gone again, or this one has too many open files
                if error.errno == errno.ECONNABORTED:
                    continue
                return
            self._add(connected)
            peer = f"{address.removeprefix('::ffff:')} port {port}"
            deadline = self._system.monotonic() + _PROOF_LIMIT
            visitor = _Visitor(Connection(connected, self.kinds, peer), deadline)
            self._visitors[connected.fileno()] = visitor
            try:
                visitor.connection.send(messages.encoded(messages.CHALLENGE, {"challenge": visitor.challenge}))
            except BrokenStreamError:
                self._dismiss(visitor)
            if len(self._visitors) > _MOST_VISITORS + self.expected:
                oldest = min(self._visitors.values(), key=lambda visitor: visitor.deadline)
                self._dismiss(oldest, "has not proved that it belongs to the job")

    def _drop_late_visitors(self) -> None:
        now = self._system.monotonic()
        for visitor in [one for one in self._visitors.values() if one.deadline < now]:
            self._dismiss(visitor, f"has not proved within {_PROOF_LIMIT:g} s that it belongs to the job")

    def _dismiss(self, visitor: _Visitor, why: str = "") -> None:
        self._visitors.pop(visitor.connection.fileno(), None)
        visitor.connection.close()
        if why and self._logged < _MOST_LOGGED:
            self._logged += 1
            more = "; gridtf reports no more of these" if self._logged == _MOST_LOGGED else ""
            self._system.log(f"a process at {visitor.connection.peer} connected to the launcher, but {why}{more}")

    def _hear_visitor(self, visitor: _Visitor, news: list[tuple[str, str, Record]]) -> None:
        try:
            for kind, content in visitor.connection.receive():
                if kind != messages.HELLO:
                    raise MessageError(f"a message {kind!r} before its proof")
                self._greet(visitor, content)
                self._hear_host(content["host"], news)  # what came together with it
                return
        except BrokenStreamError:  # such as a scan of ports
            self._dismiss(visitor)
        except MessageError as error:
            self._dismiss(visitor, f"sent {error.what}")

    def _greet(self, visitor: _Visitor, hello: Record) -> None:
        connection, host, answer = visitor.connection, hello["host"], hello["challenge"]
        if hello["format"] != messages.FORMAT:
            raise MessageError(
                f"messages of format {hello['format']}, where this version of gridtf knows {messages.FORMAT}"
            )
        expected = messages.proof(self._secret, "agent", host, visitor.challenge, answer)
        if not messages.proves(hello["proof"], expected):
            raise MessageError("a wrong proof: it does not know the secret of this attempt")
        del self._visitors[connection.fileno()]
        connection.most = messages.MOST
        if host in self._connections:  # its agent has lost that connection, which is not known here yet
            self._lose(host)
        self._hosts[connection.fileno()] = host
        self._connections[host] = connection
        self.lost.pop(host, None)
        welcome = {"proof": messages.proof(self._secret, "launcher", host, visitor.challenge, answer)}
        self._write(host, messages.encoded(messages.WELCOME, welcome))
        if hello["environment"]:
            self._write(host, messages.encoded(messages.ENVIRONMENT, {"environ": dict(self._system.environ)}))
        for message in (*self._for_host.get(host, {}).values(), *self._for_all.values()):
            self._write(host, message)

    def _hear_host(self, host: str, news: list[tuple[str, str, Record]]) -> None:
        connection = self._connections.get(host)
        if connection is None:
            return
        try:
            for kind, content in connection.receive():
                if kind == messages.HELLO:
                    raise MessageError("a second message hello")
                news.append((host, kind, content))
        except BrokenStreamError:
            self._lose(host)
        except MessageError as error:
            hint = "do all hosts have the same version of gridtf?"
            self._refused = MessageError(f"the agent on host {host} sent {error.what}", hint=hint)

    def _lose(self, host: str) -> None:
        connection = self._connections.pop(host)
        self._hosts.pop(connection.fileno(), None)
        self._unsent.discard(host)
        self.lost[host] = self._system.monotonic()
        connection.close()

    def close(self) -> None:
        """Close all connections; in a forked process, its copies of them."""
        for connection in (*self._connections.values(), *(one.connection for one in self._visitors.values())):
            connection.close()
        self._socket.close()
        self._poll.close()


def _listening() -> socket.socket:
    """A socket that listens on all addresses of this host, on a port that the kernel chooses."""
    problem: Exception | None = None
    for family in (socket.AF_INET6, socket.AF_INET):  # a host may know IPv6, and have it disabled
        dual = family == socket.AF_INET6
        try:
            return socket.create_server(("", 0), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except (OSError, ValueError) as error:
            problem = error
    raise GridtfError(f"the launcher cannot open a port on {socket.gethostname()}: {problem}")


class Link(Fields):
    """An agent's end of its stream.

    Args:
        addresses: The names and addresses of the launcher's host, the best first.
        port: The launcher's port.
        secret: The secret of the attempt.
        host: This host, as the allocation calls it.
        system: This host.
        environment: Whether this agent needs the environment of the job.

    Attributes:
        kinds: The messages that may come, as in Listener.
        refused: Why the last connection could not be made; empty when it is made.
        patience: Seconds of silence after which the connection is made again: behind a link that was cut, TCP repeats
            what was lost ever more rarely, and may need as long again as the link was cut.
    """

    _addresses: Sequence[str]
    _port: int
    _secret: bytes
    _host: str
    _system: System
    environment: bool = False

    def __post_init__(self) -> None:
        self._said: dict[str, bytes] = {}  # kind -> the last message of that kind
        self._opening: _Opening | None = None
        self._connection: Connection | None = None
        self._attempts = 0
        self._due = float("-inf")  # when the next attempt to connect begins
        self._heard = 0.0  # when something last came
        self.kinds = {**messages.FROM_LAUNCHER}
        self.refused = "not connected yet"
        self.patience = float("inf")

    def fileno(self) -> int:
        """The descriptor of the connection, for a process with several links; -1 without a connection."""
        return -1 if self._connection is None else self._connection.fileno()

    @property
    def connected(self) -> bool:
        """Whether the launcher has proved that it is the one of this attempt, and the connection stands."""
        return self._connection is not None

    def send(self, kind: str, content: Record) -> None:
        """Send a message, now or as soon as there is a connection; only the last one of a kind is kept until then."""
        message = messages.encoded(kind, content)
        self._said[kind] = message
        self._write(message)

    def alive(self) -> None:
        """Tell the launcher that this agent is alive, unless earlier messages still wait to be sent."""
        if self._connection is not None and self._connection.idle:
            self._write(messages.encoded(messages.ALIVE, {}))

    def _write(self, message: bytes) -> None:
        if self._connection is not None:
            try:
                self._connection.send(message)
            except BrokenStreamError as error:
                self._lose(error)

    def receive(self) -> list[News]:
        """What has come from the launcher since the last call. Connects to it, if there is no connection."""
        news: list[News] = []
        try:
            if self._connection is None and not self._connect():
                return news
            assert self._connection is not None
            self._connection.flush()
            for kind, content in self._connection.receive():
                if kind == messages.ENVIRONMENT:
                    self.environment = False
                news.append((kind, content))
            now = self._system.monotonic()
            if news:
                self._heard = now
            elif now - self._heard > self.patience:
                raise BrokenStreamError(f"the launcher has been silent for {self.patience:g} s")
        except GridtfError as error:
            self._lose(error)
        return news

    def drain(self, seconds: float) -> bool:
        """Send what still waits to be sent, at the end of this process.

        Args:
            seconds: The longest time to wait for the network.

        Returns:
            Whether everything has left this process.
        """
        deadline = self._system.monotonic() + seconds
        while True:
            self.receive()
            if self._connection is not None and self._connection.idle:
                return True
            if self._system.monotonic() >= deadline:
                return False
            self._system.sleep(0.01)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        if self._opening is not None:
            self._opening.connection.close()
        self._connection = self._opening = None

    def _lose(self, error: GridtfError) -> None:
        self.close()
        self.refused = error.what
        first, most = _PAUSES
        self._due = self._system.monotonic() + min(first * 2 ** min(self._attempts, 10), most)

    def _connect(self) -> bool:
        """Go on with connecting. Returns whether the connection is made."""
        now = self._system.monotonic()
        if self._opening is None:
            if now < self._due:
                return False
            address = self._addresses[self._attempts % len(self._addresses)]
            self._attempts += 1
            self._opening = _Opening(address, self._port, now + _CONNECT_LIMIT, self.kinds)
        opening = self._opening
        if now > opening.deadline:
            raise BrokenStreamError(f"{opening.connection.peer} does not answer")
        for kind, content in opening.connection.receive():
            if kind == messages.CHALLENGE:
                opening.challenge = content["challenge"]
                opening.deadline = now + _PROOF_LIMIT  # it answers, but may have thousands of agents to answer
                opening.connection.send(messages.encoded(messages.HELLO, self._hello(opening)))
            elif kind == messages.WELCOME and opening.challenge:
                expected = messages.proof(self._secret, "launcher", self._host, opening.challenge, opening.answer)
                if not messages.proves(content["proof"], expected):
                    raise MessageError(f"{opening.connection.peer} is not the launcher of this attempt")
                self._connection, self._opening = opening.connection, None
                self._connection.most = messages.MOST
                self._attempts, self._heard, self.refused = 0, now, ""
                for message in self._said.values():
                    self._connection.send(message)
                return True
            else:
                raise MessageError(f"{opening.connection.peer} sent {kind!r} before its proof")
        return False

    def _hello(self, opening: _Opening) -> Record:
        return {
            "format": messages.FORMAT,
            "host": self._host,
            "environment": self.environment,
            "challenge": opening.answer,
            "proof": messages.proof(self._secret, "agent", self._host, opening.challenge, opening.answer),
        }


def link_of(listener: Record, host: str, system: System, *, environment: bool = False) -> Link:
    """The link that listener.json describes.

    Args:
        listener: Its content.
        host: This host, as the allocation calls it.
        system: This host.
        environment: Whether this agent needs the environment of the job.
    """
    secret = bytes.fromhex(listener["secret"])
    return Link(listener["addresses"], listener["port"], secret, host, system, environment=environment)


class _Opening:
    """A connection to the launcher that is being made."""

    def __init__(self, address: str, port: int, deadline: float, kinds: Mapping[str, Any]) -> None:
        self.connection = Connection(_connecting(address, port), kinds, f"{address} port {port}")
        self.deadline = deadline
        self.challenge = ""
        self.answer = os.urandom(32).hex()


def _connecting(address: str, port: int) -> socket.socket:
    """A socket that connects to an address, without waiting until it has."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise BrokenStreamError(f"the launcher's address {address} does not resolve: {error}") from None
    opened = socket.socket(family, kind, protocol)
    try:
        _watch(opened)
        opened.connect(target)
    except BlockingIOError:
        pass
    except OSError as error:
        opened.close()
        raise BrokenStreamError(f"cannot connect to {address} port {port}: {error.strerror}") from None
    return opened
