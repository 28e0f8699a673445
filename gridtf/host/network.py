"""The network of this host: its interfaces and their addresses, and whether an address is this host's own."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from gridtf.errors import RendezvousError
from gridtf.host.netlink import ROUTE, Netlink, attributes
from gridtf.values import Value

# netdevice(7), linux/sockios.h
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _RUNNING = 0x1, 0x40
_IF_INET6 = Path("/proc/net/if_inet6")
_GLOBAL = "00"  # its scope: another host can connect without knowing the name of its own interface
_UNUSABLE = 0x08 | 0x40  # linux/if_addr.h: IFA_F_DADFAILED, IFA_F_TENTATIVE
# rtnetlink(7), linux/rtnetlink.h, linux/if_addr.h
_RTM_GETADDR = 22
_RT_SCOPE_LINK, _RT_SCOPE_HOST = 253, 254
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFADDRMSG = struct.Struct("=BxxB4x")  # family, scope


class Interface(Value):
    """A network interface.

    Attributes:
        name: Its name, such as ``ib0``.
        up: Whether it is up, with a link.
        ipv4: Its IPv4 address; None without one.
        ipv6: Its first global IPv6 address; None without one.
    """

    name: str
    up: bool
    ipv4: str | None
    ipv6: str | None

    def __str__(self) -> str:
        state = self.ipv4 or self.ipv6 or "no address"
        return f"{self.name} ({state if self.up else 'down'})"


def interfaces() -> list[Interface]:
    """The network interfaces of this host."""
    return [found for _, name in socket.if_nameindex() if (found := _look(name)) is not None]


def address_of(name: str, host: str) -> str:
    """The address of a network interface of this host: IPv4, or global IPv6 where it has no IPv4 address.

    Args:
        name: The name of the interface.
        host: The name of this host, for errors.

    Raises:
        RendezvousError: There is no such interface, it is down, or it has no address that other hosts can use.
    """
    found = _look(name)
    address = found and (found.ipv4 or found.ipv6)
    if found is not None and found.up and address:
        return address
    if found is None:
        what = f"host {host} has no network interface {name}"
    elif not found.up:
        what = f"the network interface {name} of host {host} is down"
    else:
        what = f"the network interface {name} of host {host} has neither an IPv4 address nor a global IPv6 address"
    why, example = _overview(host)
    raise RendezvousError(what, why=why, hint=f"choose one that is up on every host of the job, such as {example}")


def answers(address: str, port: int, limit: float) -> bool:
    """Whether the host of an address answers, by accepting a connection or by refusing it.

    Args:
        address: A name or an address.
        port: A TCP port that no firewall closes.
        limit: Seconds to wait, for all of its addresses together.

    Returns:
        True as well for an error of this host, such as a name without an address, or no route from here.
    """
    silent = False
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError:
        return True
    for *_, one in found:
        try:
            socket.create_connection((str(one[0]), port), limit / len(found)).close()
        except ConnectionError:
            return True
        except OSError as error:
            silent |= isinstance(error, TimeoutError) or error.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN)
        else:
            return True
    return not silent


def own_addresses(name: str, host: str) -> list[str]:
    """The addresses of this host that a name stands for.

    Args:
        name: The name, which this host resolves.
        host: The name of this host, for errors.

    Raises:
        RendezvousError: The name does not resolve, or to addresses of other hosts alone.
    """
    try:
        answers = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise _not_own(host, f"its address {name} does not resolve there: {problem}") from None
    own = [str(target[0]) for family, *_, target in answers if _is_own(family, target)]
    if not own:
        resolved = " and ".join(dict.fromkeys(str(target[0]) for *_, target in answers))
        raise _not_own(host, f"its address {name} resolves there to {resolved}, which is another host's")
    return list(dict.fromkeys(own))


def all_addresses() -> list[str]:
    """The addresses of this host that other hosts may see: of all its interfaces, IPv4 first.

    Raises:
        OSError: The kernel does not tell.
    """
    with Netlink(ROUTE) as kernel:
        entries = list(kernel.dump(_RTM_GETADDR, _IFADDRMSG.pack(socket.AF_UNSPEC, 0)))
    found = []
    for entry in sorted(entries, key=lambda entry: entry[0]):  # AF_INET is the smaller one
        family, scope = _IFADDRMSG.unpack_from(entry)
        addresses = dict(attributes(entry[_IFADDRMSG.size :]))
        raw = addresses.get(_IFA_LOCAL) or addresses.get(_IFA_ADDRESS)  # over a point-to-point link they differ
        nearby = family == socket.AF_INET6 and scope == _RT_SCOPE_LINK  # not complete without the name of an interface
        if raw and scope < _RT_SCOPE_HOST and not nearby:
            found.append(socket.inet_ntop(family, raw))
    return list(dict.fromkeys(found))


def packed(address: str) -> bytes:
    """An IP address as it is on the wire: 4 or 16 bytes.

    Raises:
        OSError: It is not an IP address.
    """
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def is_loopback(address: str) -> bool:
    """Whether an IP address is reached from its own host alone."""
    return address.startswith("127.") or address == "::1"


def _not_own(host: str, problem: str) -> RendezvousError:
    why, example = _overview(host)
    return RendezvousError(
        f"host {host}: {problem}",
        why=why,
        hint=f"change address, so that every host of the job resolves its name to itself, or write {example}",
    )


def _overview(host: str) -> tuple[str, str]:
    """The interfaces of this host, for messages; and the line that chooses one of them."""
    found = interfaces()
    usable = (one for one in found if one.up and (address := one.ipv4 or one.ipv6) and not is_loopback(address))
    return f"host {host} has {', '.join(map(str, found))}", f'interface = "{next(usable, found[0]).name}"'


def _look(name: str) -> Interface | None:
    """One interface of this host; None where there is none of this name."""
    request = struct.pack("256s", os.fsencode(name))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
        except OSError:
            return None
        try:
            ipv4 = socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
        except OSError:
            ipv4 = None
    up = flags & (_UP | _RUNNING) == _UP | _RUNNING
    return Interface(name, up, ipv4, next((address for owner, address in _ipv6() if owner == name), None))


def _ipv6() -> Iterator[tuple[str, str]]:
    """(interface, address) of each global IPv6 address. The kernel's file has a line for each address:

    fd000000000000000000000000000002 02 40 00 80     eth0
    address                          index prefix scope flags interface
    """
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:  # a kernel without IPv6
        return
    for line in lines:
        digits, _, _, scope, flags, name = line.split()
        if scope == _GLOBAL and not int(flags, 16) & _UNUSABLE:
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def _is_own(family: int, target: tuple[object, ...]) -> bool:
    """Whether a socket of this host can have an address: the kernel refuses those of other hosts."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind(target)
    except OSError:
        return False
    return True
