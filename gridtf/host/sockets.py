"""TCP ports of this host, as the kernel reports them: sock_diag(7), /proc/net/tcp and tcp6 (proc_pid_net(5))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = 10  # tcp_states.h: TCP_LISTEN


def listening(ports: Collection[int]) -> set[int]:
    """Find the ports on which a process of this host listens.

    Args:
        ports: The ports to look for.

    Returns:
        Those of them on which a process listens.
    """
    try:
        found = {port for family in (socket.AF_INET, socket.AF_INET6) for port in _listening(family)}
    except OSError:  # not allowed here, or a kernel without it: slower
        found = {local for local, _, state in _rows() if state == _LISTEN}
    return found & set(ports)


def connected(ports: Collection[int]) -> set[int]:
    """Find the ports with a connection. The kernel keeps most closed ones for another minute (TIME_WAIT).

    Args:
        ports: The ports to look for, on either side of a connection.

    Returns:
        Those of them that have a connection.
    """
    return {port for local, remote, _ in _rows() for port in (local, remote)} & set(ports)


def parsed(lines: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """Parse a table of /proc/net.

    Args:
        lines: A heading and one line per socket, with addresses, ports and states in hexadecimal::

            sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
             0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 …

    Yields:
        (local port, remote port, state).
    """
    for line in lines:
        _, local, remote, state, *_ = line.split(maxsplit=4)
        if state != "st":  # the heading
            yield int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), int(state, 16)


def _rows() -> Iterator[tuple[int, int, int]]:
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()
        except OSError:  # a kernel without IPv6
            continue
        yield from parsed(lines)


# sock_diag(7), linux/netlink.h, linux/inet_diag.h. Reading /proc/net/tcp takes milliseconds, even with few connections,
# since the kernel walks through the whole table of connections; a dump of the listening sockets a small part of that.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port id
_QUERY = struct.Struct("=BBxxI48x")  # inet_diag_req_v2: family, protocol, states, any socket
_LOCAL_PORT = struct.Struct("!4xH")  # inet_diag_msg: after family, state, timer and retrans


def _listening(family: int) -> Iterator[int]:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 1 << _LISTEN)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + query)
        while True:
            answer = kernel.recv(1 << 16)
            while answer:
                length, kind, *_ = _HEADER.unpack_from(answer)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError("sock_diag(7) refused the query")
                yield _LOCAL_PORT.unpack_from(answer, _HEADER.size)[0]
                answer = answer[(length + 3) & ~3 :]  # NLMSG_ALIGN
