"""Bring a test bed up and down; cut the power or the link of a host, and mend it."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import accounts, boot, enter, groups, network, packages, processes, remote, view
from . import bed as beds
from .bed import HUB, Bed
from .errors import TestbedError
from .scheduler import Scheduler

LAGGY = ("negative_timeout=8", "attr_timeout=3")  # seconds for which a host caches names and attributes
CHECKOUT = Path(__file__).resolve().parents[2]


def up(scheduler: Scheduler, bed: Bed, say: Callable[[str], None]) -> None:
    """Bring a test bed up, in place of an older one, and wait until all hosts are ready.

    Args:
        scheduler: Its scheduler.
        bed: The test bed.
        say: Prints a line of progress.

    Raises:
        TestbedError: When it cannot be brought up; it is taken down again.
    """
    needed = {**scheduler.packages(bed), **({} if bed.sharing == "plain" else {"bindfs": "bindfs"})}
    packages.need(needed, say, scheduler.PRESEED)
    scheduler.fetch(bed, say)
    with beds.locked():
        down(bed.kind)
        os.umask(0o022)
        try:
            _make_state(scheduler, bed)
            since = time.time()
            boot_hosts(scheduler, bed, [HUB])
            boot_hosts(scheduler, bed, list(scheduler.HOSTS))
            scheduler.wait_until_well(bed, list(scheduler.HOSTS), since=since)
        except BaseException:
            down(bed.kind)
            raise


def down(kind: str) -> None:
    """Take a test bed down: kill all hosts, whose processes, links and mounts end with them.

    Raises:
        TestbedError: When a host cannot be killed.
    """
    bed = beds.load(kind) or Bed(kind)
    late = processes.kill(list(bed.hosts.values()))
    if late:
        raise TestbedError(
            "hosts do not die", why=f"processes {', '.join(str(host.pid) for host in late)} are stuck in the kernel"
        )
    groups.remove(bed.state)
    beds.remove(bed)


def stands(bed: Bed, host: str) -> str:
    """The state of a host: ``up``, ``no power``, ``no daemon``, ``link cut``, or ``shared`` and the folder's state."""
    if host not in bed.hosts or not processes.alive(bed.hosts[host]):
        return "no power"
    if boot.ended(bed.host_log(host)):
        return "no daemon"
    if host in bed.cut:
        return "link cut"
    shared = remote.state(bed.disk(host))
    return "up" if shared == remote.WELL else f"shared {shared}"


def kill(bed: Bed, host: str) -> None:
    """Cut the power of a host: it and all its processes are gone at once."""
    if processes.kill([bed.hosts[host]]):
        raise TestbedError(f"host {host} does not die", why=f"process {bed.hosts[host].pid} is stuck in the kernel")
    bed.cut = tuple(name for name in bed.cut if name != host)
    bed.save()


def cut(bed: Bed, host: str) -> None:
    """Take the links of a host down."""
    _require_alive(bed, host)
    network.switch(bed.hosts[HUB].pid, host, on=False, second=bed.second_network)
    bed.cut = (*(name for name in bed.cut if name != host), host)
    bed.save()


def set_shared(bed: Bed, host: str, state: str) -> None:
    """Have the shared folder hang, be full, read-only or not mounted on a host, or well again.

    Raises:
        TestbedError: When the host has no power, or the bed's shared folder is not remote.
    """
    if bed.sharing != "remote":
        hint = f"bring up another: scripts/testbed {bed.kind} up --shared remote"
        raise TestbedError("the shared folder of this test bed is a local one", hint=hint, code=2)
    _require_alive(bed, host)
    remote.order(bed.disk(host), state)
    end = time.monotonic() + 20
    while remote.mounted(bed.hosts[host].pid) == (state == remote.UNMOUNTED):
        if time.monotonic() > end:
            raise TestbedError(f"the shared folder of {host} does not become {state}", why="its relay does not react")
        time.sleep(0.01)


def mend(scheduler: Scheduler, bed: Bed, host: str) -> None:
    """Bring the link of a host up, or boot it if it has no power or no daemon; returns when it can be used again."""
    since = 0.0
    if boot.ended(bed.host_log(host)):
        kill(bed, host)
    if processes.alive(bed.hosts[host]):
        network.switch(bed.hosts[HUB].pid, host, on=True, second=bed.second_network)
        if bed.sharing == "remote":
            set_shared(bed, host, remote.WELL)
    else:
        remote.order(bed.disk(host), remote.WELL)
        since = time.time()
        boot_hosts(scheduler, bed, [host])
    bed.cut = tuple(name for name in bed.cut if name != host)
    bed.save()
    scheduler.wait_until_well(bed, [host], since=since)


def ask(
    bed: Bed, controller: str, command: Sequence[str], environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command of the scheduler as root, on its controller's host, or on the login host if that is off."""
    host = controller if processes.alive(bed.hosts[controller]) else "login"
    return enter.capture(bed.hosts[host], command, environ)


def summary(scheduler: Scheduler, bed: Bed) -> str:
    """The scheduler's own overview of its hosts."""
    try:
        done = scheduler.ask(bed, [scheduler.GLANCE])
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{scheduler.GLANCE}: {error}\n"
    return str(done.stdout or done.stderr)


def boot_hosts(scheduler: Scheduler, bed: Bed, hosts: Sequence[str]) -> None:
    """Boot hosts, all at once."""
    begun = []
    for host in hosts:
        begun.append(boot.begin(host, bed.host_log(host), _start(scheduler, bed, host)))
        bed.hosts[host] = begun[-1].process
        bed.save()
    if hosts != [HUB]:
        pids = {host: bed.hosts[host].pid for host in hosts}
        network.plug(bed.hosts[HUB].pid, pids, second=bed.second_network)
    boot.finish(begun)


def wait_for_port(address: str, port: int, limit: float = 1) -> None:
    """Wait until a daemon of another host accepts connections: refused clients try again only after a second or more.

    Returns after ``limit`` seconds in any case: that host may be off.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 0.1):
            return
        time.sleep(0.01)


def shares(extra: Sequence[str]) -> tuple[str, ...]:
    """The folders that all hosts see at their real paths: the checkout, the Pythons in use, and ``extra``.

    Raises:
        TestbedError: When a required one is missing, or ordinary users may not enter it.
    """
    wanted = {str(CHECKOUT): True, sys.prefix: False, sys.base_prefix: False}
    for environment in (os.environ.get("VIRTUAL_ENV"), CHECKOUT / ".venv", CHECKOUT / ".venv-test"):
        if environment:
            wanted.update(dict.fromkeys(_python_folders(Path(environment)), False))
    wanted.update({os.path.abspath(folder): True for folder in extra})  # noqa: PTH100  (links are kept as they are)
    found: dict[str, None] = {}
    for folder, required in wanted.items():
        path = Path(folder)
        if path.is_dir() and view.enterable(path):
            if str(path.resolve()) not in ("/", "/usr"):
                found.update(dict.fromkeys((str(path), str(path.resolve()))))
        elif required:
            closed = path.is_dir()
            why = "plain users may not enter it" if closed else "it is not a folder"
            hint = f"chmod -R o+rX {shlex.quote(folder)} lets them in" if closed else ""
            raise TestbedError(f"{folder} cannot be shared", why=why, hint=hint)
    return tuple(found)


def _python_folders(environment: Path) -> list[str]:
    """The folders of a virtual environment and of its base Python (pyvenv.cfg: home = /usr/bin)."""
    try:
        lines = (environment / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    homes = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "home"]
    python = (environment / "bin" / "python").resolve()
    return [str(environment), *(str(Path(home).parent) for home in homes), str(python.parent.parent)]


def _start(scheduler: Scheduler, bed: Bed, host: str) -> Callable[[], None]:
    """The function that the first process of a host calls once its link is up."""

    hub = remote.hub(scheduler.HOSTS)

    def start() -> None:
        if host == HUB:
            network.make_hub(second=bed.second_network, address=hub if bed.sharing == "remote" else "")
        else:
            network.connect(scheduler.HOSTS[host], second=bed.second_network)
        view.build(_view(scheduler, bed, host))
        if bed.sharing == "laggy" and host != HUB:
            _mount_laggy(host)
        if bed.sharing == "remote":
            remote.serve(hub) if host == HUB else remote.mount(hub)
        scheduler.start(bed, host)

    return start


def _view(scheduler: Scheduler, bed: Bed, host: str) -> view.View:
    binds = [(bed.etc, "/etc"), (bed.log, view.LOG), (bed.disk(host), view.DISK)]
    if bed.sharing != "remote" or host == HUB:
        binds.append((bed.shared, view.SHARED if bed.sharing == "plain" else f"{view.REAL}/shared"))
    own_groups = groups.binds(bed.state, host) if bed.cgroups else []
    return view.View((*binds, *scheduler.binds(bed)), bed.shares, tuple(own_groups))


def _mount_laggy(host: str) -> None:
    """Mount this host's own view of the shared folder, with stale caches like those of network file systems."""
    Path(view.REAL).chmod(0o700)
    Path(view.SHARED).mkdir()
    before = Path(view.SHARED).stat().st_dev
    log = f"{view.LOG}/bindfs.{host}.err"
    boot.service(view.laggy_command(LAGGY), log)
    end = time.monotonic() + 20
    while Path(view.SHARED).stat().st_dev == before:
        if time.monotonic() > end:
            raise TestbedError("bindfs does not mount", why=Path(log).read_text(errors="replace").strip())
        time.sleep(0.01)


def _make_state(scheduler: Scheduler, bed: Bed) -> None:
    bed.state.mkdir(parents=True)
    bed.state.chmod(0o755)
    bed.save()
    for folder in (bed.shared, bed.log, *(bed.disk(host) for host in (HUB, *scheduler.HOSTS))):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    bed.log.chmod(0o755)
    for user, number in accounts.USERS.items():
        home = bed.shared / "home" / user
        home.mkdir(parents=True)
        os.chown(home, number, number)
    if bed.cgroups:
        groups.make(bed.state, [HUB, *scheduler.HOSTS])
    accounts.make_etc(bed.etc, {HUB: "127.0.1.1", **network.names(scheduler.HOSTS, second=bed.second_network)})
    scheduler.prepare(bed)


def _require_alive(bed: Bed, host: str) -> None:
    if not processes.alive(bed.hosts[host]):
        raise TestbedError(f"host {host} has no power", hint=f"boot it: scripts/testbed {bed.kind} mend {host}")
