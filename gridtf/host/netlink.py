"""Questions to the kernel by netlink(7): a dump of all entries of a kind, or one entry."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

ROUTE, SOCK_DIAG = 0, 4  # linux/netlink.h: the families that gridtf asks

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port id
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_ANSWER_LIMIT = 1.0  # seconds for an answer, which the kernel gives at once
_LARGEST = 1 << 16


class Netlink:
    """A connection to the kernel.

    Args:
        family: ROUTE or SOCK_DIAG.

    Raises:
        OSError: The kernel does not have it.
    """

    def __init__(self, family: int) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
        self._kernel.settimeout(_ANSWER_LIMIT)
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._kernel.close()

    def dump(self, kind: int, query: bytes) -> Iterator[bytes]:
        """Ask for all entries that a query describes.

        Args:
            kind: The type of the message.
            query: What follows its header.

        Yields:
            Each entry, without its header. Read them all.

        Raises:
            OSError: The kernel refuses the query, or does not answer.
        """
        self._ask(kind, _REQUEST | _DUMP, query)
        while True:
            for answer, entry in self._answers():
                if answer == _DONE:
                    return
                yield entry

    def one(self, kind: int, query: bytes) -> bytes | None:
        """Ask for one entry.

        Args:
            kind: The type of the message.
            query: What follows its header.

        Returns:
            The entry, without its header; None where there is no such entry.

        Raises:
            OSError: The kernel does not answer.
        """
        self._ask(kind, _REQUEST, query)
        try:
            return next((entry for answer, entry in self._answers() if answer == kind), None)
        except FileNotFoundError:
            return None

    def _ask(self, kind: int, flags: int, query: bytes) -> None:
        self._sequence += 1
        self._kernel.send(_HEADER.pack(_HEADER.size + len(query), kind, flags, self._sequence, 0) + query)

    def _answers(self) -> Iterator[tuple[int, bytes]]:
        """(type, entry) of each message of the next datagram; those to a question that was given up are left out."""
        answer = self._kernel.recv(_LARGEST)
        while answer:
            length, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            entry, answer = answer[_HEADER.size : length], answer[(length + 3) & ~3 :]  # NLMSG_ALIGN
            if sequence != self._sequence:
                continue
            if kind == _ERROR:
                number = -struct.unpack_from("=i", entry)[0]
                raise OSError(number, os.strerror(number))
            yield kind, entry


def attributes(entry: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of an entry, which come after the struct with which it begins: type and content (netlink(7))."""
    while len(entry) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(entry)
        yield kind, entry[_ATTRIBUTE.size : length]
        entry = entry[max(length + 3 & ~3, _ATTRIBUTE.size) :]
