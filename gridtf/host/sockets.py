"""TCP ports of this host, as the kernel reports them: sock_diag(7), /proc/net/tcp and tcp6 (proc_pid_net(5))."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from gridtf.host import procfs
from gridtf.host.netlink import SOCK_DIAG, Netlink, attributes

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _SYN_SENT, _LISTEN = 1, 2, 10  # tcp_states.h
_SOCKET = re.compile(r"socket:\[(\d+)\]")

# One end of a connection and the other: address (4 or 16 bytes, as on the wire), port, address, port.
Ends = tuple[bytes, int, bytes, int]


def bound(kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket bound to a free port and the wildcard address: of both IPv6 and IPv4, or of IPv4 alone without IPv6.

    Sockets of both families can listen on one port, and the kernel prefers those of IPv4. Hence the choice is that of
    gRPC, which uses IPv4 alone where a host has no ::1.

    Args:
        kind: SOCK_STREAM: TCP, a port that others of the same user can bind with SO_REUSEPORT; SOCK_DGRAM: UDP.

    Raises:
        OSError: There is no free port.
    """
    family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
    made = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("", 0))  # port 0, also with SO_REUSEPORT, is never a port in use
    except OSError:
        made.close()
        raise
    return made


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


def listening(ports: Collection[int], but: Collection[int] = ()) -> set[int]:
    """Find the ports on which a process of this host listens.

    Args:
        ports: The ports to look for.
        but: Inodes of sockets that do not count.

    Returns:
        Those of them on which a process listens.
    """
    try:
        with Netlink(SOCK_DIAG) as kernel:
            entries = [entry for family in _FAMILIES for entry in _dump(kernel, family, _LISTEN)]
        found = {_PORTS.unpack_from(entry)[0] for entry in entries if _INODE.unpack_from(entry)[0] not in but}
    except OSError:  # not allowed here, or a kernel without it: slower
        found = {local for local, _, state, inode in _rows() if state == _LISTEN and inode not in but}
    return found & set(ports)


def connected(ports: Collection[int]) -> set[int]:
    """Find the ports to which a client has connected. The kernel keeps most closed connections for another minute.

    It does not tell which end is the client's: that is known as long as a server of this host listens at the other.

    Args:
        ports: The ports to look for, on either side of a connection.

    Returns:
        Those of them that have a connection.
    """
    rows = [*_rows()]
    servers = {local for local, _, state, _ in rows if state == _LISTEN}
    pairs = ((local, remote) for local, remote, state, _ in rows if state != _LISTEN)
    return {port for pair in pairs for port, other in (pair, pair[::-1]) if other not in servers} & set(ports)


def only_listens(pid: int) -> bool:
    """Whether a process of this user listens on TCP ports, and has no connection.

    Args:
        pid: Its process id.
    """
    own = held(pid)
    return {state for _, _, state, inode in _rows() if inode in own} == {_LISTEN}


def connects(pid: int, port: int) -> bool:
    """Whether a process of this user has a TCP connection to a port.

    Args:
        pid: Its process id.
        port: The port at the other end, on any host.
    """
    own = held(pid)
    return any(remote == port and inode in own for _, remote, _, inode in _rows())


def ports_of(pids: Iterable[int], most: int) -> dict[int, list[int]]:
    """The TCP ports on which each of these processes of this user, with its descendants, listens.

    Args:
        pids: Their process ids.
        most: How many processes are looked at for each, parents before children.
    """
    own = {pid: _inodes(procfs.open_files(pid, most)) for pid in pids}
    listening = [(local, inode) for local, _, state, inode in _rows() if state == _LISTEN] if any(own.values()) else []
    return {pid: sorted({local for local, inode in listening if inode in inodes}) for pid, inodes in own.items()}


def held(pid: int) -> set[int]:
    """The inodes of the sockets that a process of this user has open.

    Args:
        pid: Its process id.
    """
    return _inodes(name for _, name in procfs.descriptors(pid))


def _inodes(names: Iterable[str]) -> set[int]:
    """Those of sockets, of the names of open files."""
    return {int(match[1]) for name in names if (match := _SOCKET.fullmatch(name))}


def parsed(lines: Iterable[str]) -> Iterator[tuple[int, int, int, int]]:
    """Parse a table of /proc/net.

    Args:
        lines: A heading and one line per socket, with addresses, ports and states in hexadecimal::

            sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
             0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 …

    Yields:
        (local port, remote port, state, inode).
    """
    for line in lines:
        _, local, remote, state, *rest = line.split(maxsplit=10)
        if state != "st":  # the heading
            ports = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
            yield *ports, int(state, 16), int(rest[5])


def _rows() -> Iterator[tuple[int, int, int, int]]:
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()
        except OSError:  # a kernel without IPv6
            continue
        yield from parsed(lines)


# sock_diag(7), linux/inet_diag.h. Reading /proc/net/tcp takes milliseconds, even with few connections, since the kernel
# walks through the whole table of connections; a dump of the listening sockets a small part of that.
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_SOCK_DIAG_BY_FAMILY = 20
_QUERY = struct.Struct("=BBBxI")  # inet_diag_req_v2: family, protocol, extensions, states; then the ends of a socket
_ANY_SOCKET = bytes(48)
_ENDS = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports, addresses
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # and any interface
_STATE = struct.Struct("=xB")  # inet_diag_msg: after the family
_PORTS = struct.Struct("!4xHH")
_ADDRESSES = struct.Struct("=8x16s16s")
_DUE = struct.Struct("=xxB49xI")  # which timer runs, and in how many milliseconds it expires
_WAITING = struct.Struct("=60xI")  # bytes to be sent or acknowledged
_USER = struct.Struct("=64xI")
_INODE = struct.Struct("=68xI")
_MESSAGE = 72  # bytes of inet_diag_msg, before its attributes
_INFO, _ASK_INFO = 2, 1 << 1  # inet_diag(7): the attribute that is a tcp_info, and the bit that asks for it
_SENDING = struct.Struct("=168xQQ")  # tcp_info: microseconds with data to send; those of them without room at the peer
_REPEATS = 1  # the timer after which a segment is sent again
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address as an IPv6 one


def _dump(kernel: Netlink, family: int, state: int, more: int = 0) -> Iterator[bytes]:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, more, 1 << state) + _ANY_SOCKET
    return kernel.dump(_SOCK_DIAG_BY_FAMILY, query)


class Connections:
    """The TCP connections of this host.

    Raises:
        OSError: The kernel does not tell.
    """

    def __init__(self) -> None:
        self._kernel = Netlink(SOCK_DIAG)

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.close()

    def beginning(self, user: int) -> dict[Ends, tuple[float, int]]:
        """Find the connections that a user's processes wait for: nobody has answered yet.

        Args:
            user: The number of the user.

        Returns:
            Their ends -> in how many seconds the kernel asks again, and the inode of the socket.

        Raises:
            OSError: The kernel does not answer.
        """
        found = {}
        for family in _FAMILIES:
            for entry in _dump(self._kernel, family, _SYN_SENT):
                if _USER.unpack_from(entry)[0] == user:
                    found[_ends(family, entry)] = _due(entry), _INODE.unpack_from(entry)[0]
        return found

    def sending(self, user: int, but: Collection[int] = ()) -> dict[Ends, tuple[int, int]]:
        """For how long the connections of a user's processes have had data to send that the network had not taken.

        Args:
            user: The number of the user.
            but: Inodes of sockets that do not count.

        Returns:
            Their ends -> microseconds, without the time in which the other end had no room, and how many bytes wait now
            to be sent or acknowledged. Nothing from a kernel whose tcp_info is too short for that.

        Raises:
            OSError: The kernel does not answer.
        """
        found = {}
        for family in _FAMILIES:
            for entry in _dump(self._kernel, family, _ESTABLISHED, _ASK_INFO):
                info = _info(entry) if _USER.unpack_from(entry)[0] == user else b""
                if len(info) >= _SENDING.size and _INODE.unpack_from(entry)[0] not in but:
                    busy, without_room = _SENDING.unpack_from(info)
                    found[_ends(family, entry)] = busy - without_room, _WAITING.unpack_from(entry)[0]
        return found

    def waits(self, ends: Ends) -> float | None:
        """Whether one connection is still being waited for. No table is walked.

        Args:
            ends: Its ends, of this host's first.

        Returns:
            In how many seconds the kernel asks again; None where nobody waits for it any more.

        Raises:
            OSError: The kernel does not answer.
        """
        entry = self._one(ends)
        return _due(entry) if entry is not None and _STATE.unpack_from(entry)[0] == _SYN_SENT else None

    def exists(self, ends: Ends) -> bool:
        """Whether this host has a connection, or begins one. No table is walked.

        Args:
            ends: Its ends, of this host's first.

        Raises:
            OSError: The kernel does not answer.
        """
        entry = self._one(ends)  # where there is none, the kernel finds the socket that listens on this port
        return entry is not None and _STATE.unpack_from(entry)[0] != _LISTEN

    def _one(self, ends: Ends) -> bytes | None:
        address, port, other, other_port = ends
        family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
        pair = _ENDS.pack(port, other_port, address, other)
        query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + pair + _ANY_COOKIE
        return self._kernel.one(_SOCK_DIAG_BY_FAMILY, query)


def _wire(family: int, raw: bytes) -> bytes:
    if family == socket.AF_INET:
        return raw[:4]
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _ends(family: int, entry: bytes) -> Ends:
    port, other_port = _PORTS.unpack_from(entry)
    address, other = (_wire(family, raw) for raw in _ADDRESSES.unpack_from(entry))
    return address, port, other, other_port


def _info(entry: bytes) -> bytes:
    """The tcp_info among the attributes of an entry; empty without one."""
    return next((value for kind, value in attributes(entry[_MESSAGE:]) if kind == _INFO), b"")


def _due(entry: bytes) -> float:
    timer, milliseconds = _DUE.unpack_from(entry)
    return milliseconds / 1000 if timer == _REPEATS else 0.0
