"""The streams between launcher and agents, over real sockets of the loopback device, with strangers and faults."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.messages import FROM_AGENT, FROM_LAUNCHER
from gridtf.bootstrap.wire.stream import Link, Listener, News
from gridtf.errors import GridtfError
from gridtf.run.rundir import Record
from tests.support.python import environment, python
from tests.support.system import FakeSystem

SECRET = b"s" * 32
LIMIT = 120.0  # seconds for anything that takes milliseconds on an idle machine


class Host(FakeSystem):
    """A host with the real clock, of which the test can skip seconds."""

    skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Raw:
    """A process that connects and does what the test wants."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.socket.setblocking(False)
        self.received = bytearray()
        self.closed = False

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(data)

    def look(self) -> None:
        """Read what has come."""
        while not self.closed:
            try:
                chunk = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            self.closed = not chunk
            self.received += chunk

    def gone(self) -> bool:
        """Whether the launcher has closed the connection."""
        self.look()
        return self.closed

    def take(self) -> News | None:
        """The next message."""
        self.look()
        message = messages.take(self.received, messages.MOST)
        return messages.decoded(message, FROM_LAUNCHER) if message is not None else None

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Proxy:
    """A way to the launcher, whose first connection breaks after this many bytes from the launcher, or from the agent.

    Attributes:
        connections: How many were made.
    """

    def __init__(self, target: int, *, down: int | None = None, up: int | None = None, reset: bool = False) -> None:
        self._target, self._limits, self._reset = target, (down, up), reset
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port = self._server.getsockname()[1]
        self.connections = 0
        self._pairs: list[tuple[socket.socket, socket.socket, list[int]]] = []  # agent, launcher, bytes to each
        self._allowed: list[tuple[int | None, int | None]] = []

    def look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            agent, _ = self._server.accept()
            launcher = socket.create_connection(("127.0.0.1", self._target), timeout=LIMIT)
            self._pairs.append((agent, launcher, [0, 0]))
            self._allowed.append((None, None) if self.connections else self._limits)
            self.connections += 1
        for (agent, launcher, counts), limits in zip(self._pairs, self._allowed, strict=True):
            for index, (source, sink) in enumerate(((launcher, agent), (agent, launcher))):
                self._pass(source, sink, counts, index, limits[index])

    def _pass(self, source: socket.socket, sink: socket.socket, counts: list[int], to: int, most: int | None) -> None:
        if source.fileno() < 0 or not select.select([source], [], [], 0)[0]:
            return
        try:
            chunk = source.recv(1 << 16)
        except OSError:
            chunk = b""
        passed = chunk if most is None else chunk[: most - counts[to]]
        counts[to] += len(passed)
        with contextlib.suppress(OSError):
            sink.sendall(passed)
        if not chunk or len(passed) < len(chunk):
            self._cut(source, sink)

    def _cut(self, *ends: socket.socket) -> None:
        for end in ends:
            if self._reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def close(self) -> None:
        self._server.close()
        for agent, launcher, _ in self._pairs:
            agent.close()
            launcher.close()


class Ends:
    """A listener, and links to it, of which each remembers what it has heard."""

    def __init__(self) -> None:
        self.system = Host({"PATH": "/bin", "ODD": "a\n\udcff"})
        self.listener = Listener(SECRET, self.system)
        self.heard: list[tuple[str, str, Record]] = []  # by the launcher
        self.links: list[Link] = []
        self.told: dict[int, list[News]] = {}  # id of a link -> what it has heard
        self.raw: list[Raw] = []
        self.proxies: list[Proxy] = []

    def link(self, host: str = "n1", *, secret: bytes = SECRET, port: int = 0, **how: Any) -> Link:
        addresses = how.pop("addresses", ["127.0.0.1"])
        link = Link(addresses, port or self.listener.port, secret, host, self.system, **how)
        self.links.append(link)
        self.told[id(link)] = []
        return link

    def stranger(self) -> Raw:
        self.raw.append(Raw(self.listener.port))
        return self.raw[-1]

    def proxy(self, **how: Any) -> Proxy:
        self.proxies.append(Proxy(self.listener.port, **how))
        return self.proxies[-1]

    def agent(self, host: str) -> Raw:
        """An agent by hand, which has proved itself."""
        raw = self.stranger()
        raw.send(self.hello(raw, host))
        assert self.next(raw)[0] == messages.WELCOME
        return raw

    def next(self, raw: Raw) -> News:
        """The next message that a raw connection gets."""
        found: list[News] = []

        def came() -> bool:
            found.extend(filter(None, [raw.take()]))
            return bool(found)

        self.until(came)
        return found[0]

    def hello(self, raw: Raw, host: str, *, secret: bytes = SECRET, **odd: Any) -> bytes:
        """The answer to the challenge that a raw connection has got."""
        kind, content = self.next(raw)
        assert kind == messages.CHALLENGE
        answer = "ab" * 32
        proof = messages.proof(secret, "agent", host, content["challenge"], answer)
        hello = {"format": messages.FORMAT, "host": host, "environment": False, "challenge": answer, "proof": proof}
        return messages.encoded(messages.HELLO, {**hello, **odd})

    def pump(self) -> None:
        """One look of everybody."""
        for proxy in self.proxies:
            proxy.look()
        self.heard += self.listener.receive()
        for link in self.links:
            self.told[id(link)] += link.receive()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, (self.system.logged, [link.refused for link in self.links])
            self.pump()
            time.sleep(0.001)

    def all_connected(self) -> bool:
        return all(link.connected for link in self.links)

    def kinds(self, link: Link) -> list[str]:
        return [kind for kind, _ in self.told[id(link)]]

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.listener.close()
        for proxy in self.proxies:
            proxy.close()
        for raw in self.raw:
            raw.socket.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    """SIGIO, which would end this process, is ignored: other threads of it do not block it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    both = Ends()
    try:
        yield both
    finally:
        both.close()
        signal.signal(signal.SIGIO, before)


STATE: Record = {"tasks": {"worker:0": {"state": "RUNNING"}}, "over": False}
ENDED: Record = {"tasks": {"worker:0": {"state": "COMPLETED", "exit": 0}}, "over": True}
HOST: Record = {"host": "n1", "address": "n1", "ports": {"worker:0": 4711}, "master_port": 4712}
STOP: Record = {"state": "COMPLETED", "reason": "", "task": None}
WHO: Record = {"host": "n1", "pid": 7, "start": 1, "boot": "b", "began": 1.5}
RENDEZVOUS: Record = {"text": "{}", "master_addr": "n1", "master_port": 2, "outside": {}}


# --- the way that messages go


def test_both_sides_prove_themselves_and_messages_go_both_ways(ends: Ends) -> None:
    first, second = ends.link("n1"), ends.link("n2")
    assert (first.connected, first.refused) == (False, "not connected yet")
    ends.until(lambda: ends.all_connected() and ends.listener.connected == {"n1", "n2"})
    assert first.refused == ""
    first.send(messages.STATE, STATE)
    second.alive()
    ends.listener.send("n1", messages.STOP, STOP)
    ends.listener.send_all(messages.LAUNCHER, WHO)
    ends.listener.alive()
    ends.until(lambda: len(ends.heard) == 2 and ends.kinds(second)[-1:] == ["alive"] == ends.kinds(first)[-1:])
    assert sorted(ends.heard, key=str) == [("n1", messages.STATE, STATE), ("n2", messages.ALIVE, {})]
    alive: News = (messages.ALIVE, {})
    assert ends.told[id(first)] == [(messages.STOP, STOP), (messages.LAUNCHER, WHO), alive]
    assert ends.told[id(second)] == [(messages.LAUNCHER, WHO), alive]
    assert ends.system.logged == []


def test_messages_said_before_the_connection_arrive_once_it_is_made(ends: Ends) -> None:
    ends.listener.send("n1", messages.STOP, {**STOP, "reason": "of n1"})
    ends.listener.send("n2", messages.STOP, {**STOP, "reason": "of n2"})
    ends.listener.send_all(messages.LAUNCHER, {**WHO, "began": 1.0})
    ends.listener.send_all(messages.LAUNCHER, WHO)
    link = ends.link("n1")
    link.send(messages.HOST, HOST)
    link.send(messages.STATE, STATE)
    link.send(messages.STATE, ENDED)
    link.alive()  # means nothing without a connection
    ends.until(lambda: len(ends.heard) == 2 and len(ends.told[id(link)]) == 2)
    assert ends.heard == [("n1", messages.HOST, HOST), ("n1", messages.STATE, ENDED)]
    assert ends.told[id(link)] == [(messages.STOP, {**STOP, "reason": "of n1"}), (messages.LAUNCHER, WHO)]


def test_environment_is_sent_once_to_who_asks_for_it(ends: Ends) -> None:
    asking, other = ends.link("n1", environment=True), ends.link("n2")
    ends.listener.send_all(messages.LAUNCHER, WHO)
    ends.until(lambda: all(messages.LAUNCHER in ends.kinds(link) for link in (asking, other)))
    assert ends.told[id(asking)][0] == (messages.ENVIRONMENT, {"environ": ends.system.environ})
    assert messages.ENVIRONMENT not in ends.kinds(other)
    ends.agent("n1")  # the connection of the link is closed, and made again
    ends.until(lambda: ends.kinds(asking).count(messages.LAUNCHER) == 2)
    assert ends.kinds(asking).count(messages.ENVIRONMENT) == 1


@pytest.mark.thorough
def test_large_messages_arrive_whole(ends: Ends) -> None:
    """Larger than what the sockets of both ends hold."""
    link, text = ends.link(), json.dumps({"worker": ["n" * 50 + ":12345"] * 200_000})
    ends.until(ends.all_connected)
    ends.listener.send_all(messages.RENDEZVOUS, {**RENDEZVOUS, "text": text})
    link.send(messages.HOST, {**HOST, "ports": {f"worker:{index}": 1 for index in range(300_000)}})
    ends.until(lambda: ends.heard and ends.told[id(link)])
    assert ends.told[id(link)] == [(messages.RENDEZVOUS, {**RENDEZVOUS, "text": text})]
    assert len(ends.heard[0][2]["ports"]) == 300_000


def test_hundreds_of_agents_that_connect_at_the_same_moment_are_all_let_in(ends: Ends) -> None:
    """Before there is anything to tell them: the plan is made while they start."""
    names = {f"n{number}" for number in range(300)}
    ends.listener.expected = len(names)
    for name in names:
        ends.link(name).receive()
    ends.until(lambda: ends.listener.connected == names)
    ends.listener.send_all(messages.STOP, STOP)
    ends.until(lambda: all(ends.told.values()))
    assert ends.system.logged == []


# --- who is let in


def strangers_told(ends: Ends) -> list[str]:
    return [re.sub(r"port \d+", "port N", text) for text in ends.system.logged]


CONNECTED = "a process at 127.0.0.1 port N connected to the launcher, but "


def test_agent_with_a_wrong_secret_is_refused_and_named(ends: Ends) -> None:
    right, wrong = ends.link("n2"), ends.link("n1", secret=b"S" * 32)
    wrong.send(messages.STATE, STATE)
    ends.until(lambda: right.connected and ends.system.logged)
    assert strangers_told(ends)[0] == (f"{CONNECTED}sent a wrong proof: it does not know the secret of this attempt")
    assert (ends.listener.connected, wrong.connected, ends.heard) == ({"n2"}, False, [])


def test_launcher_without_the_secret_learns_nothing_from_an_agent(ends: Ends) -> None:
    """Something else has the port of a launcher that has ended, and welcomes everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        link = ends.link(port=port)
        link.send(messages.STATE, STATE)
        link.receive()
        server.settimeout(LIMIT)
        other, _ = server.accept()
        with other:
            other.settimeout(LIMIT)
            other.sendall(messages.encoded(messages.CHALLENGE, {"challenge": "5e" * 32}))
            ends.until(lambda: select.select([other], [], [], 0)[0])
            other.sendall(messages.encoded(messages.WELCOME, {"proof": "ab" * 32}))
            ends.until(lambda: "is not the launcher" in link.refused)
            received = bytearray(b"".join(iter(lambda: other.recv(1 << 16), b"")))
    assert link.refused == f"127.0.0.1 port {port} is not the launcher of this attempt"
    assert messages.decoded(messages.take(received, messages.MOST) or b"", FROM_AGENT)[0] == messages.HELLO
    assert not received
    assert not link.connected


def test_hello_of_another_connection_is_refused(ends: Ends) -> None:
    first, second = ends.stranger(), ends.stranger()
    hello = ends.hello(first, "n1")
    second.send(hello)
    ends.until(lambda: ends.system.logged)
    assert "sent a wrong proof" in ends.system.logged[0]
    first.send(hello)
    ends.until(lambda: ends.listener.connected == {"n1"})


def test_hello_of_another_host_is_refused(ends: Ends) -> None:
    raw = ends.stranger()
    hello = ends.hello(raw, "n1")
    raw.send(hello.replace(b'"n1"', b'"n2"'))
    ends.until(lambda: ends.system.logged)
    assert "sent a wrong proof" in ends.system.logged[0]
    assert ends.listener.connected == set()


def test_another_version_of_gridtf_is_refused_with_both_formats(ends: Ends) -> None:
    raw = ends.stranger()
    raw.send(ends.hello(raw, "n1", format=messages.FORMAT + 1))
    ends.until(lambda: ends.system.logged)
    formats = f"messages of format {messages.FORMAT + 1}, where this version of gridtf knows {messages.FORMAT}"
    assert strangers_told(ends) == [f"{CONNECTED}sent {formats}"]


@pytest.mark.parametrize(
    ("sent", "waits", "why"),
    [
        (b"", True, "has not proved within 10 s that it belongs to the job"),
        (b"\0\0\1\0[half", True, "has not proved within 10 s that it belongs to the job"),
        ((1 << 30).to_bytes(4, "big") + b"x" * 5000, False, "sent a message of 1073741824 bytes, where at most 1024"),
        (b"GET / HTTP/1.1\r\n\r\n", False, "sent a message of 1195725856 bytes, where at most 1024 are allowed"),
        (b"\0\0\0\4ABCD", False, "sent a message that is not JSON"),
        (messages.encoded(messages.STATE, STATE), False, "sent a message 'state' before its proof"),
        (
            messages.encoded("plan", {}),
            False,
            "sent a message of kind 'plan', where hello or host or state or gone",
        ),
        (messages.encoded(messages.HELLO, {"host": "\ud800"}), False, "sent a damaged message hello"),
    ],
    ids=["nothing", "half", "1-GB", "HTTP", "rubbish", "no-hello", "other-side", "damaged"],
)
def test_stranger_is_told_apart_named_once_and_cut_off(sent: bytes, waits: bool, why: str, ends: Ends) -> None:
    link = ends.link()
    ends.until(ends.all_connected)
    raw = ends.stranger()
    raw.send(sent)
    if waits:
        for _ in range(20):
            ends.pump()
        assert ends.system.logged == []
        ends.system.skipped += 11
    ends.until(raw.gone)
    assert len(ends.system.logged) == 1
    assert strangers_told(ends)[0].startswith(f"{CONNECTED}{why}")
    assert ends.system.logged[0].startswith(f"a process at 127.0.0.1 port {_port(raw)} ")
    link.send(messages.STATE, STATE)
    ends.until(lambda: ends.heard)
    assert ends.heard == [("n1", messages.STATE, STATE)]


def _port(raw: Raw) -> int:
    return int(raw.socket.getsockname()[1])


@pytest.mark.parametrize("reset", [False, True])
def test_stranger_that_only_looks_for_open_ports_is_not_worth_a_line(reset: bool, ends: Ends) -> None:
    raw = ends.stranger()
    raw.reset() if reset else raw.socket.close()
    link = ends.link()
    ends.until(ends.all_connected)
    for _ in range(10):
        ends.pump()
    assert (ends.system.logged, link.connected) == ([], True)


def test_many_strangers_at_once_keep_no_agent_out_and_fill_neither_memory_nor_log(ends: Ends) -> None:
    connected = ends.link("n1")
    ends.until(ends.all_connected)
    strangers = [ends.stranger() for _ in range(300)]
    for stranger in strangers:
        stranger.send(b"\0\0\3\0half a message")
    ends.pump()
    late = ends.link("n2")
    ends.until(lambda: late.connected)
    connected.send(messages.STATE, STATE)
    ends.until(lambda: ends.heard)
    assert sum(not stranger.gone() for stranger in strangers) <= 70
    assert len(ends.system.logged) == 10
    assert ends.system.logged[-1].endswith("gridtf reports no more of these")
    assert "no more" not in ends.system.logged[-2]


# --- connections that break

CHALLENGE = len(messages.encoded(messages.CHALLENGE, {"challenge": "5e" * 32}))
WELCOME = len(messages.encoded(messages.WELCOME, {"proof": "5e" * 32}))
HELLO = CHALLENGE + WELCOME + 22


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        {"down": 0},
        {"down": 10},
        {"up": 0},
        {"up": 20},
        {"down": CHALLENGE},
        {"down": CHALLENGE + 10},
        {"down": CHALLENGE + WELCOME},
        {"down": CHALLENGE + WELCOME + 30},
        {"up": HELLO + 30},
    ],
    ids=lambda limits: "-".join(f"{way}{count}" for way, count in limits.items()),
)
def test_connection_that_breaks_in_any_phase_is_made_again_and_no_message_is_lost(
    limits: dict[str, int], reset: bool, ends: Ends
) -> None:
    proxy = ends.proxy(reset=reset, **limits)
    link = ends.link(port=proxy.port)
    link.send(messages.HOST, HOST)
    link.send(messages.STATE, ENDED)
    ends.listener.send("n1", messages.STOP, STOP)
    ends.listener.send_all(messages.LAUNCHER, WHO)

    def complete() -> bool:
        heard, told = {kind for _, kind, _ in ends.heard}, set(ends.kinds(link))
        return heard >= {messages.HOST, messages.STATE} and told >= {messages.STOP, messages.LAUNCHER}

    ends.until(lambda: complete() and proxy.connections >= 2 and link.connected)
    assert ends.listener.connected == {"n1"}
    assert ends.listener.lost == {}
    assert (messages.STOP, STOP) in ends.told[id(link)]
    assert ("n1", messages.STATE, ENDED) in ends.heard


def test_broken_connection_is_known_at_once_on_both_sides(ends: Ends) -> None:
    raw = ends.agent("n2")
    link = ends.link("n1")
    ends.until(ends.all_connected)
    raw.reset()
    ends.until(lambda: ends.listener.lost)
    assert set(ends.listener.lost) == {"n2"}
    assert ends.listener.connected == {"n1"}
    assert abs(ends.listener.lost["n2"] - ends.system.monotonic()) < LIMIT
    ends.listener.close()
    link.receive()
    deadline = time.monotonic() + LIMIT
    while link.connected and time.monotonic() < deadline:
        link.receive()
    assert not link.connected
    assert "127.0.0.1 port" in link.refused


def test_second_connection_of_a_host_replaces_the_first(ends: Ends) -> None:
    """Its agent has lost the first one, which the launcher cannot know yet."""
    first = ends.agent("n1")
    second = ends.agent("n1")
    ends.until(first.gone)
    assert ends.listener.connected == {"n1"}
    assert ends.listener.lost == {}
    ends.listener.send("n1", messages.STOP, STOP)
    assert ends.next(second) == (messages.STOP, STOP)
    second.send(messages.encoded(messages.STATE, STATE))
    ends.until(lambda: ends.heard)


def test_second_hello_and_rubbish_of_an_agent_name_its_host(ends: Ends) -> None:
    raw, link = ends.agent("n1"), ends.link("n2")
    ends.until(ends.all_connected)
    raw.send(messages.encoded("rubbish", {}))
    with pytest.raises(messages.MessageError, match="the agent on host n1 sent a message of kind 'rubbish'") as error:
        ends.until(lambda: False)
    assert "same version of gridtf" in error.value.hint
    link.send(messages.STATE, STATE)
    ends.until(lambda: ends.heard)


@pytest.mark.parametrize("together", [True, False])
def test_rubbish_of_one_agent_costs_no_news_of_the_others(together: bool, ends: Ends) -> None:
    rubbish, good = messages.encoded("rubbish", {}), [ends.agent(f"n{number}") for number in (2, 3)]
    bad = ends.stranger()
    hello = ends.hello(bad, "n1")
    if together:
        bad.send(hello + messages.encoded(messages.STATE, STATE) + rubbish)
    else:
        bad.send(hello)
        assert ends.next(bad)[0] == messages.WELCOME
        bad.send(messages.encoded(messages.STATE, STATE) + rubbish)
    for raw in good:
        raw.send(messages.encoded(messages.STATE, STATE))
    with pytest.raises(messages.MessageError, match="the agent on host n1 sent a message of kind 'rubbish'"):
        ends.until(lambda: False)
    ends.until(lambda: len(ends.heard) >= 3)
    assert sorted(host for host, _, _ in ends.heard) == ["n1", "n2", "n3"]
    assert ends.listener.connected == {"n1", "n2", "n3"}
    ends.listener.send("n1", messages.STOP, STOP)
    assert messages.STOP in (ends.next(bad)[0], ends.next(bad)[0] if together else "")


@pytest.mark.thorough
def test_peer_that_does_not_read_costs_no_memory_and_delays_nobody(ends: Ends) -> None:
    silent, link = ends.agent("n1"), ends.link("n2")
    ends.until(ends.all_connected)
    ends.listener.send(
        "n1", messages.RENDEZVOUS, {**RENDEZVOUS, "text": os.urandom(10 << 20).hex()}
    )  # more than sockets hold
    connection = ends.listener._connections["n1"]
    waiting = sum(map(len, connection._unsent))
    assert waiting > 0
    for _ in range(1000):
        ends.listener.alive()
        ends.pump()
    assert 0 < sum(map(len, connection._unsent)) <= waiting
    ends.listener.send_all(messages.STOP, STOP)
    ends.until(lambda: messages.STOP in ends.kinds(link))
    received = 0
    while received < 10 << 20:  # it reads again
        ends.pump()
        if select.select([silent.socket], [], [], 0.01)[0]:
            received += len(silent.socket.recv(1 << 20))
    ends.until(lambda: connection.idle)


@pytest.mark.thorough
def test_launcher_that_does_not_read_does_not_block_an_agent(ends: Ends) -> None:
    link = ends.link()
    ends.until(ends.all_connected)
    link.send(messages.GONE, {"what": os.urandom(10 << 20).hex(), "why": "", "hint": ""})
    assert link._connection is not None
    waiting = sum(map(len, link._connection._unsent))
    assert waiting > 0
    for _ in range(1000):
        link.alive()
    assert 0 < sum(map(len, link._connection._unsent)) <= waiting
    assert not link.drain(0.05)
    ends.until(lambda: ends.heard)
    assert link.drain(LIMIT)


def test_connection_over_which_nothing_comes_any_more_is_made_again(ends: Ends) -> None:
    """As behind a link that was cut: TCP would repeat what was lost only after as long again."""
    link = ends.link()
    link.patience = 8.0
    ends.until(ends.all_connected)
    ends.system.skipped += 7.0
    ends.pump()
    assert ends.all_connected()
    link.send(messages.STATE, {"tasks": {}})
    ends.system.skipped += 2.0
    link.receive()
    assert not ends.all_connected()
    assert link.refused == "the launcher has been silent for 8 s"
    ends.until(ends.all_connected)
    ends.until(lambda: ("n1", messages.STATE, {"tasks": {}}) in ends.heard)
    ends.listener.alive()
    ends.until(lambda: messages.ALIVE in ends.kinds(link))
    assert ends.listener.lost == {}


def test_last_words_leave_the_agent_before_it_closes(ends: Ends) -> None:
    link = ends.link()
    ends.until(ends.all_connected)
    link.send(messages.STATE, ENDED)
    assert link.drain(LIMIT)
    link.close()
    ends.links.clear()
    ends.until(lambda: ends.listener.lost)
    assert ends.heard == [("n1", messages.STATE, ENDED)]


def test_drain_of_a_link_whose_launcher_is_gone_ends_in_time(ends: Ends) -> None:
    link = ends.link()
    ends.listener.close()
    link.send(messages.GONE, {"what": "x", "why": "", "hint": ""})
    begin = time.monotonic()
    assert not link.drain(0.2)
    assert 0.2 <= time.monotonic() - begin < LIMIT


# --- addresses


def blackhole(address: str, port: int, stack: contextlib.ExitStack) -> None:
    """A port that answers nothing: its accept queue is full."""
    server = stack.enter_context(socket.socket())
    server.bind((address, port))
    server.listen(0)
    for _ in range(4):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect((address, port))


def test_address_that_does_not_answer_is_followed_by_the_next(ends: Ends) -> None:
    proxy = ends.proxy()
    with contextlib.ExitStack() as stack:
        blackhole("127.0.0.2", proxy.port, stack)
        link = ends.link(addresses=["127.0.0.2", "127.0.0.1"], port=proxy.port)
        ends.pump()
        assert proxy.connections == 0
        ends.system.skipped += 3.1
        ends.pump()
        assert link.refused == f"127.0.0.2 port {proxy.port} does not answer"
        ends.until(lambda: link.connected)


@pytest.mark.parametrize("odd", ["127.0.0.3", "x" * 300])
def test_address_that_refuses_or_does_not_resolve_is_followed_by_the_next(odd: str, ends: Ends) -> None:
    proxy = ends.proxy()
    link = ends.link(addresses=[odd, "127.0.0.1"], port=proxy.port)
    link.receive()
    ends.until(lambda: link.connected)
    assert ends.system.logged == []


def test_launcher_that_never_answers_is_asked_at_most_about_once_a_second(ends: Ends) -> None:
    link = ends.link(port=1)
    for _ in range(600):
        link.receive()
        ends.system.skipped += 0.1
    assert 40 <= link._attempts <= 75
    assert "port 1" in link.refused


def test_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch, ends: Ends) -> None:
    real = socket.socket

    def without(family: int = socket.AF_INET, *how: Any, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *how, **more)

    monkeypatch.setattr(socket, "socket", without)
    ends.listener.close()
    ends.listener = Listener(SECRET, ends.system)
    assert ends.listener._socket.family == socket.AF_INET
    stranger = ends.stranger()
    stranger.send(b"\0\0\0\4ABCD")
    link = ends.link()
    ends.until(lambda: link.connected and ends.system.logged)
    assert strangers_told(ends) == [f"{CONNECTED}sent a message that is not JSON"]


def test_no_port_at_all_is_an_error_with_the_host_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*how: Any) -> socket.socket:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    monkeypatch.setattr(socket, "socket", refuse)
    name = re.escape(socket.gethostname())
    with pytest.raises(GridtfError, match=f"cannot open a port on {name}: .*No buffer space"):
        Listener(SECRET, FakeSystem())


# --- processes


def test_child_that_closes_its_copies_leaves_the_parent_s_connections_alone(ends: Ends) -> None:
    link = ends.link()
    ends.until(ends.all_connected)
    stranger = ends.stranger()
    ends.pump()
    go, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ends.listener.close()
            os.close(tell)
            os.read(go, 1)  # until the test lets it go
        finally:
            os._exit(0)
    os.close(go)
    try:
        link.send(messages.STATE, STATE)
        ends.listener.send("n1", messages.STOP, STOP)
        ends.until(lambda: ends.heard and ends.told[id(link)])
        stranger.send(b"\0\0\0\4ABCD")
        ends.until(stranger.gone)
        ends.listener.close()  # the child holds no copy: others learn it at once
        deadline = time.monotonic() + LIMIT
        while link.connected and time.monotonic() < deadline:
            link.receive()
        assert not link.connected
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ends.listener.port), timeout=LIMIT).close()
    finally:
        os.close(tell)
        assert os.waitpid(pid, 0)[1] == 0


WOKEN = """
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.stream import Link, Listener
from gridtf.bootstrap.system import System
from gridtf.host import processes

processes.block_signals()
system = System()
listener = Listener(b"s" * 32, system)
links = [Link(["127.0.0.1"], listener.port, b"s" * 32, f"n{number}", system) for number in range(3)]
heard, told = [], []
listener.send_all(messages.STOP, {"reason": "x" * 5_000_000})
for link in links:
    link.send(messages.GONE, {"what": "y" * 5_000_000, "why": "", "hint": ""})
silences = 0
while len(heard) + len(told) < 6 and silences < 3:
    before = len(heard) + len(told)
    heard += listener.receive()
    for link in links:
        told += link.receive()
    if len(heard) + len(told) < 6 and system.wait(5.0) is None:
        silences += 1
for end in (*links, listener):
    end.close()
print(len(heard), len(told), silences)
"""


@pytest.mark.thorough
def test_every_piece_of_news_ends_a_wait() -> None:
    done = subprocess.run(python(WOKEN), env=environment(), capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "3 3 0\n"), done.stderr
