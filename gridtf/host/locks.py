"""Locks of this host that are known by name and end with the last process that holds them: abstract Unix sockets.

Unlike a file, such a name cannot be removed, replaced, closed to others or made a link: the kernel gives it to one
holder at a time, and takes it back when the last process that has inherited it is gone (unix(7)). It is the same for
all users, and for all processes that see the same network (network_namespaces(7)): mostly on the whole host.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gridtf.errors import GridtfError
from gridtf.files import user_name
from gridtf.text import plain

_LONGEST = 107  # bytes of a socket's name behind the NUL
_LONGEST_LOCK = 40  # leaves room for a note behind it
_NAMES = Path("/proc/net/unix")


def hold(name: str, note: str) -> tuple[int, ...] | None:
    """Descriptors that hold a lock as long as any process has them; None when it is held already.

    note: what others are told of the holder. Raises GridtfError where there are no such sockets.
    """
    lock = _bind(_address(name))
    if lock is None:
        return None
    beside = _bind(_note_address(name, plain(note)))  # a courtesy: who is known without it holds the lock all the same
    return (lock,) if beside is None else (lock, beside)


def holder(name: str) -> str:
    """Who holds a lock: another user as the kernel knows him, and what the holder says of itself."""
    address = _address(name)
    peer = _peer(address)
    if peer is None:
        return "held by another process"
    pid, uid = peer
    # anybody can make such a name, but nobody else can be its peer
    own = next((found for found in _notes(address) if _peer(found) == peer), b"")
    note = plain(own[len(address) + 1 :].decode(errors="replace"))
    if uid == os.geteuid():
        return note or f"process {pid}"
    return f"user {user_name(uid)}, process {pid}" + (f", which calls itself {note}" if note else "")


def _address(name: str) -> bytes:
    """The name itself, unless it is too long or holds what would be taken for a note."""
    text = os.fsencode(name)
    if len(text) <= _LONGEST_LOCK and name.isprintable() and " " not in name:
        return text
    import hashlib

    return f"gridtf-{hashlib.sha256(text).hexdigest()[:32]}".encode()


def _note_address(name: str, note: str) -> bytes:
    return (_address(name) + b" " + note.encode(errors="replace"))[:_LONGEST]


def _bind(address: bytes) -> int | None:
    """A socket of this name, as a descriptor; None when there is one already."""
    import socket

    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise GridtfError(f"cannot make a lock on host {os.uname().nodename}: {error.strerror}") from None
    try:
        made.bind(b"\0" + address)
        made.listen()  # so that others can ask who it is
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise GridtfError(f"cannot make a lock on host {os.uname().nodename}: {error.strerror}") from None
    return made.detach()


def _peer(address: bytes) -> tuple[int, int] | None:
    """Process and user id of who has made a socket; None when it is gone, or does not tell."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(b"\0" + address)
            pid, uid, _ = struct.unpack("iII", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
    return pid, uid


def _notes(address: bytes) -> list[bytes]:
    """The names of all sockets that could be the note of this one; the kernel shows the NUL before them as an @."""
    try:
        lines = _NAMES.read_bytes().splitlines()
    except OSError:
        return []
    begins = b" @" + address + b" "
    return [line[line.index(begins) + 2 :] for line in lines if begins in line]
