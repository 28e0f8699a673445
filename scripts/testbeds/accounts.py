"""The /etc of the hosts: a copy of this machine's, with two ordinary users and the names of the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .errors import TestbedError

USERS = {"alice": 7001, "bob": 7002}  # user id, and group id alike
HOMES = "/mnt/shared/home"


def home(user: str) -> str:
    return f"{HOMES}/{user}" if user in USERS else "/root"


def make_etc(etc: Path, addresses: Mapping[str, str]) -> None:
    """Copy /etc, so that later installations on this machine do not change that of the hosts."""
    import subprocess

    copy = ["cp", "-dR", "--preserve=mode,ownership,timestamps", "/etc", str(etc)]
    done = subprocess.run(copy, capture_output=True, text=True, timeout=120)
    if not (etc / "passwd").exists():
        raise TestbedError("/etc cannot be copied", why=done.stderr.strip())
    taken = {*USERS, *map(str, USERS.values())}
    for name, line in {
        "passwd": "{user}:x:{number}:{number}::{home}:/bin/bash",
        "group": "{user}:x:{number}:",
        "shadow": "{user}:*:19000::::::",
    }.items():
        file = etc / name
        old = [line.split(":") for line in file.read_text().splitlines()]
        lines = [":".join(fields) for fields in old if not taken & {fields[0], *fields[2:3]}]
        lines += [line.format(user=user, number=number, home=home(user)) for user, number in USERS.items()]
        file.write_text("\n".join(lines) + "\n")
    hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    _write(etc / "hosts", "\n".join(hosts) + "\n")
    _write(etc / "resolv.conf", "# no name server: a host knows its cluster\noptions timeout:1 attempts:1\n")


def _write(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)  # it may be a link to a folder that the hosts do not have
    file.write_text(text)
