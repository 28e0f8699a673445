"""Encrypted connections between two processes that know each other's certificate, and what they carry."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gridtf.errors import GridtfError
from gridtf.features.exec.session import meet
from gridtf.host import encrypted
from gridtf.host.encrypted import EXIT, SIZE, STDIN, STDOUT, Relay
from tests.support.jobs import until

LIMIT = 60.0


class Waiting:
    """A process that waits for the owner of a certificate, as gridtf exec's does: here, a thread.

    Attributes:
        address: Where it listens.
        certificate: Its own.
        found: Whom it has met; None before, and where nobody has come.
    """

    def __init__(self, friend: str, limit: float = LIMIT) -> None:
        own, self.certificate = encrypted.identity()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.found: ssl.SSLSocket | None = None
        context = encrypted.context(own, friend, server=True)

        def wait() -> None:
            with self._listener:
                self.found = meet(self._listener, context, time.monotonic() + limit)

        self.thread = threading.Thread(target=wait)
        self.thread.start()

    def end(self) -> None:
        self.thread.join()
        if self.found:
            self.found.close()


@contextlib.contextmanager
def waiting(friend: str, limit: float = LIMIT) -> Iterator[Waiting]:
    made = Waiting(friend, limit)
    try:
        yield made
    finally:
        made.end()


def connected(own: bytes, other: str, address: tuple[str, int]) -> ssl.SSLSocket:
    made = encrypted.context(own, other, server=False).wrap_socket(socket.create_connection(address))
    made.settimeout(LIMIT)
    return made


def refused(own: bytes, other: str, address: tuple[str, int]) -> bool:
    """Whether a connection is: a client of TLS 1.3 learns it when it reads."""
    try:
        with connected(own, other, address) as stranger:
            return stranger.recv(1) == b""
    except OSError:
        return True


def test_two_that_know_each_other_meet_although_strangers_are_there() -> None:
    own, certificate = encrypted.identity()
    strange, strange_certificate = encrypted.identity()
    with waiting(certificate) as server:
        silent = [socket.create_connection(server.address) for _ in range(40)]  # more than may wait at once
        talking = socket.create_connection(server.address)
        talking.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert refused(strange, server.certificate, server.address)  # knows whom it talks to, and is not known
        assert refused(own, strange_certificate, server.address)  # is known, and would talk to nobody else
        with connected(own, server.certificate, server.address) as friend:
            server.thread.join(LIMIT)
            assert server.found is not None
            assert friend.version() == server.found.version() == "TLSv1.3"
            assert friend.session_reused is False
            server.found.settimeout(LIMIT)
            server.found.sendall(b"hello")
            assert friend.recv(5) == b"hello"
        for one in (*silent, talking):
            one.close()


@pytest.mark.thorough
def test_nobody_is_waited_for_longer_than_allowed() -> None:
    _, certificate = encrypted.identity()
    with waiting(certificate, limit=0.5) as server:
        with socket.create_connection(server.address):
            server.thread.join(LIMIT)
        assert server.found is None
        assert not server.thread.is_alive()


@pytest.mark.thorough
def test_without_a_certificate_nobody_is_let_in() -> None:
    _, certificate = encrypted.identity()
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with waiting(certificate, limit=3.0) as server:
        with contextlib.suppress(OSError), anybody.wrap_socket(socket.create_connection(server.address)) as stranger:
            stranger.settimeout(LIMIT)
            assert stranger.recv(1) == b""
        server.thread.join(LIMIT)
        assert server.found is None


@pytest.mark.thorough
def test_session_that_was_recorded_is_no_key_to_another_one() -> None:
    """Everything that the owner has sent is sent again, to the same process with the same certificates."""
    own, certificate = encrypted.identity()
    secret, known = encrypted.identity()
    context = encrypted.context(secret, certificate, server=True)

    def served(through: bytes | None) -> tuple[ssl.SSLSocket | None, bytes]:
        """Whom the process has met, and what came from the other side, which repeats something or is the owner."""
        ours, theirs = socket.socketpair()
        heard = bytearray()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()

            def client() -> None:
                if through is None:
                    with (
                        contextlib.suppress(OSError),
                        encrypted.context(own, known, server=False).wrap_socket(theirs) as friend,
                    ):
                        friend.sendall(b"rm -rf tmp")
                        friend.recv(1)
                else:
                    theirs.sendall(through)

            def relay() -> None:  # a tap on the line
                with socket.create_connection(address) as line, contextlib.suppress(ConnectionError):
                    ours.settimeout(0.2)
                    line.settimeout(0.2)
                    end = time.monotonic() + 5
                    while time.monotonic() < end:
                        with contextlib.suppress(TimeoutError):
                            data = ours.recv(65536)
                            if not data:
                                break
                            heard.extend(data)
                            line.sendall(data)
                        with contextlib.suppress(TimeoutError):
                            back = line.recv(65536)
                            if not back:
                                break
                            ours.sendall(back)

            threads = [threading.Thread(target=client), threading.Thread(target=relay)]
            for thread in threads:
                thread.start()
            found = meet(listener, context, time.monotonic() + 6)
            if found is not None:
                found.settimeout(LIMIT)
                assert found.recv(100) == b"rm -rf tmp"
                found.close()
            ours.close()
            for thread in threads:
                thread.join()
            theirs.close()
        return found, bytes(heard)

    found, recorded = served(None)
    assert found is not None
    assert b"rm -rf" not in recorded
    assert b"BEGIN" not in recorded
    found, again = served(recorded)
    assert (found, again) == (None, recorded)


def test_key_is_in_no_file(tmp_path: object) -> None:
    own, certificate = encrypted.identity()
    before = set(os.listdir("/proc/self/fd"))
    encrypted.context(own, certificate, server=True)
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ssl.SSLError):
        encrypted.context(own, "no certificate", server=True)
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-text"], input=certificate, capture_output=True, text=True, check=True
    ).stdout
    assert "id-ecPublicKey" in shown
    assert "PRIVATE" not in certificate


# --- the streams


@contextlib.contextmanager
def pair() -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Both ends of a connection."""
    own, certificate = encrypted.identity()
    with waiting(certificate) as server, connected(own, server.certificate, server.address) as friend:
        server.thread.join(LIMIT)
        assert server.found is not None
        yield friend, server.found


def test_streams_news_and_ends_pass_in_order() -> None:
    size = bytes(range(8))
    with pair() as (one, other):
        given, gives = os.pipe()
        takes, taken = os.pipe()
        client, server = Relay(one, {given: STDIN}, {}), Relay(other, {}, {STDIN: taken})
        os.write(gives, b"some input")
        client.send(SIZE, size)
        os.close(gives)
        os.set_blocking(takes, False)
        data = b""
        while not data.endswith(b"input") or client.sources:
            client.step()
            server.step()
            with contextlib.suppress(BlockingIOError):
                data += os.read(takes, 100)
        client.step()
        copied([server], lambda: _ended(takes), "the end of the input")
        assert server.news == [(SIZE, size)]
        server.send(EXIT, b"\x07")
        copied([server, client], lambda: client.news, "the exit code")
        assert client.news == [(EXIT, b"\x07")]
        other.close()
        copied([client], lambda: client.closed, "the end")
        os.close(takes)
        os.close(given)


def copied(relays: Sequence[Relay], condition: Callable[[], object], what: str) -> None:
    """Have them copy until a condition is true."""

    def look() -> object:
        for relay in relays:
            relay.step()
        return condition()

    until(look, what)


def _ended(descriptor: int) -> bool:
    try:
        return os.read(descriptor, 1) == b""
    except BlockingIOError:
        return False


@pytest.mark.thorough
def test_sender_waits_for_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "_STEP", 0.01)
    with pair() as (one, other), Path("/dev/zero").open("rb") as zeros:
        takes, taken = os.pipe()
        os.set_blocking(taken, False)
        client, server = Relay(one, {}, {STDOUT: taken}), Relay(other, {zeros.fileno(): STDOUT}, {})
        copied([server, client], lambda: len(client._unwritten[STDOUT]) > 1 << 18, "a full client")
        for _ in range(100):  # the network takes some
            server.step()
            client.step()
        assert max(len(server.unsent), len(client._unwritten[STDOUT])) < 1 << 20
        os.close(takes)
        with pytest.raises(BrokenPipeError):
            client.step()
        os.close(taken)


@pytest.mark.thorough
def test_user_who_is_gone_is_missed_although_the_command_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "_STEP", 0.01)
    with pair() as (one, other), Path("/dev/zero").open("rb") as zeros:
        takes, taken = os.pipe()
        os.set_blocking(taken, False)
        client, server = Relay(one, {zeros.fileno(): STDIN}, {}), Relay(other, {}, {STDIN: taken})
        copied([server, client], lambda: len(server._unwritten[STDIN]) > 1 << 18, "a full server")
        for _ in range(20):
            server.step()
        assert not server.closed
        one.close()
        copied([server], lambda: server.closed, "the end")
        os.close(takes)
        os.close(taken)


@pytest.mark.parametrize("sent", [b"\x09\xff\xff\xff\xff", b"\x01\x00\x00\xff\xff"])
def test_frame_that_is_too_long_ends_the_connection(sent: bytes) -> None:
    with pair() as (one, other):
        relay = Relay(other, {}, {})
        one.sendall(sent)
        copied([relay], lambda: relay.closed, "the end")


def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(GridtfError, match="the Python package cryptography cannot be loaded") as raised:
        encrypted.identity()
    assert raised.value.hint == f"install it: {sys.executable} -m pip install cryptography"
