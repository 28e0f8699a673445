"""The ends of the streams between launcher and agents, and the launcher's records, without sockets and processes."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from gridtf import features
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.recorder import Recorder, put
from gridtf.bootstrap.wire.stream import Link, Listener, News
from gridtf.errors import RunDirError
from gridtf.run.rundir import Record
from gridtf.starters.mpi import COMMANDS, HOSTS, REMOTE, WORLD
from tests.support.system import FakeSystem

# With those of all starters and features.
_PARTS = [import_module(module.name) for module in walk_packages(features.__path__, f"{features.__name__}.")]
FROM_LAUNCHER = {**messages.FROM_LAUNCHER, WORLD: HOSTS, REMOTE: COMMANDS}
FROM_AGENT = {**messages.FROM_AGENT, REMOTE: COMMANDS}
for _part in _PARTS:
    FROM_LAUNCHER |= _part.InAgent.hears if hasattr(_part, "InAgent") else {}
    FROM_AGENT |= _part.InLauncher.hears if hasattr(_part, "InLauncher") else {}


def carried(kinds: Mapping[str, Any], kind: str, content: Record) -> News:
    """A message as it comes out at the other end."""
    received = bytearray(messages.encoded(kind, content))
    message = messages.take(received, messages.MOST)
    assert message is not None
    return messages.decoded(message, kinds)


def _signal(system: FakeSystem) -> None:
    if signal.SIGIO not in system.received:  # the kernel keeps one of each
        system.receive(signal.SIGIO)


class FakeListener(Listener):
    """The launcher's end: agents say what the test has them say.

    Attributes:
        sent: (host, kind, content) of every message, in order; the host of a message to all is ``*``.
        beats: How often all agents were told that the launcher is alive.
        closed: Whether close was called.
    """

    def __init__(self, secret: bytes = b"s" * 32, system: System | None = None) -> None:
        self.secret = secret
        self.kinds = {**messages.FROM_AGENT}
        self.port = 4711
        self.hosts: set[str] = set()
        self.lost: dict[str, float] = {}
        self.sent: list[tuple[str, str, Record]] = []
        self.beats = 0
        self.closed = False
        self._fake = system
        self._inbox: list[tuple[str, str, Record]] = []

    def say(self, host: str, kind: str, content: Record | None = None) -> None:
        """The agent of a host sends this."""
        self.hosts.add(host)
        self.lost.pop(host, None)
        self._inbox.append((host, *carried(self.kinds, kind, content or {})))
        if isinstance(self._fake, FakeSystem):
            _signal(self._fake)

    def say_raw(self, host: str, message: bytes) -> None:
        """The agent of a host sends this, which raises where the stream would."""
        self.hosts.add(host)
        self._inbox.append((host, *messages.decoded(message, self.kinds)))

    def told(self, host: str, kind: str) -> Record | None:
        """What a host was told last of this kind."""
        found = [content for to, what, content in self.sent if to in (host, "*") and what == kind]
        return found[-1] if found else None

    @property
    def connected(self) -> set[str]:
        return set(self.hosts)

    def send(self, host: str, kind: str, content: Record) -> None:
        self.sent.append((host, *carried(FROM_LAUNCHER, kind, content)))

    def send_all(self, kind: str, content: Record) -> None:
        self.send("*", kind, content)

    def alive(self) -> None:
        self.beats += 1

    def receive(self) -> list[tuple[str, str, Record]]:
        inbox, self._inbox = self._inbox, []
        return inbox

    def close(self) -> None:
        self.closed = True


class FakeLink(Link):
    """An agent's end: the launcher says what the test has it say.

    Attributes:
        sent: (kind, content) of every message, in order.
        beats: How often the launcher was told that this agent is alive.
        listener: The record that the agent was given.
        needs_environment: Whether it has asked for the environment of the job.
        drained: Whether drain was called.
        closed: Whether close was called.
    """

    def __init__(self, system: FakeSystem) -> None:
        self._fake = system
        self._inbox: list[News] = []
        self._up = True
        self.kinds = {**messages.FROM_LAUNCHER}
        self.refused = ""
        self.sent: list[News] = []
        self.beats = 0
        self.listener: Record = {}
        self.needs_environment = False
        self.drained = self.closed = False

    def of(self, listener: Record, host: str, system: System, *, environment: bool = False) -> FakeLink:
        """In the place of stream.link_of."""
        self.listener, self.needs_environment = listener, environment
        return self

    def say(self, kind: str, content: Record | None = None) -> None:
        """The launcher sends this."""
        self._inbox.append(carried(self.kinds, kind, content or {}))
        _signal(self._fake)

    def say_raw(self, message: bytes) -> None:
        """The launcher sends this, which raises where the stream would."""
        self._inbox.append(messages.decoded(message, self.kinds))

    def last(self, kind: str) -> Record:
        """What was sent last of this kind; empty when nothing was."""
        return next((content for what, content in reversed(self.sent) if what == kind), {})

    @property
    def host(self) -> Record:
        return self.last(messages.HOST)

    @property
    def state(self) -> Record:
        return self.last(messages.STATE)

    @property
    def connected(self) -> bool:
        return self._up

    def cut(self, why: str) -> None:
        """There is no connection from now on."""
        self._up, self.refused = False, why

    def send(self, kind: str, content: Record) -> None:
        self.sent.append(carried(FROM_AGENT, kind, content))

    def alive(self) -> None:
        self.beats += 1

    def receive(self) -> list[News]:
        inbox, self._inbox = self._inbox, []
        return inbox

    def drain(self, seconds: float) -> bool:
        self.drained = True
        return self._up

    def close(self) -> None:
        self.closed, self._up = True, False


class InlineRecorder(Recorder):
    """Writes in this process, at once: a write begins and ends in the same call.

    Attributes:
        written: Path and text of every record that was written, in order.
    """

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.written: list[tuple[Path, str]] = []
        self._code: int | None = None

    def look(self) -> None:
        super().look()
        while self._pid is not None:
            super().look()

    def _begin(self, path: Path, text: str, mode: int) -> int:
        try:
            self.put(path, text, mode)
            self.written.append((path, text))
            self._code = 0
        except RunDirError as error:
            self._code = error.number or 1
        return 1

    def put(self, path: Path, text: str, mode: int) -> None:
        """Write one file; a test may refuse it."""
        put(path, text, mode)

    def _ended(self, pid: int) -> int | None:
        return self._code
