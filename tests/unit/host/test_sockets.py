"""Ports in /proc/net/tcp: which are listened on, and which have or had a connection."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest

from gridtf.host import sockets

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 0000 100 0 0 10 0
   1: 0100007F:08AE 0100007F:E5F4 06 00000000:00000000 03:0000176F 00000000     0        0 0 3 0000000000000000
"""
TABLE_6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr … inode
   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000     0        0 1136 1 0000 100 0 0 10 0
"""


def test_parsed_yields_ports_state_and_inode_of_both_tables() -> None:
    assert list(sockets.parsed(TABLE.splitlines())) == [(2222, 0, 10, 48211), (2222, 58868, 6, 0)]
    assert list(sockets.parsed(TABLE_6.splitlines())) == [(8080, 0, 10, 1136)]


@pytest.mark.parametrize("netlink", [True, False])
def test_a_port_is_listened_on_once_a_socket_listens_not_while_one_holds_it(
    netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not netlink:
        monkeypatch.setattr(sockets, "_SOCK_DIAG_BY_FAMILY", 999)  # which the kernel refuses
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family) as holder, socket.socket(family) as server:
            for each in (holder, server):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("", 0))
            port = holder.getsockname()[1]
            assert sockets.listening({port}) == set()
            server.bind(("", port))
            server.listen()
            assert sockets.listening({port}) == {port}
            assert sockets.listening({1}) == set()


LISTENS = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
held = socket.socket()
held.bind(("127.0.0.1", 0))  # it does not listen
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_each_process_has_the_ports_on_which_it_and_its_descendants_listen() -> None:
    by_shell = ["bash", "-c", '"$0" -c "$1"; exit $?', sys.executable, LISTENS]
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            return stack.enter_context(process)  # at whose end its stdin is closed

        def port(process: subprocess.Popen[str]) -> int:
            assert process.stdout is not None
            return int(process.stdout.readline())

        alone, shell, cat = start(sys.executable, "-c", LISTENS), start(*by_shell), start("cat")
        expected = {alone.pid: [port(alone)], shell.pid: [port(shell)], cat.pid: []}
        assert sockets.ports_of([*expected], 8) == expected
        assert sockets.ports_of([shell.pid], 1) == {shell.pid: []}  # that of its child is none of its own
        assert sockets.ports_of([], 8) == {}


def test_a_connection_is_seen_at_the_port_of_its_server_also_after_both_have_closed_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with sockets.bound() as client:  # or its port may be one at which a server was connected a moment ago
            client.connect(("::ffff:127.0.0.1" if client.family == socket.AF_INET6 else "127.0.0.1", port))
            accepted, _ = server.accept()
            other = client.getsockname()[1]
            assert sockets.connected({port, other, 1}) == {port}
            assert sockets.connects(os.getpid(), port)
            assert not sockets.connects(os.getpid(), 1)
            assert not sockets.connects(os.getppid(), port)
        accepted.close()
        assert sockets.connected({port, other}) == {port}
    assert sockets.listening({port}) == set()
    assert sockets.connected({port}) == {port}


def test_a_process_only_listens_until_somebody_connects() -> None:
    assert not sockets.only_listens(os.getpid() + 2**22)  # no process
    script = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0]:
        print("connected", flush=True)
        sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert sockets.only_listens(process.pid)
        with socket.create_connection(("127.0.0.1", port)):
            assert process.stdout.readline() == "connected\n"
            assert not sockets.only_listens(process.pid)
            process.stdin.close()


def test_the_time_with_data_to_send_is_counted_but_not_that_in_which_the_other_end_has_no_room() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted, sockets.Connections() as connections:
            (here, port), (there, other) = client.getsockname(), server.getsockname()
            ends = socket.inet_aton(here), port, socket.inet_aton(there), other
            before = connections.sending(os.getuid())
            assert ends in before
            assert connections.sending(os.getuid() + 1).keys().isdisjoint(before)
            assert ends not in connections.sending(os.getuid(), sockets.held(os.getpid()))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # nobody reads
                while True:
                    client.send(bytes(1 << 16))
            time.sleep(0.3)
            busy, waiting = connections.sending(os.getuid())[ends]
            assert busy - before[ends][0] < 200_000
            assert waiting > 1 << 14
