"""The state folder of a test bed.

STATE/bed.json      the options of `up`, and the first process of every host
STATE/shared        the real shared folder, seen by the hosts as /mnt/shared; home/alice, home/bob
STATE/etc           the /etc that all hosts see
STATE/disk/HOST     files that survive a power cut of that host, seen by it as /run/testbed/disk
STATE/log           output of hosts and daemons, seen by all hosts as /run/testbed/log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import TestbedError
from .processes import Process

BASE = Path("/run/gridtf-testbed")
HUB = "hub"


def base() -> Path:
    return Path(os.environ.get("GRIDTF_TESTBED_STATE") or BASE).absolute()


class Bed:
    """A test bed. No dataclass, whose import takes longer than a command on a host.

    Attributes:
        kind: Its scheduler.
        sharing: How hosts see the shared folder: plain, laggy or remote.
        cgroups: Whether control groups constrain jobs.
        accounting: Whether Slurm's accounting runs.
        second_network: Whether the hosts have a second network.
        version: Of the scheduler, where it is not that of this machine, such as 24.11.
        shares: Folders that all hosts see at their real paths.
        options: KEY=VALUE for the scheduler's configuration.
        root: The folder of another Grid Engine than Debian's; empty for Debian's.
        qrsh_newlines: Whether qrsh passes newlines as Open Cluster Scheduler's does.
        binaries: The folder of the scheduler's commands on the hosts; empty if they are on the PATH.
        variables: Variables that every command on a host needs.
        hosts: Host -> its first process.
        cut: Hosts whose link is down.
    """

    kind: str
    sharing: str = "plain"
    cgroups: bool = False
    accounting: bool = False
    second_network: bool = False
    version: str = ""
    shares: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    root: str = ""
    qrsh_newlines: bool = False
    binaries: str = ""
    variables: Mapping[str, str] = {}
    hosts: dict[str, Process]
    cut: tuple[str, ...] = ()

    def __init__(self, kind: str, hosts: Mapping[str, Process] | None = None, **values: object) -> None:
        """values: Attributes by name."""
        unknown = values.keys() - Bed.__annotations__.keys()
        assert not unknown, f"a test bed has no {unknown}"
        vars(self).update(values, kind=kind, hosts=dict(hosts or {}))

    @property
    def state(self) -> Path:
        return base() / self.kind

    @property
    def record(self) -> Path:
        return self.state / "bed.json"

    @property
    def shared(self) -> Path:
        return self.state / "shared"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def log(self) -> Path:
        return self.state / "log"

    def host_log(self, host: str) -> Path:
        return self.log / f"host.{host}.log"

    def disk(self, host: str) -> Path:
        return self.state / "disk" / host

    def save(self) -> None:
        new = self.record.with_suffix(".new")
        hosts = {name: process._asdict() for name, process in self.hosts.items()}
        new.write_text(json.dumps({**vars(self), "hosts": hosts}, indent=1))
        new.replace(self.record)


def load(kind: str) -> Bed | None:
    """The test bed that is up, or its remains; None when there is none."""
    try:
        data = json.loads((base() / kind / "bed.json").read_text())
    except FileNotFoundError:
        return None
    known = Bed.__annotations__  # another version of this script may have written it
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in known}
    del values["kind"], values["hosts"]
    return Bed(kind, {name: Process(**process) for name, process in data["hosts"].items()}, **values)


def require(kind: str) -> Bed:
    bed = load(kind)
    if bed is None:
        raise TestbedError(f"no {kind} test bed is up", hint=f"bring one up: scripts/testbed {kind} up")
    return bed


@contextlib.contextmanager
def locked(limit: float = 900) -> Iterator[None]:
    """Let one command at a time change a test bed. The lock is on the folder itself, so that no file is left behind.

    Raises:
        TestbedError: When another command has held the lock for ``limit`` seconds.
    """
    folder = base()
    waits = False
    end = time.monotonic() + limit
    while True:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists() and os.fstat(descriptor).st_ino == folder.stat().st_ino:
                break  # otherwise a `down` has removed the folder meanwhile
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise TestbedError(
                    "another scripts/testbed is at work", why=f"it has held {folder} for {limit:.0f} s"
                ) from None
            if not waits:
                print("==> waiting for another scripts/testbed that is at work", file=sys.stderr, flush=True)
            waits = True
            time.sleep(0.1)
        except FileNotFoundError:
            pass
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: a bed is up
            folder.rmdir()
        os.close(descriptor)


def remove(bed: Bed) -> None:
    """Remove the state folder.

    Raises:
        TestbedError: When it contains files of others than a test bed.
    """
    if bed.state.exists() and any(bed.state.iterdir()) and not bed.record.exists():
        raise TestbedError(
            f"{bed.state} is not the folder of a test bed",
            why="it holds other files, which are not removed",
            hint="name another folder in GRIDTF_TESTBED_STATE",
        )
    import shutil

    shutil.rmtree(bed.state, ignore_errors=True)
    if bed.state.exists():
        shutil.rmtree(bed.state)  # a second try, which reports the reason
