"""Makes a host of a test bed slow: less CPU time, a slow disk, a slow link, a neighbour that takes its CPU time.

Each host gets a control group (version 1), which goes with the bed, and its processes are moved there: a bed's hosts
share the CPUs of this machine, and without a quota the others would be as fast as the slow one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbeds import groups

from gridtf.run import jsonlines, recordtypes
from gridtf.run.rundir import Record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterjobs import ClusterJob

INTERVAL = 1.5  # seconds between two samples, in place of 5: everything is named sooner
_PERIOD = 100_000  # microseconds
_SHARES = "100000"  # in place of 1024: hosts have their quotas on a busy machine as well


def pids(bed: Bed) -> dict[str, int]:
    """Host, and hub -> its first process."""
    known = json.loads((bed.state / bed.kind / "bed.json").read_text())["hosts"]
    return {host: process["pid"] for host, process in known.items()}


class SlowHosts:
    """The control groups of hosts.

    Args:
        bed: The bed, which is up.
        hosts: Those that get groups.

    Attributes:
        cores: The quota that each of them has while it is well, once ``limit`` was called.
    """

    def __init__(self, bed: Bed, hosts: tuple[str, ...]) -> None:
        self.bed, self.hosts, self.cores = bed, hosts, 1.0
        self._name = groups.name(bed.state / bed.kind)
        if not all((groups.ROOT / kind / "cgroup.procs").exists() for kind in ("cpu", "blkio")) or not shutil.which(
            "tc"
        ):
            pytest.skip("needs control groups of version 1 with cpu and blkio, and tc")
        for host in hosts:
            for kind in ("cpu", "blkio"):
                self._group(kind, host).mkdir(parents=True, exist_ok=True)
            self._group("cpu", host).parent.joinpath("cpu.shares").write_text(_SHARES)
            for process in _all_in(pids(bed)[host]):
                for kind in ("cpu", "blkio"):
                    with contextlib.suppress(OSError):  # it has ended
                        (self._group(kind, host) / "cgroup.procs").write_text(str(process))

    def _group(self, kind: str, host: str) -> Path:
        return groups.ROOT / kind / self._name / host

    def limit(self, cores: float) -> None:
        """Give each host a quota."""
        self.cores = cores
        for host in self.hosts:
            self.quota(host, cores)

    def quota(self, host: str, cores: float) -> None:
        """Let a host have so many cores."""
        (self._group("cpu", host) / "cpu.cfs_quota_us").write_text(str(int(cores * _PERIOD)))

    def well(self) -> None:
        """Let the hosts have all CPUs again, as what else this machine does: outside of the groups."""
        for group in (self._group("cpu", host) for host in self.hosts):
            (group / "cpu.cfs_quota_us").write_text("-1")
            for process in (process for _ in range(3) for process in (group / "cgroup.procs").read_text().split()):
                with contextlib.suppress(OSError):  # it has ended
                    (groups.ROOT / "cpu" / "cgroup.procs").write_text(process)

    @contextlib.contextmanager
    def less_cpu(self, host: str, part: float) -> Iterator[None]:
        """Meanwhile a host has a part of its quota only."""
        self.quota(host, part * self.cores)
        try:
            yield
        finally:
            self.quota(host, self.cores)

    @contextlib.contextmanager
    def slow_disk(self, host: str, speed: int) -> Iterator[None]:
        """Meanwhile a host reads so many bytes a second."""
        device = self.bed.state.stat().st_dev
        limit = self._group("blkio", host) / "blkio.throttle.read_bps_device"
        limit.write_text(f"{os.major(device)}:{os.minor(device)} {speed}")
        try:
            yield
        finally:
            limit.write_text(f"{os.major(device)}:{os.minor(device)} 0")

    @contextlib.contextmanager
    def slow_link(self, host: str, rate: str) -> Iterator[None]:
        """Meanwhile the link of a host has this rate, such as ``8mbit`` (tc(8)), in both directions."""
        ends = ((pids(self.bed)[host], "eth0"), (pids(self.bed)["hub"], f"to0-{host}"))
        for pid, link in ends:
            _tc(pid, f"add dev {link} root tbf rate {rate} burst 16kb latency 400ms")
        try:
            yield
        finally:
            for pid, link in ends:
                _tc(pid, f"del dev {link} root")

    @contextlib.contextmanager
    def neighbour(self, host: str, count: int) -> Iterator[None]:
        """Meanwhile so many busy processes share the quota of a host."""
        group = self._group("cpu", host) / "cgroup.procs"
        begun = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
        try:
            for process in begun:
                group.write_text(str(process.pid))
            yield
        finally:
            for process in begun:
                process.kill()
                process.wait(60)


def training(
    bed: Bed, hosts: int = 4, minutes: int = 30, interval: float = INTERVAL, device: float = 0.0, more: str = ""
) -> ClusterJob:
    """A job in lock-step on this many hosts, once it makes steps.

    Args:
        device: Seconds of a step without work for a CPU.
        more: The host whose task has four times as much to compute as each other one; empty: none.
    """
    shutil.copy(CHECKOUT / "tests/support/lockstep.py", bed.home() / "lockstep.py")
    words = ("--nodes", str(hosts)) if bed.kind == "slurm" else ("--env", "PATH", "--pe", "rr", "--workers", str(hosts))
    options = (*bed.options, *words, "--time", str(minutes), "--sample-interval", str(interval))
    times = f"$([ $(uname -n) = '{more}' ] && echo 8 || echo 2)"
    command = ("bash", "-c", f"exec python lockstep.py data-$(uname -n) 256 {device} {times}")
    job = ClusterJob(bed, *options, "--env", "TF_CPP_MIN_LOG_LEVEL=2", "--", *command, cwd=bed.seen(bed.home()))
    job.running(hosts)
    job.until(lambda: any("20 " in text for text in job.logs().values()), "steps")
    return job


def events(job: ClusterJob) -> list[Record]:
    """Those that name a straggler, or withdraw the name."""
    known = [*jsonlines.read(job.attempt.events, recordtypes.Event)]
    return [event for event in known if event["event"] in ("slow", "in step")]


def named(job: ClusterJob) -> Iterator[tuple[str, str]]:
    """(host, what) of each straggler that was named."""
    return ((event["host"], event["what"]) for event in events(job) if event["event"] == "slow")


def _tc(pid: int, words: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", "tc", "qdisc", *words.split()], check=True, timeout=60)


def _all_in(first: int) -> list[int]:
    """The processes of the pid namespace of a host."""
    home, found = Path(f"/proc/{first}/ns/pid").readlink(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns/pid").readlink() == home:
                found.append(int(process.name))
    return found
