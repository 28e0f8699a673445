"""Grid Engine: the daemons of each host, and the check that jobs can run."""

from __future__ import annotations

import calendar
import os
import pwd
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from . import boot, cluster, sgeroot
from .bed import Bed
from .errors import TestbedError
from .network import SBIN
from .sgeconf import (
    ADDRESSES,
    ARCH,
    CELL,
    COMMON,
    GPUS,
    MASTER,
    MASTER_PORT,
    NODES,
    ROOT,
    files,
)
from .view import LOG

HOSTS = ADDRESSES
ABOUT = "Grid Engine: a login host, a qmaster, and four hosts with four slots and two pretended GPUs each"
OPTION = (
    "NAME.ATTRIBUTE=VALUE for a queue, parallel environment or host (all.q.slots=2), ATTRIBUTE=VALUE for what "
    "`qconf -sconf` and `qconf -ssconf` show"
)
REFUSED = {
    "cgroups": "Grid Engine 8.1.9 holds no job in control groups",
    "accounting": "Grid Engine always keeps accounts: qacct works without it",
    "version": "Debian's releases have one version of Grid Engine",
}
GLANCE = "qhost"
BINARIES = f"{ROOT}/bin/{ARCH}"
# they would set up a cell of their own
PRESEED = tuple(
    f"gridengine-{part} shared/gridengineconfig boolean false" for part in ("common", "client", "exec", "master")
)
ENVIRONMENT = {
    "SGE_ROOT": ROOT,
    "SGE_CELL": CELL,
    "SGE_QMASTER_PORT": str(MASTER_PORT),
    "SGE_EXECD_PORT": str(MASTER_PORT + 1),
}
_ENVIRON = {"PATH": SBIN, "LANG": "C.UTF-8", **ENVIRONMENT}
_UTC = {**_ENVIRON, "PATH": f"{BINARIES}:{SBIN}", "TZ": "UTC"}


def packages(bed: Bed) -> dict[str, str]:
    """Command, or file -> the packages that contain it."""
    needed = {"tcsh": "tcsh", "ip": "iproute2"}
    if bed.root:
        sgeroot.need(bed.root)
        return needed
    own = sgeroot.links("")
    return {
        str(own["util"] / "arch"): "gridengine-common",
        str(own[sgeroot.BIN] / "sge_qmaster"): "gridengine-master",
        str(own[sgeroot.BIN] / "sge_execd"): "gridengine-exec",
        str(own[sgeroot.BIN] / "qsub"): "gridengine-client",
        str(sgeroot.DRMAA): "gridengine-drmaa1.0",
        **needed,
    }


def fetch(bed: Bed, say: Callable[[str], None]) -> None:
    """Nothing is needed but packages."""


def prepare(bed: Bed) -> None:
    """Make the cell, as its installation would, before any host starts."""
    cell, spool = bed.state / "root" / CELL, bed.disk(MASTER) / "qmaster"
    sgeroot.make(bed.state / "root", bed.root, newlines=bed.qrsh_newlines)
    for resource in ("centry", "usersets"):
        shutil.copytree(sgeroot.links(bed.root)["util"] / "resources" / resource, spool / resource)
    engine = sgeroot.engine(bed.root)
    for name, text in files(bed.options, engine).items():
        kind, _, rest = name.partition("/")
        file = {"common": cell / "common", "spool": spool}[kind] / rest
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    spools = [bed.disk(host) / "execd" for host in NODES]
    for folder in spools:
        folder.mkdir()
    account = pwd.getpwnam(engine.admin)
    for top in (cell, spool, *spools):
        for path in (top, *top.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)


def binds(bed: Bed) -> list[tuple[Path, str]]:
    """SGE_ROOT is a folder that all hosts share, as at most sites."""
    return [(bed.state / "root", ROOT)]


def start(bed: Bed, host: str) -> None:
    """Start the daemons of a host, in its first process."""
    os.environ.clear()
    os.environ.update(_ENVIRON)
    if host == MASTER:
        boot.daemon([f"{BINARIES}/sge_qmaster"], f"{LOG}/sge_qmaster.err", env=_UTC)
        if not Path(COMMON, "settings.sh").exists():
            environ = {**_ENVIRON, "SGE_ARCH": ARCH}
            subprocess.run([f"{ROOT}/util/create_settings.sh", COMMON], env=environ, check=True, timeout=20)
    elif host in NODES:
        cluster.wait_for_port(ADDRESSES[MASTER], MASTER_PORT)
        # inherited by jobs, in place of a driver's report
        environ = {**_ENVIRON, "GRIDTF_LOCAL_GPUS": ",".join(map(str, range(GPUS)))}
        boot.daemon([f"{BINARIES}/sge_execd"], f"{LOG}/sge_execd.{host}.err", env=environ)


def usable(text: str) -> dict[str, bool]:
    """Read `qstat -f -xml` (qstat(1)): queue instance -> whether jobs can start there.

    <Queue-List> <name>all.q@n1</name> … <load_avg>0.05</load_avg> <arch>lx-amd64</arch> <state>au</state> </Queue-List>

    A queue without a state has heard from its host.
    """
    return {
        queue.findtext("name", ""): not queue.findtext("state")
        for queue in ET.fromstring(text).iter("Queue-List")  # noqa: S314  (the output of qstat itself)
    }


def registered(messages: str) -> dict[str, float]:
    """Read the qmaster's messages: host -> when its execd has last registered, in seconds since 1970; times in UTC.

    11/21/2026 14:05:23|worker|ctl|I|execd on n4 registered; Open Cluster Scheduler: 2026-11-21 14:05:23.123456|…
    """
    found = {}
    for line in messages.splitlines():
        if match := re.fullmatch(r"([\d/-]+ [\d:]+)(?:\.\d+)?\|.*\|execd on (\S+) registered", line):
            form = "%Y-%m-%d %H:%M:%S" if "-" in match[1] else "%m/%d/%Y %H:%M:%S"
            found[match[2]] = float(calendar.timegm(time.strptime(match[1], form)))
    return found


def wait_until_well(bed: Bed, hosts: list[str], *, since: float = 0, limit: float = 180) -> None:
    """Wait until these hosts can be used; TestbedError after ``limit`` seconds.

    since: when they were switched on, in seconds since 1970; 0 when only their link was cut.
    """
    wanted = [host for host in NODES if host in hosts or (MASTER in hosts and cluster.stands(bed, host) == "up")]
    if not wanted and MASTER not in hosts:
        return
    end = time.monotonic() + limit
    while True:
        for host in hosts:
            if ended := boot.ended(bed.host_log(host)):
                raise TestbedError(f"{host}: a daemon has ended: {ended}", why=_last_words(bed, [host]))
        queues = _look(bed)
        booted = registered(_messages(bed, MASTER))
        late = [
            host
            for host in wanted
            if not all(well for name, well in queues.items() if name.endswith(f"@{host}"))
            or (host in hosts and booted.get(host, 0) < int(since))
        ]
        if queues and not late:
            return
        if time.monotonic() > end:
            now = ", ".join(late) if queues else "the qmaster does not answer"
            last = _last_words(bed, [MASTER, *late[:2]])
            raise TestbedError(f"Grid Engine is not ready after {limit:.0f} s", why=f"{now}\n{last}")
        time.sleep(0.1)


def ask(bed: Bed, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the scheduler; subprocess.TimeoutExpired when it does not respond."""
    return cluster.ask(bed, MASTER, command, _UTC)


def _look(bed: Bed) -> dict[str, bool]:
    """Empty while the qmaster does not answer."""
    try:
        done = ask(bed, ["qstat", "-f", "-xml"])
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return usable(done.stdout) if done.returncode == 0 else {}


def _messages(bed: Bed, host: str) -> str:
    """The messages of the daemon of a host."""
    folder = bed.disk(host) / ("qmaster" if host == MASTER else f"execd/{host}")
    file = folder / "messages"
    return file.read_text(errors="replace") if file.exists() else ""


def _last_words(bed: Bed, hosts: list[str]) -> str:
    """The last lines that may show the cause, from the messages of the daemons of these hosts."""
    found = []
    for host in hosts:
        found += [f"{host}: {line}" for line in _messages(bed, host).splitlines() if re.search(r"\|[EC]\|", line)][-3:]
    return "\n".join(found)
