"""An encrypted connection of two processes that know each other's certificate, and the streams that it carries.

TLS 1.3 on both sides, each of which trusts nothing but the other's certificate: what is on a shared file system are
these, which are no secrets. A frame is a kind (one byte), a length (four bytes, the highest first) and that many bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import sys
from collections.abc import Mapping

from gridtf.errors import GridtfError
from gridtf.host.interpreter import isolated

# Kinds of frames: of streams, of which an empty STDIN is the end; what TIOCGWINSZ of ioctl_tty(2) says of the user's
# terminal; and, in one byte, the exit code of the command, after all output.
STDIN, STDOUT, STDERR, SIZE, EXIT = range(5)

# The command that copies between its standard streams and a port of its host, with any Python 3.
COPY = isolated(
    "python3",
    "-c",
    """
import os, socket, sys, threading, tty
if os.isatty(1):
    tty.setraw(1)
other = socket.create_connection(("localhost", int(sys.argv[1])))
def send():
    for data in iter(lambda: os.read(0, 65536), b""):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
for data in iter(lambda: other.recv(65536), b""):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
""",
)

_HEAD = struct.Struct("!BI")
_CHUNK = 1 << 14  # bytes of a frame; TLS has records of this size
_MOST = 1 << 18  # bytes that may wait in this process, for each direction; until they have left, no more are read
_PIECE = 4096  # bytes that a pipe takes without blocking once it takes any: PIPE_BUF
_STEP = 0.25  # seconds to wait for something to copy: the longest for which a handler of a signal has to wait as well
_LEAVE_LIMIT = 5.0  # seconds for the other side to close the connection
_EARLIER, _LATER = 2, 1  # days for which a certificate is valid: clocks of hosts may differ
_TCP = (socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_USER_TIMEOUT, 30_000)


def identity() -> tuple[bytes, str]:
    """Make a key of this process alone.

    Returns:
        The key and its certificate, and the certificate, in PEM.

    Raises:
        GridtfError: The package cryptography is not installed, or not for this machine.
    """
    from datetime import datetime, timedelta, timezone

    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError as error:
        raise GridtfError(
            f"the Python package cryptography cannot be loaded: {error}",
            hint=f"install it: {sys.executable} -m pip install cryptography",
        ) from None

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, os.urandom(8).hex())])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(_EARLIER)).not_valid_after(now + timedelta(_LATER))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate, certificate.decode()


def context(own: bytes, other: str, *, server: bool) -> ssl.SSLContext:
    """What a process needs to connect to the owner of one certificate alone.

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
    with os.fdopen(os.memfd_create("gridtf"), "wb", buffering=0) as file:  # no disk ever has it
        file.write(own)
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return made


class Relay:
    """Copies between descriptors of this process and frames, both ways. When the other host is gone, that is noticed.

    Args:
        connection: A connection whose handshake is done.
        sources: Descriptor -> the kind of the frames that carry what can be read there.
        sinks: Kind of frames -> the descriptor that what they carry is written to.

    Attributes:
        sources: Those that have not ended.
        news: Frames that are for no descriptor, until the owner takes them: kind and content.
        unsent: What is still to be sent.
        closed: Whether the connection has ended.
    """

    def __init__(self, connection: ssl.SSLSocket, sources: Mapping[int, int], sinks: Mapping[int, int]) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _TCP if connection.family != socket.AF_UNIX else ():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection, self.sources, self._sinks = connection, dict(sources), dict(sinks)
        self._received, self.unsent = bytearray(), bytearray()
        self._unwritten = {kind: bytearray() for kind in sinks}
        self.news: list[tuple[int, bytes]] = []
        self.closed = self._ended = False

    def send(self, kind: int, data: bytes) -> None:
        """Send a frame, as soon as the connection takes it."""
        if not self.closed:
            self.unsent += _HEAD.pack(kind, len(data)) + data

    @property
    def written(self) -> bool:
        """Whether everything that has come was written."""
        return not any(self._unwritten.values())

    def step(self) -> None:
        """Copy what can be copied now, or soon.

        Raises:
            OSError: Nobody reads STDOUT or STDERR any more.
        """
        connected = self._connection.fileno()
        full = self.closed or any(len(waiting) > _MOST for waiting in self._unwritten.values())
        reads = [*([] if full else [connected]), *(self.sources if len(self.unsent) < _MOST else ())]
        writes = [self._sinks[kind] for kind, waiting in self._unwritten.items() if waiting and kind in self._sinks]
        writes += [connected] if self.unsent and not self.closed else []
        if full and STDIN in self._sinks:  # a command that reads nothing must not hide that its user is gone
            poller = select.poll()
            poller.register(connected, select.POLLRDHUP)
            self.closed = self.closed or bool(poller.poll(0))
        pending = not full and self._connection.pending() > 0
        readable, writable, _ = select.select(reads, writes, [], 0.0 if pending else _STEP)
        for source in self.sources.keys() & {*readable}:
            self._read(source)
        if pending or connected in readable:
            self._receive()
        for kind in [kind for kind, sink in self._sinks.items() if sink in writable]:
            self._write(kind)
        if connected in writable:
            self._flush()

    def leave(self) -> None:
        """Let the other side close the connection first. srun of Slurm 26.05 kills what it has started, and says so,
        where its output is closed before."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)  # without TLS from here on
            self._connection.settimeout(_LEAVE_LIMIT)
            while self._connection.recv(_CHUNK):
                pass

    def _read(self, source: int) -> None:
        kind = self.sources[source]
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the other side of a terminal open any more
            data = b""
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
        while len(self._received) >= _HEAD.size and not self.closed:
            kind, length = _HEAD.unpack_from(self._received)
            end = _HEAD.size + length
            self.closed = length > _CHUNK
            if len(self._received) < end:
                return
            self._take(kind, bytes(self._received[_HEAD.size : end]))
            del self._received[:end]

    def _take(self, kind: int, data: bytes) -> None:
        if kind not in self._unwritten:
            self.news.append((kind, data))
        elif kind in self._sinks:
            self._unwritten[kind] += data
            self._ended = self._ended or (kind == STDIN and not data)
            self._close_ended()

    def _write(self, kind: int) -> None:
        waiting = self._unwritten[kind]
        try:
            del waiting[: os.write(self._sinks[kind], waiting[:_PIECE])]
        except BlockingIOError:
            return
        except OSError:
            if kind != STDIN:
                raise
            self._ended = True  # the command reads no more
            waiting.clear()
        self._close_ended()

    def _close_ended(self) -> None:
        if self._ended and self.written:
            os.close(self._sinks.pop(STDIN))

    def _flush(self) -> None:
        try:
            del self.unsent[: self._connection.send(self.unsent[:_CHUNK])]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:  # what the other side has sent before it left can still be read
            self.unsent.clear()
            self.sources.clear()
