"""Named locks of this host that end with the last process that holds them: abstract Unix sockets.

Unlike a lock file, such a name cannot be removed, replaced, made unreadable or made a link. The kernel assigns it to
one holder at a time and frees it when the last process that inherited it has ended (unix(7)). All users share the
names, and all processes of a network namespace (network_namespaces(7)), which is usually the whole host.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gridtf.errors import GridtfError
from gridtf.files import user_name
from gridtf.text import plain

_LONGEST = 107  # bytes of a socket's name after the NUL
_LONGEST_LOCK = 40  # leaves room for a note after it
_NAMES = Path("/proc/net/unix")
_LISTENS = b"00010000"  # its flags of a socket that does: __SO_ACCEPTCON
_LOOKS = 4096  # connections that nobody accepts: net.core.somaxconn since Linux 5.4
_known: dict[bytes, tuple[bytes, str]] = {}  # lock -> the inode of its socket, and its holder


def hold(name: str, note: str) -> tuple[int, ...] | None:
    """Take a lock.

    Args:
        name: The lock's name.
        note: A line about the holder that other processes can read.

    Returns:
        File descriptors; the lock is held while any process has them open. None when another process holds it.

    Raises:
        GridtfError: When no socket can be made.
    """
    lock = _bind(_address(name))
    if lock is None:
        return None
    note_socket = _bind(_note_address(name, plain(note)))
    return (lock,) if note_socket is None else (lock, note_socket)  # the lock holds without a note as well


def holder(name: str) -> str:
    """Describe the holder of a lock, in one line: its user as the kernel reports it, and its note."""
    address = _address(name)
    inode, told = _known.get(address, (b"", ""))
    if inode and inode == _inode(address):  # a job looks each second, and each connection stays in the holder's queue
        return told
    inode, peer = _inode(address), _peer(address)
    if peer is None:
        return "held by another process"
    pid, uid = peer
    # any process can bind the name of a note, but only the holder's has the lock's peer
    note_address = next((candidate for candidate in _notes(address) if _peer(candidate) == peer), b"")
    note = plain(note_address[len(address) + 1 :].decode(errors="replace"))
    if uid == os.geteuid():
        told = note or f"process {pid}"
    else:
        told = f"user {user_name(uid)}, process {pid}" + (f", which calls itself {note}" if note else "")
    if note:  # it may come later than the lock
        _known[address] = inode, told
    return told


def _address(name: str) -> bytes:
    """The name itself; a hash of it when it is too long or could be mistaken for a name with a note."""
    text = os.fsencode(name)
    if len(text) <= _LONGEST_LOCK and name.isprintable() and " " not in name:
        return text
    import hashlib

    return f"gridtf-{hashlib.sha256(text).hexdigest()[:32]}".encode()


def _note_address(name: str, note: str) -> bytes:
    return (_address(name) + b" " + note.encode(errors="replace"))[:_LONGEST]


def _bind(address: bytes) -> int | None:
    """Bind a socket to this name and detach it; None when another socket has the name."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
            bound.bind(b"\0" + address)
            bound.listen(_LOOKS)  # so that other processes can connect and see the peer
            return bound.detach()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise GridtfError(f"cannot make a lock on host {os.uname().nodename}: {error.strerror}") from None


def _peer(address: bytes) -> tuple[int, int] | None:
    """Process id and user id of the process that listens on a socket; None when there is none."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(b"\0" + address)
            pid, uid, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
    return pid, uid


def _inode(address: bytes) -> bytes:
    """The inode of the socket that listens at a name; empty where none is seen."""
    rows = (line.split(None, 7) for line in _listed())
    return next((row[6] for row in rows if row[7:] == [b"@" + address] and row[3] == _LISTENS), b"")


def _notes(address: bytes) -> list[bytes]:
    """Names of all sockets that may be notes of this one."""
    begins = b" @" + address + b" "
    return [line[line.index(begins) + 2 :] for line in _listed() if begins in line]


def _listed() -> list[bytes]:
    """Lines of /proc/net/unix, which shows the leading NUL of a name as an @."""
    try:
        return _NAMES.read_bytes().splitlines()
    except OSError:
        return []
