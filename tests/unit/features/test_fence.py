"""Which fence a job gets, what is said where it is weaker, and the words of the guards."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Collection, Iterable
from typing import NoReturn

import pytest

from gridtf.bootstrap.plan.rendezvous import PortHolder
from gridtf.features.fence import Fence, note, wanted
from gridtf.features.fence.guard import HOSTS, OFF, USERS, holds_until
from gridtf.features.fence.guardmail import ASK, LET, Peer, Word, is_new, opened, peers
from gridtf.host import gates, network, processes, sockets
from gridtf.host.gates import Gate
from gridtf.host.network import packed
from gridtf.host.sockets import Ends
from gridtf.schedulers import get
from tests.support.plans import job, resolved
from tests.support.system import FakeSystem

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
ENDS = packed("10.0.0.1"), 40000, packed("10.0.0.2"), 2222
ENDS_6 = packed("fd00::1"), 40000, packed("fd00::2"), 2222


@pytest.mark.parametrize(
    ("asked", "exclusive", "mode"),
    [
        ("auto", True, HOSTS),
        ("auto", False, USERS),
        ("users", True, USERS),
        ("hosts", False, HOSTS),
        ("off", True, OFF),
    ],
)
def test_auto_trusts_the_hosts_that_the_job_has_for_itself(asked: str, exclusive: bool, mode: str) -> None:
    assert wanted(asked, exclusive=exclusive) == mode


@pytest.mark.parametrize(
    ("scheduler", "native", "exclusive"),
    [
        ("slurm", ["--exclusive"], True),
        ("slurm", ["--qos=high --exclusive=user"], True),
        ("slurm", ["--exclusive=mcs"], False),
        ("slurm", ["--qos=exclusive"], False),
        ("slurm", [], False),
        ("sge", ["-l exclusive=true"], True),
        ("sge", ["-l gpu=1,excl=1"], True),
        ("sge", ["-l exclusive=false"], False),
        ("sge", ["-soft -l exclusive=true"], False),
        ("local", [], False),
    ],
)
def test_a_job_has_its_hosts_for_itself_where_it_has_requested_that(
    scheduler: str, native: list[str], exclusive: bool
) -> None:
    found = get(scheduler)
    request = resolved(job(), scheduler).replace(native=found.login.parse_native(native))
    assert found.injob.is_exclusive(request) is exclusive


def test_note_names_the_hosts_whose_ports_are_open_to_more_users_than_the_job_wants() -> None:
    assert note({"n1": {"fence": "users"}, "n2": {"fence": "hosts"}, "n3": {"fence": "off"}, "n4": {}}) == ""
    old, unseen = {"fence": "off", "unfenced": "too old"}, {"fence": "hosts", "unfenced": "not seen"}
    weak = {"n1": old, "n2": old, "n3": unseen}
    assert note(weak) == (
        "ports are open to other users (too old): n1, n2; "
        "ports are open to other users of the job's hosts (not seen): n3"
    )


@pytest.mark.parametrize("ends", [ENDS, ENDS_6])
def test_a_word_is_read_by_owners_of_the_key_alone(ends: Ends) -> None:
    word = Word(LET, 3, 7, ends)
    data = word.sealed(KEY)
    assert opened(data, KEY) == word
    assert opened(data, OTHER_KEY) is None
    for position in range(len(data)):
        forged = bytearray(data)
        forged[position] ^= 1
        assert opened(bytes(forged), KEY) is None
    for rubbish in (b"", data[:-1], data + b"\0", data[-32:], bytes(500)):
        assert opened(rubbish, KEY) is None


def test_a_word_that_somebody_sends_again_is_old() -> None:
    heard: dict[int, int] = {}
    assert is_new(Word(ASK, 1, 5), heard)
    assert not is_new(Word(ASK, 1, 5), heard)
    assert not is_new(Word(LET, 1, 4), heard)
    assert is_new(Word(ASK, 2, 1), heard)
    assert is_new(Word(ASK, 1, 6), heard)


@pytest.mark.parametrize("late", [0.0, 0.03, 0.25, 2.0])  # a timer of Linux is late by an eighth of its time
def test_a_word_holds_until_the_syn_is_sent_however_late_that_is(late: float) -> None:
    until, step = 0.0, 0.002
    for now in (step * count for count in range(round((0.1 + late) / step))):
        until = holds_until(until, max(0.0, 0.1 - now), now, 0.1)
        assert now < until
    sent = 0.1 + late
    assert sent < holds_until(until, 1.0, sent, 0.1) < sent + 0.1  # it was dropped, as nobody listens
    assert holds_until(until, None, sent, 0.1) < sent  # it has come in


def test_peers_have_the_addresses_that_their_hosts_have_published() -> None:
    doors = {"n1": {"door": 700, "addresses": ["10.0.0.1", "fd00::1"], "ports": [1, 2]}}
    assert peers(doors) == {"n1": Peer((packed("10.0.0.1"), packed("fd00::1")), 700, (1, 2))}


# --- where the kernel does not have what it takes


def refuse(*_: object) -> NoReturn:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_programs_for_sockets_there_is_no_fence_and_other_hosts_know_the_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "attach", refuse)
    fence = Fence(USERS, KEY, FakeSystem())
    assert (fence.mode, fence.why) == (OFF, "Operation not permitted")
    assert fence.record()["door"] == 0
    assert fence.record()["addresses"] == network.all_addresses()


def test_where_connections_cannot_be_seen_the_hosts_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.Connections, "beginning", refuse)
    fence = Fence(USERS, KEY, FakeSystem())
    assert (fence.mode, fence.why) == (HOSTS, "connections cannot be seen: Operation not permitted")
    assert fence.record()["door"] == 0


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("addresses", "state"), [(["10.0.0.9"], (HOSTS, "")), ([], (OFF, "addresses are not known of n2"))]
)
def test_a_gate_opens_to_friends_or_to_all_where_they_cannot_be_known(
    addresses: list[str], state: tuple[str, str]
) -> None:
    with PortHolder() as holder:
        port = holder.reserve()
        fence = Fence(HOSTS, KEY, FakeSystem())
        fence.close(holder.held([port]))
        with socket.socket(holder.held([port])[0].family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", port))
            server.listen()
            assert not connects(port)
            doors = {"n1": {**fence.record(), "ports": [port]}, "n2": {"door": 0, "addresses": addresses, "ports": []}}
            fence.admit(doors, "n1")
            assert (fence.mode, fence.why) == state
            assert connects(port)


def test_a_gate_that_cannot_be_made_does_not_keep_members_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with PortHolder() as holder:
        port = holder.reserve()
        fence = Fence(HOSTS, KEY, FakeSystem())
        monkeypatch.setattr(Gate, "drops", refuse)
        held = holder.held([port])
        fence.close(held)
        assert (fence.mode, fence.why) == (OFF, "Operation not permitted")
        with socket.socket(held[0].family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", port))
            server.listen()
            assert connects(port)


@pytest.mark.thorough
@pytest.mark.parametrize("lasts", [0.0, 0.2])
def test_a_member_gets_in_however_long_it_takes_to_find_its_socket(
    lasts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host with many processes for few CPUs: longer than the word holds that is given just before a SYN."""
    borrow = processes.borrow_sockets

    def slow(inodes: Collection[int], pids: Iterable[int]) -> dict[int, int]:
        time.sleep(lasts)
        return borrow(inodes, pids)

    monkeypatch.setattr(processes, "borrow_sockets", slow)
    with PortHolder() as holder:
        port = holder.reserve()
        fence = Fence(USERS, KEY, FakeSystem())
        assert fence.mode == USERS
        fence.close(holder.held([port]))
        guard = fence.admit({"n1": {**fence.record(), "ports": [port]}}, "n1")
        assert guard is not None
        with socket.socket(holder.held([port])[0].family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", port))
            server.listen()
            agent, end = socket.socketpair()
            thread = threading.Thread(target=guard.guard, args=[end])
            thread.start()
            try:
                socket.create_connection(("127.0.0.1", port), 60).close()
            finally:
                agent.close()
                thread.join()
                end.close()
                fence.leave()
