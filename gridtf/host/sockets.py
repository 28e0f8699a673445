"""TCP ports of this host as the kernel lists them in /proc/net/tcp and tcp6 (proc_pid_net(5))."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"  # tcp_states.h


def listening(ports: Collection[int]) -> set[int]:
    """Find the ports on which a process of this host listens.

    Cheap on hosts with many connections as well: the kernel lists the listening sockets first, and only these are read.

    Args:
        ports: The ports to look for.

    Returns:
        Those of them on which a process listens.
    """
    found = (local for table in _TABLES for local, _, _ in takewhile(_listens, _rows(table)))
    return {port for port in found if port in ports}


def connected(ports: Collection[int]) -> set[int]:
    """Find the ports with a connection. The kernel lists most closed ones for another minute (TIME_WAIT).

    Args:
        ports: The ports to look for, on either side of a connection.

    Returns:
        Those of them that have a connection.
    """
    rows = (row for table in _TABLES for row in _rows(table))
    return {port for local, remote, _ in rows for port in (local, remote) if port in ports}


def parsed(lines: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """Parse such a table.

    Args:
        lines: A heading and one line per socket, with addresses and ports in hexadecimal::

            sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
             0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 …

    Yields:
        (local port, remote port, state).
    """
    for line in lines:
        _, local, remote, state, *_ = line.split(maxsplit=4)
        if state != "st":  # the heading
            yield int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), state


def _rows(table: Path) -> Iterator[tuple[int, int, str]]:
    try:
        with table.open(encoding="ascii") as lines:
            yield from parsed(lines)
    except OSError:  # a kernel without IPv6
        return


def _listens(row: tuple[int, int, str]) -> bool:
    return row[2] == _LISTEN
