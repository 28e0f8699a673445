"""Installs missing Debian packages, without starting their daemons."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .errors import UNAVAILABLE, TestbedError
from .network import SBIN
from .processes import only_one

_POLICY = Path("/usr/sbin/policy-rc.d")
_BUSY = ("Could not get lock", "Unable to lock", "is another process using it", "is locked by another process")


def need(packages: Mapping[str, str], say: Callable[[str], None], preseed: Sequence[str] = ()) -> None:
    """Install the packages whose commands or files are missing.

    Args:
        packages: Command, or absolute path of a file -> names of the packages that contain it.
        say: Prints a line of progress.
        preseed: Lines for debconf-set-selections(1), used for packages that are being installed.

    Raises:
        TestbedError: When they cannot be installed.
    """
    missing = _missing(packages)
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise TestbedError(
            f"missing here: {', '.join(missing)}",
            why="there is no apt-get to install them with",
            hint="the test bed needs Debian or Ubuntu; in a container: docker run --privileged -it debian:12",
            code=UNAVAILABLE,
        )
    # The policy is one file for all, and what one has installed the next need not.
    with only_one(_POLICY.parent, "installs packages", say):
        if missing := _missing(packages):
            say(f"installing {' '.join(missing)}")
            with _nothing_starts():
                _answer([line for line in preseed if line.split()[0] in missing])
                _install(missing)


def _install(names: list[str]) -> None:
    install = ["install", "-y", "--no-install-recommends", *names]
    done = _apt(install)
    if done.returncode != 0:  # no package lists yet, or old ones
        update = _apt(["update"])
        done = _apt(install)
        if done.returncode != 0:
            said = (done.stderr.strip() or update.stderr.strip()).splitlines()
            raise TestbedError(
                f"cannot be installed: {', '.join(names)}",
                why="\n".join(said[-3:]),
                hint="check the network and the package sources, then: apt-get update",
                code=UNAVAILABLE,
            )


def _missing(packages: Mapping[str, str]) -> list[str]:
    return sorted({name for thing, names in packages.items() if not _there(thing) for name in names.split()})


def _there(thing: str) -> bool:
    return Path(thing).exists() if thing.startswith("/") else shutil.which(thing, path=SBIN) is not None


def _answer(lines: Sequence[str]) -> None:
    """Answer the questions of packages in advance."""
    if lines:
        done = _patient(["debconf-set-selections"], text="".join(f"{line}\n" for line in lines))
        if done.returncode != 0:
            raise TestbedError("packages cannot be told what to do", why=done.stderr.strip())


def _apt(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return _patient(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *arguments])


def _patient(command: list[str], *, text: str = "", limit: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command, and again while another process holds its lock, for at most ``limit`` seconds."""
    end = time.monotonic() + limit
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C.UTF-8"}
    while True:
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, env=environ, timeout=limit)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{command[0]} has not ended after {limit:.0f} s") from None
        if done.returncode == 0 or time.monotonic() > end or not any(word in done.stderr for word in _BUSY):
            return done
        time.sleep(2)


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    """Keep packages from starting their daemons, by a policy (invoke-rc.d(8)). An existing policy is left alone."""
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
