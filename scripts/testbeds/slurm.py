"""Slurm: the daemons of each host, and the check that jobs can run."""

from __future__ import annotations

import calendar
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import accounting, boot, cluster, processes, versions
from .bed import HUB, Bed
from .errors import TestbedError
from .network import SBIN
from .processes import Process
from .slurmconf import ADDRESSES, CONF, CONTROLLER, CONTROLLER_PORT, DEVICE, GPU_HOSTS, GPUS, NODES, files
from .view import DISK, LOG

ENVIRONMENT = {"SLURM_CONF": CONF}
_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nft": "nftables",
    # for srun --mpi=pmix: the plugin, which daemons load as they start, opens the library by this name
    f"/usr/lib/{os.uname().machine}-linux-gnu/pmix2/lib/libpmix.so": "libpmix-dev",
}
HOSTS = ADDRESSES
ABOUT = "Slurm: a login host, a controller, four hosts with four pretended GPUs each, and one without"
OPTION = "a line of slurm.conf"
REFUSED = {"root": "it is for Grid Engine", "qrsh_newlines": "Slurm has no qrsh"}  # options of `up` -> the reason
GLANCE = "sinfo"
BINARIES = ""  # its commands are on the PATH
PRESEED: tuple[str, ...] = ()  # its packages ask no questions
_ENVIRON = {"PATH": SBIN, "LANG": "C.UTF-8", "TZ": "UTC", **ENVIRONMENT}
_MUNGE = "/run/munge"
_MAJOR = 240  # of devices for local use (Linux: Documentation/admin-guide/devices.txt), without a driver


def packages(bed: Bed) -> dict[str, str]:
    """Command -> the packages that contain it."""
    found = {**_PACKAGES, **(accounting.PACKAGES if bed.accounting else {})}
    if bed.version:
        versions.check(bed.version)
        found |= {} if versions.release(bed.version) else versions.TOOLS
    return found


def fetch(bed: Bed, say: Callable[[str], None]) -> None:
    """Get another version, where one is wanted."""
    if bed.version:
        versions.obtain(bed.version, say)


def prepare(bed: Bed) -> None:
    """Write the configuration and munge's key, before any host starts."""
    folder = bed.etc / "slurm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    extra = accounting.settings(CONTROLLER) if bed.accounting else {}
    for name, text in files(cgroups=bed.cgroups, extra=extra, options=bed.options, version=bed.version).items():
        (folder / name).write_text(text)
    if bed.accounting:
        (folder / "slurmdbd.conf").write_text(accounting.configuration(CONTROLLER))
        (folder / "slurmdbd.conf").chmod(0o600)
    account = pwd.getpwnam("munge")
    for place in (bed.etc / "munge", bed.state / "munge"):
        place.mkdir(exist_ok=True)
        os.chown(place, account.pw_uid, account.pw_gid)
    (bed.etc / "munge").chmod(0o700)
    (bed.state / "munge").chmod(0o755)
    key = bed.etc / "munge" / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    os.chown(key, account.pw_uid, account.pw_gid)
    (bed.disk(CONTROLLER) / "state").mkdir()


def binds(bed: Bed) -> list[tuple[Path, str]]:
    """One munged serves all hosts: Unix sockets are independent of network namespaces."""
    return [(bed.state / "munge", _MUNGE), *(versions.binds(bed.version) if bed.version else ())]


def start(bed: Bed, host: str) -> None:
    """Start the daemons of a host, in its first process."""
    os.environ.clear()
    os.environ.update({**_ENVIRON, **(versions.environ(bed.version) if bed.version else {})})
    if host == HUB:
        account = pwd.getpwnam("munge")
        places = [f"--{name}={_MUNGE}/munged.{end}" for name, end in {"pid-file": "pid", "seed-file": "seed"}.items()]
        command = ["munged", "--foreground", "--num-threads=4", f"--log-file={_MUNGE}/munged.log", *places]
        boot.service(command, f"{LOG}/munged.err", user=account.pw_uid, group=account.pw_gid, extra_groups=[])
        _wait_for_socket(Path(f"{_MUNGE}/munge.socket.2"))
    elif host == CONTROLLER:
        if bed.accounting:
            accounting.start()
        boot.service(["slurmctld", "-D"], f"{LOG}/slurmctld.err")
    elif host in NODES:
        if host in GPU_HOSTS:
            for number in range(GPUS):
                os.mknod(f"{DEVICE}{number}", 0o020666, os.makedev(_MAJOR, number))
                Path(f"{DEVICE}{number}").chmod(0o666)
        Path(DISK, "spool").mkdir(exist_ok=True)
        cluster.wait_for_port(ADDRESSES[CONTROLLER], CONTROLLER_PORT)
        boot.service(["slurmd", "-D", "-N", host], f"{LOG}/slurmd.{host}.err")


@dataclass(frozen=True)
class Node:
    """A host as slurmctld reports it.

    Attributes:
        state: Such as IDLE or DOWN*+DRAIN.
        started: Start of its slurmd, in seconds since the epoch; 0 before it has registered.
    """

    state: str
    started: float

    @property
    def well(self) -> bool:
        base, *flags = self.state.split("+")
        return base in ("IDLE", "MIXED", "ALLOCATED") and set(flags) <= {"COMPLETING"}


def nodes(text: str) -> dict[str, Node]:
    """Read `scontrol --oneliner show nodes` (scontrol(1)); times in UTC:

    NodeName=n1 Arch=x86_64 … State=IDLE … SlurmdStartTime=2026-11-21T11:10:27 …
    """
    found = {}
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        try:
            started = calendar.timegm(time.strptime(fields.get("SlurmdStartTime", ""), "%Y-%m-%dT%H:%M:%S"))
        except ValueError:  # None: it has not registered yet
            started = 0
        if "NodeName" in fields:
            found[fields["NodeName"]] = Node(fields.get("State", ""), started)
    return found


def ask(bed: Bed, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the scheduler; subprocess.TimeoutExpired when it does not respond."""
    return cluster.ask(bed, CONTROLLER, command, _ENVIRON)


def _look(bed: Bed) -> dict[str, Node]:
    """Empty while slurmctld does not answer."""
    try:
        done = ask(bed, ["scontrol", "--oneliner", "show", "nodes"])
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return nodes(done.stdout) if done.returncode == 0 else {}


def wait_until_well(bed: Bed, hosts: list[str], *, since: float = 0, limit: float = 180) -> None:
    """Wait until these hosts can be used; TestbedError after ``limit`` seconds.

    since: when they were switched on, in seconds since 1970; 0 when only their link was cut.
    """
    wanted = [host for host in NODES if host in hosts or (CONTROLLER in hosts and cluster.stands(bed, host) == "up")]
    if not wanted and CONTROLLER not in hosts:
        return
    end = time.monotonic() + limit
    nudge = time.monotonic() + 0.3
    while True:
        for host in hosts:
            if ended := boot.ended(bed.host_log(host)):
                raise TestbedError(f"{host}: a daemon has ended: {ended}", why=_last_words(bed, [host]))
        seen = _look(bed)
        late = [host for host in wanted if not _is_back(seen.get(host), int(since) if host in hosts else 0)]
        if seen and not late:
            return
        if time.monotonic() > end:
            now = ", ".join(f"{host} {seen[host].state}" for host in late) if seen else "slurmctld does not answer"
            last = _last_words(bed, [CONTROLLER, *late[:2]])
            raise TestbedError(f"Slurm is not ready after {limit:.0f} s", why=f"{now}\n{last}")
        if seen and time.monotonic() > nudge:
            for host in late:
                if host not in hosts or not since:  # a booting slurmd registers by itself, and a signal may end it
                    _register(bed.hosts[host])
            nudge = time.monotonic() + 3
        time.sleep(0.1)


def _register(host: Process) -> None:
    """Have slurmd register with slurmctld at once; otherwise slurmctld would contact it half a minute later."""
    for child in processes.children(host.pid):
        if processes.name(child) == "slurmd":
            os.kill(child, signal.SIGHUP)


def _is_back(node: Node | None, since: int) -> bool:
    """Whether slurmctld can use this host since its boot: before, it may not have noticed the power cut yet."""
    return node is not None and node.well and node.started >= since


def _last_words(bed: Bed, hosts: list[str]) -> str:
    """The last lines that may show the cause, from the logs of the daemons of these hosts."""
    found = []
    for host in hosts:
        log = bed.log / ("slurmctld.err" if host == CONTROLLER else f"slurmd.{host}.err")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        found += [f"{host}: {line}" for line in lines if re.search(r"error|fatal", line)][-3:]
    return "\n".join(found)


def _wait_for_socket(path: Path, limit: float = 20) -> None:
    end = time.monotonic() + limit
    while not path.exists():
        if time.monotonic() > end:
            output = Path(f"{LOG}/munged.err").read_text(errors="replace").strip()
            raise TestbedError("munged does not start", why=output)
        time.sleep(0.01)
