"""A shared folder that comes over the network: what a host does in it goes through the host's link to the hub.

    program on a host -> kernel -> /dev/fuse -> relay ==TCP==> relay -> bindfs -> the real folder
                                   the host's link ^     the hub's end

bindfs of Debian serves it, on the hub: instead of /dev/fuse it reads a socket, on which the requests of a host's kernel
arrive (<linux/fuse.h>; each begins with its length). While the link is down, calls wait, and go on when it is back, as
with NFS mounted `hard`; a process that waits can be killed. The relay of a host can refuse requests, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import boot, kernel
from .view import DISK, REAL, SHARED

PORT = 2049  # on the hub
WELL, HANG, FULL, READ_ONLY, UNMOUNTED = STATES = ("well", "hang", "full", "read-only", "unmounted")
STATE_FILE = "shared"  # on a host's disk: the state of the folder there
FOLDER = f"{REAL}/shared"  # the real one on the hub; on a host, where it is mounted before it is shown as SHARED

_CACHES = "attr_timeout=1,entry_timeout=1,negative_timeout=1"  # seconds
_SIZE = 1 << 21  # bytes: more than a request or an answer has
_HEAD = struct.Struct("IIQQIIII")  # of a request: length, opcode, number, inode, user, group, thread, …
_ANSWER = struct.Struct("IiQ")  # length, -errno, number
_OPEN, _FLUSH = 14, 25
_GROWS = {6, 8, 9, 13, 16, 35, 43}  # symlink, mknod, mkdir, link, write, create, fallocate
_CHANGES = {*_GROWS, 4, 10, 11, 12, 45}  # setattr, unlink, rmdir, rename, renameat2
_UNANSWERED = {2, 36, 42}  # forget, interrupt, forget several

# bindfs asks this program to mount; libfuse expects a descriptor of /dev/fuse from it.
_FUSERMOUNT = "import os, socket; s = socket.socket(fileno=int(os.environ['_FUSE_COMMFD']))"
_FUSERMOUNT += "; socket.send_fds(s, [b'-'], [int(os.environ['REQUESTS'])])"


def hub(addresses: Mapping[str, str]) -> str:
    """The hub's address among those of the hosts."""
    return next(iter(addresses.values())).rpartition(".")[0] + ".254"


def serve(address: str) -> None:
    """Serve the folder on an address from now on, to whoever connects. For the first process of the hub."""
    Path(REAL).chmod(0o700)
    program = Path("/run/fusermount")
    program.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-S', '-c', _FUSERMOUNT])}\n")
    program.chmod(0o755)
    for name in ("fusermount", "fusermount3"):
        if Path("/bin", name).exists():
            descriptor = os.open(program, os.O_PATH | os.O_CLOEXEC)
            kernel.bind(descriptor, Path("/bin", name).resolve())
            os.close(descriptor)
    Path("/run/empty").mkdir()
    listener = socket.create_server((address, PORT))

    def answer() -> None:
        handlers: dict[str, int] = {}
        while True:
            connection, (host, _) = listener.accept()
            if host in handlers:  # it had a power cut
                os.kill(handlers[host], signal.SIGKILL)
                os.waitpid(handlers[host], 0)
            handlers[host] = os.fork()
            if handlers[host] == 0:
                listener.close()
                _answer(connection)
            connection.close()

    boot.function("remote", answer)
    listener.close()


def mount(address: str) -> None:
    """Mount the folder that the hub serves on this address. For the first process of a host."""
    connection = socket.create_connection((address, PORT), 20)
    _patient(connection)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    Path(REAL).mkdir(mode=0o700)
    Path(FOLDER).mkdir()
    Path(SHARED).mkdir()
    access = "rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    kernel.mount("hub:/shared", FOLDER, "fuse", f"fd={device},{access}")
    boot.function("remote", lambda: Relay(device, connection, Path(DISK)).run())
    os.close(device)
    connection.close()
    _show()


def state(disk: Path) -> str:
    """The state of the shared folder on a host, as ordered. disk: the host's."""
    try:
        return (disk / STATE_FILE).read_text()
    except FileNotFoundError:
        return WELL


def order(disk: Path, wanted: str) -> None:
    """Order a state of the shared folder on a host, whose relay sees to it."""
    new = disk / f"{STATE_FILE}.new"
    new.write_text(wanted)
    new.replace(disk / STATE_FILE)


def mounted(pid: int) -> bool:
    """Whether the folder is mounted in the mount namespace of a process."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return any(line.split()[4] == SHARED for line in lines)


def refusal(opcode: int, flags: int, state: str) -> int:
    """The error that a request gets at once in this state of the folder; 0: it goes to the hub.

    Args:
        opcode: of <linux/fuse.h>.
        flags: of open(2), if it is an open.
        state: One of STATES.
    """
    if opcode == _FLUSH:  # at the end of a process, which then could not be killed; writes are not delayed here
        return errno.ENOSYS
    if state == FULL and opcode in _GROWS:
        return errno.ENOSPC
    if state == READ_ONLY and (opcode in _CHANGES or (opcode == _OPEN and flags & os.O_ACCMODE != os.O_RDONLY)):
        return errno.EROFS
    return 0


class Relay:
    """A host's end.

    Args:
        device: A descriptor of /dev/fuse that is mounted.
        connection: To the hub.
        disk: The host's disk, with the ordered state of the folder.
    """

    def __init__(self, device: int, connection: socket.socket, disk: Path) -> None:
        self._device = device
        self._connection = connection
        self._disk = disk
        self._waiting: dict[int, int] = {}  # number of a request at the hub -> the thread that waits

    def run(self) -> None:
        """Pass on requests and answers until the connection or the device ends."""
        _all_end_with_one(self._requests, self._answers, self._look)

    def _requests(self) -> None:
        buffer = bytearray(_SIZE)
        while True:
            try:
                length = os.readv(self._device, [buffer])
            except FileNotFoundError:  # whoever asked was killed meanwhile
                continue
            _, opcode, number, _, _, _, thread, *_ = _HEAD.unpack_from(buffer)
            if opcode not in _UNANSWERED:
                self._waiting[number] = thread
            while (now := state(self._disk)) == HANG:
                time.sleep(0.05)
            (flags,) = struct.unpack_from("I", buffer, _HEAD.size)
            if error := refusal(opcode, flags, now):
                self._refuse(number, error)
            elif opcode in _UNANSWERED or number in self._waiting:
                self._connection.sendall(memoryview(buffer)[:length])

    def _answers(self) -> None:
        while True:
            answer = _receive(self._connection)
            _, _, number = _ANSWER.unpack_from(answer)
            self._waiting.pop(number, None)
            self._answer(answer)

    def _look(self) -> None:
        """Let threads go that have been killed while they wait, as NFS does; mount and unmount as ordered."""
        shown = True
        while True:
            time.sleep(0.1)
            for number, thread in list(self._waiting.items()):
                if _kill_is_pending(thread):
                    self._refuse(number, errno.EINTR)
            wanted = state(self._disk) != UNMOUNTED
            if wanted != shown:
                _show() if wanted else kernel.unmount(SHARED)
                shown = wanted

    def _refuse(self, number: int, error: int) -> None:
        if self._waiting.pop(number, None) is not None:  # otherwise the other thread has answered
            self._answer(_ANSWER.pack(_ANSWER.size, -error, number))

    def _answer(self, answer: bytes | bytearray) -> None:
        with contextlib.suppress(FileNotFoundError):  # nobody waits for it any more
            os.write(self._device, answer)


def _show() -> None:
    """Have the mounted folder appear where programs look for it."""
    folder = os.open(FOLDER, os.O_PATH | os.O_CLOEXEC)
    kernel.bind(folder, SHARED)
    os.close(folder)


def _answer(connection: socket.socket) -> None:
    """The hub's end, for one host. Never returns."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, 32, 2 * _SIZE)  # SO_SNDBUFFORCE
    bindfs = ["bindfs", "-f", "-o", f"auto_unmount,{_CACHES}", FOLDER, "/run/empty"]
    environ = {**os.environ, "REQUESTS": str(theirs.fileno())}
    subprocess.Popen(bindfs, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environ)
    theirs.close()
    _patient(connection)

    def requests() -> None:
        while True:
            ours.send(_receive(connection))

    def answers() -> None:
        buffer = bytearray(_SIZE)
        while length := ours.recv_into(buffer):
            connection.sendall(memoryview(buffer)[:length])

    _all_end_with_one(requests, answers)


def _all_end_with_one(*loops: Callable[[], None]) -> None:
    """Run functions in threads, until one of them ends or fails; then this process ends."""
    ended = threading.Event()

    def run(loop: Callable[[], None]) -> None:
        try:
            loop()
        finally:
            ended.set()

    for loop in loops:
        threading.Thread(target=run, args=(loop,), daemon=True).start()
    ended.wait()
    os._exit(1)


def _receive(connection: socket.socket) -> bytearray:
    """A request or an answer, which begins with its length. EOFError at the end of the connection."""
    message = bytearray(4)
    _fill(connection, memoryview(message))
    message.extend(bytes(struct.unpack("I", message)[0] - 4))
    _fill(connection, memoryview(message)[4:])
    return message


def _fill(connection: socket.socket, place: memoryview) -> None:
    while place:
        length = connection.recv_into(place)
        if not length:
            raise EOFError
        place = place[length:]


def _patient(connection: socket.socket) -> None:
    """Keep a connection while the link is down, for an hour, and use it within a second when the link is back."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3_600_000)
    with contextlib.suppress(OSError):  # Linux 6.15; earlier ones take as long as the link was down
        connection.setsockopt(socket.IPPROTO_TCP, 44, 1000)  # TCP_RTO_MAX_MS


def _kill_is_pending(thread: int) -> bool:
    """Whether a thread has been sent SIGKILL (proc(5): SigPnd)."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
        pending = next(line for line in lines if line.startswith("SigPnd:"))
        return bool(int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)
    return False
