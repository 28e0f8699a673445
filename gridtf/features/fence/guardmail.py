"""The words between the guards of a job (the package): datagrams that only those who know its key can make."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gridtf.host import network
from gridtf.host.sockets import Ends
from gridtf.run.rundir import Record
from gridtf.values import Value

LET, TAKE, ASK, HELLO, WELCOME = range(1, 6)
_WORD = struct.Struct("!BBHQ16s16sHH")  # kind, size of an address, sender, count, addresses, ports
_MARK = 32  # bytes of an HMAC with SHA-256
NOBODY: Ends = (bytes(4), 0, bytes(4), 0)


class Word(Value):
    """What a guard says to another one.

    Attributes:
        kind: LET or TAKE, let this connection in, or no longer; ASK, look for new connections; HELLO and WELCOME.
        sender: The place of its host in the plan.
        count: Grows with every word of a sender.
        ends: The connection; its client's end first.
    """

    kind: int
    sender: int
    count: int
    ends: Ends = NOBODY

    def sealed(self, key: bytes) -> bytes:
        """The word as a datagram, with a mark that only owners of the key can make."""
        source, port, target, target_port = self.ends
        word = _WORD.pack(self.kind, len(source), self.sender, self.count, source, target, port, target_port)
        return word + _mark(key, word)


def opened(data: bytes, key: bytes) -> Word | None:
    """Read a datagram. Pure.

    Args:
        data: What was received.
        key: The key of the attempt.

    Returns:
        The word; None if somebody without the key has made it.
    """
    word, mark = data[:-_MARK], data[-_MARK:]
    if len(word) != _WORD.size or not _same(_mark(key, word), mark):
        return None
    kind, size, sender, count, source, target, port, target_port = _WORD.unpack(word)
    return Word(kind, sender, count, (source[:size], port, target[:size], target_port))


def _mark(key: bytes, word: bytes) -> bytes:
    import hmac  # a guard needs it, the agent does not

    return hmac.digest(key, word, "sha256")


def _same(mark: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(mark, other)


class Peer(Value):
    """A host of the job, as the fence sees it.

    Attributes:
        addresses: Those that other hosts may see.
        door: The UDP port of its guard; 0 where it has none that can vouch for connections.
        ports: Of its tasks.
    """

    addresses: tuple[bytes, ...]
    door: int
    ports: tuple[int, ...]


def peers(doors: Mapping[str, Record]) -> dict[str, Peer]:
    """Read what the hosts have published. Pure.

    Args:
        doors: Host -> ``addresses``, ``door`` and ``ports``.
    """
    return {
        host: Peer(tuple(network.packed(text) for text in door["addresses"]), door["door"], tuple(door["ports"]))
        for host, door in doors.items()
    }


_MOST_ADDRESSES = 4  # of a host, on which its guard is sought
_MOST_WORDS = 64  # that are heard at once


class Mail:
    """Sends words to other guards, and takes theirs.

    Args:
        known: The hosts of the job.
        host: This host.
        key: The key of the attempt.
        udp: The socket of this host's guard; None: it has none.

    Attributes:
        peers: The hosts of the job.
        host: This host.
        udp: The socket.
        count: Of the last word; grows with every word.
    """

    def __init__(self, known: Mapping[str, Peer], host: str, key: bytes, udp: socket.socket | None) -> None:
        self.peers, self.host, self.udp = known, host, udp
        self._key = key
        self._place = list(known).index(host)
        self.count = 0
        self._heard: dict[int, int] = {}  # sender -> the count of its last word

    def neighbour(self) -> str:
        """The next host that has a guard with a door; empty if there is none."""
        names = list(self.peers)
        others = names[self._place + 1 :] + names[: self._place]
        return next((name for name in others if self.peers[name].door), "")

    def tell(self, name: str, kind: int, ends: Ends = NOBODY) -> None:
        """Say something to the guard of another host.

        Args:
            name: The host.
            kind: As Word.kind.
            ends: As Word.ends.
        """
        peer = self.peers[name]
        if not peer.door or name == self.host:
            return
        self.count += 1
        word = Word(kind, self._place, self.count, ends)
        for target in peer.addresses[:_MOST_ADDRESSES]:  # which of them arrive is not known; only the first one is new
            self._send(word, (self._written(target), peer.door))

    def welcome(self, sender: tuple[object, ...]) -> None:
        """Answer a word of the kind HELLO.

        Args:
            sender: The address that it came from.
        """
        self.count += 1
        self._send(Word(WELCOME, self._place, self.count), sender)

    def hear(self) -> Iterator[tuple[Word, tuple[object, ...]]]:
        """New words of other guards, each with the address that it came from."""
        assert self.udp is not None
        for _ in range(_MOST_WORDS):
            try:
                data, sender = self.udp.recvfrom(512)
            except OSError:  # no more, or one of ours did not reach its host
                return
            word = opened(data, self._key)
            if word is not None and is_new(word, self._heard):
                yield word, sender

    def _written(self, address: bytes) -> str:
        assert self.udp is not None
        text = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
        return f"::ffff:{text}" if len(address) == 4 and self.udp.family == socket.AF_INET6 else text

    def _send(self, word: Word, target: tuple[object, ...]) -> None:
        assert self.udp is not None
        with suppress(OSError):  # it is said again
            self.udp.sendto(word.sealed(self._key), target)


def is_new(word: Word, heard: dict[int, int]) -> bool:
    """Whether a word is newer than all others of its sender, and no old one that somebody sends again.

    Args:
        word: The word.
        heard: Sender -> the count of its newest word, which this call updates.
    """
    if word.count <= heard.get(word.sender, -1):
        return False
    heard[word.sender] = word.count
    return True
