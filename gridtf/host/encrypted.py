"""An encrypted connection of two processes that know each other's certificate, and the streams that it carries.

TLS 1.3 on both sides, each of which trusts nothing but the other's certificate: what is on a shared file system are
these, which are no secrets. A frame is a kind (one byte), a length (four bytes, the highest first) and that many bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import struct
from collections.abc import Mapping

# Kinds of frames. An empty one of STDIN says that it has ended.
STDIN, STDOUT, STDERR = range(3)
SIZE = 3  # lines and columns of the terminal, as Size packs them
SIGNAL = 4  # one byte: the number of a signal for the command
EXIT = 5  # one byte: the exit code of the command, after all output
NOTE = 6  # why the command was ended, in UTF-8

Size = struct.Struct("!2H")
_HEAD = struct.Struct("!BI")
_CHUNK = 1 << 14  # bytes of a frame; TLS has records of this size
_MOST = 1 << 18  # bytes that may wait in this process, for each direction; until they have left, no more are read
_PIECE = 4096  # bytes that a pipe takes without blocking once it takes any: PIPE_BUF
_EARLIER, _LATER = 2, 1  # days for which a certificate is valid: clocks of hosts may differ
_UNHEARD = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


def identity() -> tuple[bytes, str]:
    """Make a key of this process alone.

    Returns:
        The key and its certificate, and the certificate, in PEM.

    Raises:
        ImportError: The package cryptography is not installed.
    """
    from datetime import datetime, timedelta, timezone

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, os.urandom(8).hex())])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(_EARLIER)).not_valid_after(now + timedelta(_LATER))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate, certificate.decode()


def context(own: bytes, other: str, *, server: bool) -> ssl.SSLContext:
    """What a process needs to connect to the owner of one certificate, and to nobody else.

    Args:
        own: The key and the certificate of this process, as identity returns them.
        other: The certificate of the other one.
        server: Whether this process waits for the other one to connect.

    Raises:
        ssl.SSLError: That is no certificate.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the certificate names no host: it is known itself
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=other)
    if server:
        made.num_tickets = 0  # no session is ever resumed
    file = os.memfd_create("gridtf")  # a file of this process alone, which no disk ever has
    try:
        os.write(file, own)
        made.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return made


def keep_alive(connected: socket.socket) -> None:
    """Have a connection break when the other host is gone, within about half a minute."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _UNHEARD.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Relay:
    """Copies between descriptors of this process and frames, both ways. A signal with a handler ends a wait.

    Args:
        connection: A connection whose handshake is done.
        sources: Descriptor -> the kind of the frames that carry what can be read there.
        sinks: Kind of frames -> the descriptor that what they carry is written to.

    Attributes:
        sources: Those that have not ended.
        closed: Whether the connection has ended.
        broken: The kinds of frames whose descriptor takes nothing any more.
    """

    def __init__(self, connection: ssl.SSLSocket, sources: Mapping[int, int], sinks: Mapping[int, int]) -> None:
        connection.setblocking(False)
        self._connection, self.sources, self._sinks = connection, dict(sources), dict(sinks)
        self._received, self._unsent = bytearray(), bytearray()
        self._unwritten = {kind: bytearray() for kind in sinks}
        self._ended: set[int] = set()  # kinds of frames of which none follows
        self._news: list[tuple[int, bytes]] = []
        self.closed = False
        self.broken: set[int] = set()
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def send(self, kind: int, data: bytes) -> None:
        """Send a frame, as soon as the connection takes it."""
        self._unsent += _HEAD.pack(kind, len(data)) + data

    def news(self) -> list[tuple[int, bytes]]:
        """The frames that are for no descriptor and have come since the last call: kind and content."""
        found, self._news = self._news, []
        return found

    @property
    def written(self) -> bool:
        """Whether everything that has come was written."""
        return not any(self._unwritten.values())

    @property
    def sent(self) -> bool:
        """Whether everything that was sent has left this process."""
        return not self._unsent

    def step(self, seconds: float) -> None:
        """Copy what can be copied now.

        Args:
            seconds: The longest time to wait for something to copy.
        """
        full = self.closed or any(len(waiting) > _MOST for waiting in self._unwritten.values())
        connected = self._connection.fileno()
        reads = [self._woken, *([] if full else [connected])]
        reads += self.sources if len(self._unsent) < _MOST and not self.closed else []
        writes = [self._sinks[kind] for kind, waiting in self._unwritten.items() if waiting]
        writes += [connected] if self._unsent and not self.closed else []
        pending = not full and self._connection.pending() > 0
        readable, writable, _ = select.select(reads, writes, [], 0.0 if pending else seconds)
        for one in readable:
            if one == self._woken:
                os.read(one, 4096)
            elif one != connected:
                self._read(one)
        if pending or connected in readable:
            self._receive()
        for kind in [kind for kind, sink in self._sinks.items() if sink in writable]:
            self._write(kind)
        if self._unsent and not self.closed:
            self._flush()

    def _read(self, source: int) -> None:
        data = b""
        with contextlib.suppress(OSError):  # EIO: no process has the other side of a terminal open any more
            data = os.read(source, _CHUNK)
        kind = self.sources[source]
        if not data:
            del self.sources[source]
        if data or kind == STDIN:
            self.send(kind, data)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:  # an SSLError is one
            data = b""
        self.closed = not data
        self._received += data
        while len(self._received) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._received)
            end = _HEAD.size + length
            if length > _CHUNK:
                self.closed = True
            if len(self._received) < end:
                return
            self._take(kind, bytes(self._received[_HEAD.size : end]))
            del self._received[:end]

    def _take(self, kind: int, data: bytes) -> None:
        if kind in self._sinks:
            self._unwritten[kind] += data
            if not data:
                self._ended.add(kind)
                self._end(kind)
        elif kind not in self._unwritten:
            self._news.append((kind, data))

    def _write(self, kind: int) -> None:
        waiting = self._unwritten[kind]
        try:
            del waiting[: os.write(self._sinks[kind], waiting[:_PIECE])]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self.broken.add(kind)
            self._ended.add(kind)
            waiting.clear()
        self._end(kind)

    def _end(self, kind: int) -> None:
        """Close a descriptor to which nothing is written any more."""
        if kind in self._ended and not self._unwritten[kind]:
            os.close(self._sinks.pop(kind))

    def _flush(self) -> None:
        try:
            del self._unsent[: self._connection.send(self._unsent[:_CHUNK])]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:  # what the other side has sent before it left can still be read
            self._unsent.clear()
            self.sources.clear()
