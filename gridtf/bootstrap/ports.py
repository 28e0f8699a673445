"""Ports that stay ours: bound, with SO_REUSEPORT and never listening, until and while TensorFlow serves on them.

TensorFlow binds with SO_REUSEPORT when TF_GRPC_REUSE_PORT=1, so it gets in beside the holder; everybody else is
refused. A holder that does not listen takes no connections.
"""

from __future__ import annotations

import socket
from types import TracebackType

from gridtf.errors import GridtfError


class PortHolder:
    """Holds ports until it is closed. One holder a host, so that no port is handed out twice."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def reserve(self) -> int:
        """A port that nobody else can bind from now on, unless it is this user and asks for SO_REUSEPORT."""
        held = _bound()
        port = int(held.getsockname()[1])
        self._held[port] = held
        return port

    def release(self, port: int) -> None:
        """Let one go: for programs that do not share ports (MASTER_PORT)."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        for port in list(self._held):
            self.release(port)

    def filenos(self) -> list[int]:
        """The descriptors, for a process that is to hold the ports instead of this one."""
        return [held.fileno() for held in self._held.values()]

    def __enter__(self) -> PortHolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound() -> socket.socket:
    """A socket on the wildcard address of IPv6 and IPv4 at once, or of IPv4 alone where there is no IPv6."""
    problem: OSError | None = None
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            problem = error
            continue
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", 0))  # port 0 with SO_REUSEPORT is still never a port in use
        except OSError as error:
            problem = error
            held.close()
            continue
        return held
    raise GridtfError(f"cannot reserve a port on {socket.gethostname()}: {problem}")
