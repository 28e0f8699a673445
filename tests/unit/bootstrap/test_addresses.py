"""The address that a host publishes, and the check of the addresses of all hosts."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.plan.addresses import check, published
from gridtf.errors import RendezvousError
from gridtf.host import network
from gridtf.run.rundir import Record
from gridtf.schedulers.api import LOOPBACK
from tests.support.plans import job


def record(host: str, address: str, *resolved: str) -> Record:
    return {"host": host, "address": address, "resolved": list(resolved or (address,))}


def test_host_publishes_the_scheduler_s_address_by_default() -> None:
    assert published(job(), "n1", "n1.cluster") == {"address": "n1.cluster"}


@pytest.mark.parametrize(("pattern", "name"), [("{host}i", "n1.clusteri"), ("{short}-ib.cluster", "n1-ib.cluster")])
def test_host_publishes_the_name_by_the_pattern(pattern: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "own_addresses", lambda name, host: [f"{host} is {name}"])
    expected = {"address": name, "resolved": [f"n1.cluster is {name}"]}
    assert published(job(address=pattern), "n1.cluster", "n1.cluster") == expected


def test_host_publishes_the_address_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "address_of", lambda name, host: f"{name} of {host}")
    assert published(job(interface="ib0"), "n1", "n1") == {"address": "ib0 of n1", "resolved": ["ib0 of n1"]}


def test_job_on_this_machine_alone_needs_no_network() -> None:
    assert published(job(interface="ib0"), "login", LOOPBACK) == {"address": LOOPBACK}


def test_hosts_with_addresses_of_their_own_pass_the_check() -> None:
    check([("n1", record("n1", "n1i", "10.1.1.11")), ("n2", record("n2", "n2i", "127.0.0.1", "10.1.1.12"))])
    check([("n1", {"host": "n1", "address": LOOPBACK}), ("n2", {"host": "n2", "address": LOOPBACK})])  # not chosen
    check([("boot", record("n1", LOOPBACK)), ("boot", record("n1", LOOPBACK))])  # two processes of one machine


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (record("n2", "127.0.0.1"), "host n2: its address is 127.0.0.1, which other hosts cannot reach"),
        (record("n2", "::1"), "host n2: its address is ::1, which other hosts cannot reach"),
        (record("n2", "n2i", "127.0.1.1"), "host n2: its address n2i resolves to 127.0.1.1, which other hosts cannot"),
        (record("n2", "172.17.0.1"), "host n1 and host n2 have the same address 172.17.0.1"),
    ],
)
def test_address_that_other_hosts_cannot_reach_is_an_error(other: Record, what: str) -> None:
    with pytest.raises(RendezvousError, match=what):
        check([("n1", record("n1", "172.17.0.1")), ("n2", other)])
