"""The networks: a bridge each in the hub's network namespace, and one link from it to every host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from . import kernel
from .errors import TestbedError

SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ip(lines: Sequence[str], pid: int | None = None, *, check: bool = True) -> str:
    """Run `ip` on these lines (ip(8), -batch), in the network namespace of process ``pid``; returns its output."""
    namespaces = {} if pid is None else kernel.open_namespaces(pid, ["net"])
    command = ["ip", "-force", "-batch", "-"] if not check else ["ip", "-batch", "-"]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": SBIN},
            preexec_fn=lambda: kernel.enter(namespaces),
        )
    finally:
        for descriptor in namespaces.values():
            os.close(descriptor)
    if check and done.returncode != 0:
        raise TestbedError("the network of the test bed cannot be made", why=done.stderr.strip())
    return done.stdout


def names(addresses: Mapping[str, str], *, second: bool) -> dict[str, str]:
    """Name -> address on all networks, from the hosts' addresses on the first: n1i is n1 on the second network."""
    more = {f"{host}i": on_network(1, address) for host, address in addresses.items()} if second else {}
    return {**addresses, **more}


def on_network(network: int, address: str) -> str:
    """The address of a host on a network, from that on the first: 10.81.0.11, 10.81.1.11."""
    first, second, third, fourth = address.split(".")
    return f"{first}.{second}.{int(third) + network}.{fourth}"


def make_hub(*, second: bool, address: str = "") -> None:
    """Make the bridges, in the hub's own network namespace. address: of the hub on the first network, if it has one."""
    bridges = [f"bridge{network}" for network in _networks(second)]
    ip(
        [
            "link set lo up",
            # with an address of its own: otherwise it has that of a link, and another one when the link's host goes,
            # while the others look for the hub where it was for most of a minute
            *(f"link add {name} address {_card(name)} type bridge" for name in bridges),
            *(f"link set {name} up" for name in bridges),
            *([f"addr add {address}/24 dev {bridges[0]}"] if address else []),
        ]
    )


def plug(hub: int, pids: Mapping[str, int], *, second: bool) -> None:
    """Link the hub to the network namespace of each of these processes, where the links are eth0 and eth1."""
    links = [(host, network) for host in pids for network in _networks(second)]
    with contextlib.suppress(TestbedError):  # the links of a host whose power was just cut may still exist
        ip([f"link del {_link(*link)}" for link in links], hub, check=False)
    lines = []
    for host, network in links:
        # the same address after every boot, as of a network card: other hosts cache it for a while
        end = f"name eth{network} address {_card(_link(host, network))} netns {pids[host]}"
        lines.append(f"link add {_link(host, network)} type veth peer {end}")
        lines.append(f"link set {_link(host, network)} master bridge{network} up")
    ip(lines, hub)


def connect(address: str, *, second: bool) -> None:
    """Configure the links in a host's own network namespace, without a default route: a host reaches the cluster alone.

    Args:
        address: The host's address on the first network.
        second: Whether there is a second network.
    """
    lines = ["link set lo up"]
    for network in _networks(second):
        lines += [f"addr add {on_network(network, address)}/24 dev eth{network}", f"link set eth{network} up"]
    ip(lines)


def switch(hub: int, host: str, *, on: bool, second: bool) -> None:
    """Cut all links of a host, or mend them, at the hub's end."""
    ip([f"link set {_link(host, network)} {'up' if on else 'down'}" for network in _networks(second)], hub)


def _networks(second: bool) -> Sequence[int]:
    return (0, 1) if second else (0,)


def _card(link: str) -> str:
    """A locally administered Ethernet address, derived from the name of the link."""
    return ":".join(["02", *(f"{byte:02x}" for byte in hashlib.sha256(link.encode()).digest()[:5])])


def _link(host: str, network: int) -> str:
    return f"to{network}-{host}"
