"""The interfaces of this host, and whether a name stands for an address of this host."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from gridtf.errors import RendezvousError
from gridtf.host import network
from gridtf.host.network import Interface, address_of, answers, interfaces, own_addresses

ETH0 = Interface("eth0", True, "10.1.0.11", None)
IB0 = Interface("ib0", True, None, "fd00::2")
LO = Interface("lo", True, "127.0.0.1", None)
DOWN = Interface("ib1", False, "10.1.1.11", None)
BARE = Interface("ib2", True, None, None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with these interfaces."""
    known = {found.name: found for found in (LO, BARE, ETH0, IB0, DOWN)}
    monkeypatch.setattr(network, "_look", known.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(known, start=1)))


def resolves(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name stands for these IPv4 addresses."""
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)


def test_loopback_interface_of_this_host_has_its_address() -> None:
    assert address_of("lo", "n1") == "127.0.0.1"
    assert "lo (127.0.0.1)" in map(str, interfaces())


@pytest.mark.usefixtures("few")
def test_interface_without_ipv4_address_has_its_global_ipv6_address() -> None:
    assert address_of("eth0", "n1") == "10.1.0.11"
    assert address_of("ib0", "n1") == "fd00::2"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ib7", "host n1 has no network interface ib7"),
        ("ib1", "the network interface ib1 of host n1 is down"),
        ("ib2", "the network interface ib2 of host n1 has neither an IPv4 address nor a global IPv6 address"),
    ],
)
def test_interface_that_cannot_be_used_is_an_error_with_those_that_the_host_has(name: str, what: str) -> None:
    with pytest.raises(RendezvousError) as caught:
        address_of(name, "n1")
    assert caught.value.what == what
    known = "lo (127.0.0.1), ib2 (no address), eth0 (10.1.0.11), ib0 (fd00::2), ib1 (down)"
    assert caught.value.why == f"host n1 has {known}"
    assert caught.value.hint == 'choose one that is up on every host of the job, such as interface = "eth0"'


def test_global_ipv6_addresses_are_read_from_the_kernel_s_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (  # of Linux 6.18; the second is tentative, the last link-local
        "00000000000000000000000000000001 01 80 10 80       lo",
        "fd000000000000000000000000000001 02 40 00 40     eth0",
        "fd000000000000000000000000000002 02 40 00 80     eth0",
        "fe8000000000000000fc00fffe000001 02 40 20 80     eth0",
    )
    (tmp_path / "if_inet6").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(network, "_IF_INET6", tmp_path / "if_inet6")
    assert list(network._ipv6()) == [("eth0", "fd00::2")]
    monkeypatch.setattr(network, "_IF_INET6", tmp_path / "none")
    assert list(network._ipv6()) == []


def test_own_addresses_are_those_that_a_socket_of_this_host_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, "127.0.0.2", "203.0.113.7", "127.0.0.2")
    assert own_addresses("n1i", "n1") == ["127.0.0.2"]


@pytest.mark.usefixtures("few")
def test_name_of_another_host_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, "203.0.113.7")
    with pytest.raises(RendezvousError) as caught:
        own_addresses("n1i", "n1")
    assert caught.value.what == "host n1: its address n1i resolves there to 203.0.113.7, which is another host's"
    assert caught.value.why.startswith("host n1 has lo (127.0.0.1), ")
    assert caught.value.hint.endswith('resolves its name to itself, or write interface = "eth0"')


@pytest.mark.parametrize("name", ["n1i.invalid", "a" * 70])
def test_name_that_does_not_resolve_is_an_error(name: str) -> None:
    with pytest.raises(RendezvousError, match=f"host n1: its address {name} does not resolve there: "):
        own_addresses(name, "n1")


def test_host_answers_that_accepts_or_refuses_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address, port = server.getsockname()
        assert answers(address, port, 5.0)
        assert not answers(address, port, 0.1)  # nobody has accepted the first one: the queue is full
    assert answers(address, port, 5.0)
    assert answers("n1i.invalid", port, 5.0)  # that says nothing about a host


def test_host_to_which_there_is_no_way_from_here_is_not_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has no route to the broadcast address of TCP; a host that is off is told by EHOSTUNREACH."""
    assert answers("255.255.255.255", 9, 5.0)

    def unreachable(address: object, limit: float) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert not answers("10.1.0.11", 9, 5.0)


def test_host_with_several_addresses_is_silent_where_one_is_and_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with IPv4, which is off, and IPv6, to which there is no way from here; both have the time of one."""
    limits = []

    def off(address: tuple[str, int], limit: float) -> None:
        limits.append(limit)
        raise TimeoutError if address[0] == "10.1.0.11" else OSError(errno.ENETUNREACH, "Network is unreachable")

    both = [(socket.AF_INET, 1, 6, "", ("10.1.0.11", 9)), (socket.AF_INET6, 1, 6, "", ("fd00::2", 9, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    monkeypatch.setattr(socket, "create_connection", off)
    assert not answers("n2", 9, 2.0)
    assert limits == [1.0, 1.0]
