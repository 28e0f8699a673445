"""The process that mpirun or srun starts for a rank, and the remote shell of mpirun: both talk to this host's agent.

It runs without site and imports nothing of gridtf, and of socket and signal their halves in C alone, in half the time:
there are as many as ranks, and all start at once.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import array
import os
import sys

try:
    from _blake2 import blake2b
except ImportError:  # a Python that has all such functions of OpenSSL
    from hashlib import blake2b

# The variable with the key of the sockets of an attempt: arguments of processes, and names of sockets, all users see.
KEY = "GRIDTF_MPI_KEY"


def address(key: str) -> str:
    """The abstract socket of the agent of this host. The names of other hosts, where it may not be open yet, differ."""
    return f"\0gridtf-{blake2b(os.uname().nodename.encode(), key=key.encode(), digest_size=16).hexdigest()}"


def main(what: str, items: list[bytes]) -> int:
    """Tell the agent something, and wait for how it has ended.

    Args:
        what: ``rank``, with the environment, or ``remote``, with a host and a command for it.
        items: What is told.

    Returns:
        The exit code that the agent says.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # sent to all processes of a job, for a checkpoint
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(address(os.environ.get(KEY, "")))
    except OSError as error:
        sys.exit(f"gridtf: no agent of this attempt is on host {os.uname().nodename}: {error.strerror}")
    _, uid, _ = array.array("i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid():
        sys.exit("gridtf: the socket of the agent belongs to another user")
    # MPICH's and Slurm's servers of PMI talk by a descriptor, which the task needs instead of this process
    given = os.environ.get("PMI_FD", "") if what == "rank" else ""
    descriptors = [int(given)] if given.isdigit() else []
    told = b"\0".join([what.encode(), *items])
    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    link.sendmsg([len(told).to_bytes(4, "big")], [passed] if descriptors else [])
    link.sendall(told)
    for descriptor in descriptors:
        os.close(descriptor)
    return int(link.recv(8) or b"1")


if __name__ == "__main__":
    _, what, *words = sys.argv
    if what == "rank":
        with open("/proc/self/environ", "rb") as environ:  # noqa: PTH123 - Python itself may have set LC_CTYPE
            items = environ.read().split(b"\0")[:-1]
    else:  # as of ssh: options, the host, and words that make a command
        while words[:1] and words[0].startswith("-"):
            del words[0]
        items = [os.fsencode(words[0]), os.fsencode(" ".join(words[1:]))]
    os._exit(main(what, items) & 255)
