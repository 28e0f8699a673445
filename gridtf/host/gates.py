"""Gates: sockets that share a TCP port with a server, and decide in the kernel whose connections reach it.

The sockets of one user that listen on one port with SO_REUSEPORT are a group. A classic BPF program of the group
(SO_ATTACH_REUSEPORT_CBPF, socket(7), Linux 4.6, no privilege needed) looks at each SYN and names the member that gets
it. A gate is the first member, number 0, and its queue of connections is full for good: the kernel drops whatever comes
there. The server that joins later is number 1, and gets what the program knows. It notices nothing of that.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Collection, Iterable, Sequence

from gridtf.values import grouped

Instruction = tuple[int, int, int, int]  # linux/filter.h, sock_filter: code, jump if true, jump if false, constant

# A connection as its SYN shows it: addresses (4 or 16 bytes) of source and target, port of the source.
Syn = tuple[bytes, bytes, int]

_LOAD, _LOAD_HALF, _LOAD_HALF_AT_X, _X_HEADER = 0x20, 0x28, 0x48, 0xB1  # BPF_LD, BPF_LDX of a header's length
_JUMP, _IF_EQUAL, _AND, _RETURN = 0x05, 0x15, 0x54, 0x06
_NETWORK = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF: the packet from its IP header on
_PROTOCOL = -0x1000 & 0xFFFFFFFF  # SKF_AD_OFF + SKF_AD_PROTOCOL
_IPV4 = 0x0800
_FAR = 250  # instructions that a conditional jump passes over; it can name 255
_ALL = 0xFFFFFFFF  # of a filter: the packet as a whole

EVERYBODY: list[Instruction] = [(_RETURN, 0, 0, 1)]  # a program that lets everybody in

_Load = Sequence[Instruction]
_SOURCE_4: list[_Load] = [[(_LOAD, 0, 0, _NETWORK + 12)]]
_TARGET_4: list[_Load] = [[(_LOAD, 0, 0, _NETWORK + 16)]]
_SOURCE_6: list[_Load] = [[(_LOAD, 0, 0, _NETWORK + 8 + 4 * word)] for word in range(4)]
_TARGET_6: list[_Load] = [[(_LOAD, 0, 0, _NETWORK + 24 + 4 * word)] for word in range(4)]
_PORT_4: list[_Load] = [[(_X_HEADER, 0, 0, _NETWORK), (_LOAD_HALF_AT_X, 0, 0, _NETWORK)]]
_PORT_6: list[_Load] = [[(_LOAD_HALF, 0, 0, _NETWORK + 40)]]  # a header that follows that of IPv6 is not known: refused
_FROM_LOOPBACK = [
    (_LOAD, 0, 0, _NETWORK + 12),
    (_AND, 0, 0, 0xFF000000),
    (_IF_EQUAL, 0, 1, 127 << 24),
]


def gate_program(
    hosts: Collection[bytes] = (), syns: Collection[Syn] = (), *, local: bool = False
) -> list[Instruction]:
    """The program that lets known connections in: it returns 1 for them, 0 for all others. Pure.

    Args:
        hosts: Addresses whose connections are known, whoever makes them.
        syns: Single connections that are known.
        local: Whether all of 127.0.0.0/8 is known.
    """
    four = [*_FROM_LOOPBACK, (_RETURN, 0, 0, 1)] if local else []
    four += _match(_SOURCE_4, [_words(host) for host in hosts if len(host) == 4], 1)
    four += _match(_SOURCE_4 + _TARGET_4 + _PORT_4, _rows(syns, 4), 1)
    six = _match(_SOURCE_6, [_words(host) for host in hosts if len(host) == 16], 1)
    six += _match(_SOURCE_6 + _TARGET_6 + _PORT_6, _rows(syns, 16), 1)
    return _by_version(four, six)


def source_filter(peers: Collection[tuple[bytes, int]]) -> list[Instruction]:
    """The filter of a UDP socket that hears only some sources. Pure.

    Args:
        peers: Their addresses and ports.
    """
    four = _match(_SOURCE_4 + _PORT_4, [(*_words(host), port) for host, port in peers if len(host) == 4], _ALL)
    six = _match(_SOURCE_6 + _PORT_6, [(*_words(host), port) for host, port in peers if len(host) == 16], _ALL)
    return _by_version(four, six)


def _by_version(four: Sequence[Instruction], six: Sequence[Instruction]) -> list[Instruction]:
    refuse = (_RETURN, 0, 0, 0)
    part = [*four, refuse]
    return [(_LOAD, 0, 0, _PROTOCOL), (_IF_EQUAL, 1, 0, _IPV4), (_JUMP, 0, 0, len(part)), *part, *six, refuse]


def _words(address: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(address) // 4}I", address)


def _rows(syns: Iterable[Syn], size: int) -> list[tuple[int, ...]]:
    return [(*_words(source), *_words(target), port) for source, target, port in syns if len(source) == size]


def _match(loads: Sequence[_Load], rows: Iterable[tuple[int, ...]], result: int) -> list[Instruction]:
    """Return the result if the values that these instructions load, one by one, are a row; go on behind it if not."""
    tails = grouped((value, tuple(rest)) for value, *rest in rows)
    if not tails:
        return []
    code: list[Instruction] = []
    if len(loads) == 1:
        values = list(tails)
        for part in (values[at : at + _FAR] for at in range(0, len(values), _FAR)):
            code += [(_IF_EQUAL, len(part) - position, 0, value) for position, value in enumerate(part)]
            code += [(_JUMP, 0, 0, 1), (_RETURN, 0, 0, result)]
    else:
        for value, below in tails.items():
            body = [*_match(loads[1:], below, result), (_JUMP, 0, 0, len(code))]  # no other value fits
            code = [(_IF_EQUAL, 1, 0, value), (_JUMP, 0, 0, len(body)), *body, *code]
    return [*loads[0], *code]


# --- sockets

_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF, _SO_MEMINFO = 26, 51, 55  # asm-generic/socket.h
_LINGER = struct.pack("=ii", 1, 0)  # a close resets the connection
_QUEUE = 1  # not 0, of which the kernel warns
_MEMINFO = struct.Struct("=9I")  # linux/sock_diag.h: the last one counts drops
_TCP_INFO = struct.Struct("=24xII")  # of a socket that listens: length of the queue, its limit


class Gate:
    """A gate on the port of a bound socket. It is closed until admit is called.

    Args:
        held: A socket that is bound with SO_REUSEPORT, and does not listen. The gate keeps it, not more.

    Raises:
        OSError: The kernel does not have what it takes.
    """

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        attach(held, gate_program())
        held.listen(_QUEUE)
        for _ in range(_QUEUE + 1):
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", held.getsockname()[1]))
                # it stays in the queue as long as nobody accepts it
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        waiting, most = _TCP_INFO.unpack(held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        if waiting <= most:
            raise OSError("the queue of a socket cannot be filled")
        self.drops()

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._held.fileno()

    def admit(self, program: Sequence[Instruction]) -> None:
        """Change who is let in.

        Args:
            program: Of gate_program.

        Raises:
            OSError: The program is too long for this kernel; the one before holds.
        """
        attach(self._held, program)

    def drops(self) -> int:
        """How many SYNs were dropped here so far.

        Raises:
            OSError: The kernel is older than 4.12.
        """
        memory = self._held.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(memory)[-1])


def attach(target: socket.socket, program: Sequence[Instruction]) -> None:
    """Attach a program to the group of a TCP socket, or a filter to a UDP socket.

    Args:
        target: The socket.
        program: Of gate_program or source_filter.

    Raises:
        OSError: The kernel refuses it.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(code, len(code))
    option = _SO_ATTACH_REUSEPORT_CBPF if target.type == socket.SOCK_STREAM else _SO_ATTACH_FILTER
    target.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", len(program), ctypes.addressof(kept)))
