"""Programs that decide in the kernel who gets through a gate, on packets made by hand; gates on real sockets."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from gridtf.host import gates, sockets
from gridtf.host.gates import Gate, Instruction, gate_program, source_filter
from gridtf.host.network import packed
from tests.support.topics import fast

A, B, C = (packed(address) for address in ("10.0.0.1", "10.0.0.2", "10.0.1.1"))
A6, B6, C6 = (packed(address) for address in ("fd00::1", "fd00::2", "fd00:0:0:1::1"))
LOOPBACK = packed("127.0.0.1")


def packet(source: bytes, target: bytes, port: int, *, options: int = 0) -> bytes:
    """The headers of a SYN; options: of IPv4, in words of 4 bytes."""
    ports = struct.pack("!HH", port, 2222)
    if len(source) == 4:
        return struct.pack("!B11x", 0x45 + options) + source + target + bytes(4 * options) + ports
    return bytes(8) + source + target + ports


def run(program: Sequence[Instruction], data: bytes) -> int:
    """What a program returns for a packet: classic BPF, as in Documentation/networking/filter.rst."""
    network, protocol = 0xFFF00000, 0xFFFFF000
    kinds = {0x20: 4, 0x28: 2, 0x48: 2}  # codes of loads -> bytes
    a = x = at = 0
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        if code == 0x20 and k == protocol:
            a = 0x0800 if data[0] >> 4 == 4 else 0x86DD
        elif code in kinds:
            begin = k - network + (x if code == 0x48 else 0)
            assert 0 <= begin <= len(data) - kinds[code]
            a = int.from_bytes(data[begin : begin + kinds[code]], "big")
        elif code == 0xB1:
            x = 4 * (data[k - network] & 0xF)
        elif code == 0x54:
            a &= k
        elif code == 0x15:
            at += if_true if a == k else if_false
        elif code == 0x05:
            at += k
        else:
            assert code == 0x06
            return k
        assert max(if_true, if_false) < 256


def test_a_gate_is_closed_to_everybody_at_first() -> None:
    for source, target in ((A, B), (A6, B6), (LOOPBACK, LOOPBACK)):
        assert run(gate_program(), packet(source, target, 40000)) == 0
        assert run(gates.EVERYBODY, packet(source, target, 40000)) == 1


def test_a_gate_lets_in_whoever_comes_from_a_known_host() -> None:
    program = gate_program([A, A6, B6])
    assert [run(program, packet(source, B, 1)) for source in (A, B, C, LOOPBACK)] == [1, 0, 0, 0]
    assert [run(program, packet(source, A6, 1)) for source in (A6, B6, C6)] == [1, 1, 0]


def test_a_gate_for_local_users_lets_in_all_of_the_loopback_network() -> None:
    program = gate_program([A], local=True)
    assert [run(program, packet(source, A, 1)) for source in (LOOPBACK, packed("127.9.9.9"), A, B)] == [1, 1, 1, 0]


def test_a_gate_lets_in_single_connections() -> None:
    program = gate_program([C], [(A, B, 40000), (A, B, 40001), (A6, B6, 40000)])
    assert run(program, packet(A, B, 40000)) == run(program, packet(A, B, 40001, options=3)) == 1
    assert run(program, packet(A6, B6, 40000)) == run(program, packet(C, B, 1)) == 1
    for other in (packet(A, B, 40002), packet(B, A, 40000), packet(A, A, 40000), packet(A6, B6, 40001)):
        assert run(program, other) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("probes", fast(1, 200, 2000))
def test_programs_of_many_hosts_and_connections_know_exactly_these(probes: int) -> None:
    chance = random.Random(1)
    hosts = {bytes([10, 0, *chance.randbytes(2)]) for _ in range(1000)}
    hosts |= {packed("fd00::")[:12] + chance.randbytes(4) for _ in range(600)}
    syns = {(chance.choice([A, B, C]), chance.choice([A, B]), chance.randrange(1 << 16)) for _ in range(300)}
    program = gate_program(hosts, syns)
    assert len(program) < 2500  # net.core.optmem_max of 20 KiB, as up to Linux 6.6
    for host in hosts:
        assert run(program, packet(host, B if len(host) == 4 else B6, 9)) == 1
    for _ in range(probes):
        syn = chance.choice([A, B, C]), chance.choice([A, B]), chance.randrange(1 << 16)
        assert run(program, packet(*syn)) == (syn in syns or syn[0] in hosts)
        host = bytes([10, 0, *chance.randbytes(2)])
        assert run(program, packet(host, B, 1)) == (host in hosts)


def test_a_door_hears_its_peers_only() -> None:
    program = source_filter([(A, 700), (A6, 700), (B, 701)])
    heard = [run(program, packet(source, C, port)) != 0 for source, port in ((A, 700), (A, 701), (B, 701), (C, 700))]
    assert heard == [True, False, True, False]
    assert run(program, packet(A6, C6, 700)) == 0xFFFFFFFF
    assert run(program, packet(B6, C6, 700)) == 0


# --- real sockets


@pytest.fixture
def gate() -> Iterator[tuple[Gate, int]]:
    """A gate and its port, on which a server listens behind it."""
    with sockets.bound() as held, socket.socket(held.family) as server:
        made, port = Gate(held), held.getsockname()[1]
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("", port))
        server.listen()
        yield made, port


def gets_in(port: int, source: str = "127.0.0.1") -> bool:
    with suppress(TimeoutError), socket.create_connection((source, port), 0.2, (source, 0)):
        return True
    return False


@pytest.mark.thorough
def test_a_gate_stands_before_a_server_that_listens_on_its_port(gate: tuple[Gate, int]) -> None:
    made, port = gate
    assert not gets_in(port)
    assert made.drops() == 1
    made.admit(gate_program([packed("127.0.0.2")]))
    assert gets_in(port, "127.0.0.2")
    assert not gets_in(port)
    made.admit(gates.EVERYBODY)
    assert gets_in(port)
    made.admit(gate_program())
    assert not gets_in(port)


def test_a_gate_is_no_server_and_has_no_connection() -> None:
    with sockets.bound() as held:
        port = held.getsockname()[1]
        made = Gate(held)
        assert sockets.listening({port}) == {port}
        assert sockets.listening({port}, {os.fstat(made.fileno()).st_ino}) == set()
        assert sockets.connected({port}) == set()


def test_a_connection_that_nobody_answers_is_seen_with_its_user(gate: tuple[Gate, int]) -> None:
    _, port = gate
    with sockets.Connections() as connections, socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        ends = (LOOPBACK, client.getsockname()[1], LOOPBACK, port)
        due, inode = connections.beginning(os.getuid())[ends]
        assert 0 < due <= 1.1
        assert inode == os.fstat(client.fileno()).st_ino
        assert ends not in connections.beginning(os.getuid() + 1)
        assert connections.waits(ends)
        assert connections.exists(ends)
        client.close()
        assert connections.waits(ends) is None
        assert not connections.exists(ends)
        assert not connections.exists((LOOPBACK, port, LOOPBACK, ends[1]))  # the server's socket is not a connection
