"""The network: a bridge in the hub's network namespace, and one link from it to every host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from . import kernel
from .errors import TestbedError

SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BRIDGE = "bridge"


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


def make_hub() -> None:
    """Make the bridge, in the hub's own network namespace."""
    ip([f"link add {_BRIDGE} type bridge", "link set lo up", f"link set {_BRIDGE} up"])


def plug(hub: int, pids: Mapping[str, int]) -> None:
    """Link the hub to the network namespace of each of these processes, where the link is eth0."""
    with contextlib.suppress(TestbedError):  # the link of a host whose power was just cut may still exist
        ip([f"link del {_link(host)}" for host in pids], hub, check=False)
    lines = []
    for host, pid in pids.items():
        # the same address after every boot, as of a network card: other hosts cache it for a while
        lines.append(f"link add {_link(host)} type veth peer name eth0 address {_card(host)} netns {pid}")
        lines.append(f"link set {_link(host)} master {_BRIDGE} up")
    ip(lines, hub)


def connect(address: str) -> None:
    """Configure eth0, in a host's own network namespace, without a default route: a host reaches the cluster alone."""
    ip(["link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"])


def switch(hub: int, host: str, *, on: bool) -> None:
    """Cut the link of a host, or mend it, at the hub's end."""
    ip([f"link set {_link(host)} {'up' if on else 'down'}"], hub)


def _card(host: str) -> str:
    """A locally administered Ethernet address, derived from the host's name."""
    return ":".join(["02", *(f"{byte:02x}" for byte in hashlib.sha256(host.encode()).digest()[:5])])


def _link(host: str) -> str:
    return f"to-{host}"
