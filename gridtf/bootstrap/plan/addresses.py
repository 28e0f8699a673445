"""The address by which other hosts reach the tasks of this host. Each host determines and checks its own address, and
publishes it in its record; TF_CONFIG, the placeholders and MASTER_ADDR are made from the records."""

from __future__ import annotations

from collections.abc import Iterable

from gridtf.errors import RendezvousError
from gridtf.jobspec.placeholders import host_address
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record
from gridtf.schedulers.api import LOOPBACK


def published(spec: JobSpec, host: str, known: str) -> Record:
    """The entries ``address`` and, where the job chooses a network, ``resolved`` of this host's record.

    Args:
        host: The scheduler's name of this host.
        known: The address by which the scheduler knows it. Where that is LOOPBACK, the job is on this machine alone,
            and needs no network.

    Raises:
        RendezvousError: This host does not have the address or the interface that the job chooses.
    """
    if known == LOOPBACK or (spec.address is None and spec.interface is None):
        return {"address": known}
    from gridtf.host import network

    if spec.interface is not None:
        address = network.address_of(spec.interface, host)
        return {"address": address, "resolved": [address]}
    name = host_address(spec.address or "", host)
    return {"address": name, "resolved": network.own_addresses(name, host)}


def of_this_host(nodename: str) -> list[str]:
    """The name of this host and the addresses of its interfaces, those that only this host reaches last.

    Args:
        nodename: This host's own name.
    """
    from gridtf.host.network import interfaces, is_loopback

    found = [address for one in interfaces() if one.up for address in (one.ipv4, one.ipv6) if address]
    return list(dict.fromkeys([nodename, *sorted(found, key=is_loopback)]))


def check(records: Iterable[tuple[str, Record]]) -> None:
    """Check that hosts can reach each other by the addresses that the job chooses.

    Args:
        records: (machine, its record): several records may be of one machine.

    Raises:
        RendezvousError: Two machines have the same address, or one of several machines has a loopback address.
    """
    chosen = [(machine, record) for machine, record in records if "resolved" in record]
    if len({machine for machine, _ in chosen}) < 2:
        return
    from gridtf.host.network import is_loopback

    hint = 'write address = "…" or interface = "…" for a network that connects the hosts'
    owners: dict[str, tuple[str, str]] = {}  # address -> its machine, and the name of the host
    for machine, record in chosen:
        host, address = record["host"], record["address"]
        reachable = [text for text in record["resolved"] if not is_loopback(text)]
        if not reachable:
            resolved = " and ".join(record["resolved"])
            how = "is" if address in record["resolved"] else f"{address} resolves to"
            what = f"host {host}: its address {how} {resolved}, which other hosts cannot reach"
            raise RendezvousError(what, hint=hint)
        for text in reachable:
            other, other_host = owners.setdefault(text, (machine, host))
            if other != machine:
                raise RendezvousError(f"host {other_host} and host {host} have the same address {text}", hint=hint)
