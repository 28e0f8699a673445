"""A test bed of scripts/testbed for measurements, observed from outside. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marks import MARK, TASK_FILE, TASKS, gone_file, kill_folder, marked
from rounds import KILLS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "/mnt/shared/home/alice/bench"  # as the hosts see it
_LIMIT = 900.0
_SCRIPTED = "n1"  # the host that the job script runs on
_OTHERS = ("n2", "n3", "n4")
_VICTIM = "n3"


class Cluster:
    """A test bed that is up.

    Args:
        kind: Its scheduler: slurm or sge.
        shared: Its shared folder, as this machine sees it.
    """

    def __init__(self, kind: str, shared: Path) -> None:
        self._kind = kind
        self.shared = shared
        self.folder = shared / "home/alice/bench"
        self.folder.mkdir()
        self._alice = self.folder.parent.stat().st_uid
        os.chown(self.folder, self._alice, self.folder.parent.stat().st_gid)

    def on_login(self, *command: str, text: str = "") -> str:
        """Run a command as alice on the login host, with ``text`` as input; returns its output."""
        return tool(self._kind, "exec", "--cwd", "/mnt/shared/home/alice", "login", *command, text=text)

    def submitted(self, program: str) -> dict[str, float]:
        """Way -> median in seconds of `program submit` on the login host."""
        self.on_login(sys.executable, program, "submit", FOLDER)
        return _medians(self._times("submit.json"))

    def script(self, program: str, verb: str) -> str:
        """A job script that runs `program verb`, and makes the file ``failed`` when it fails."""
        run = shlex.join([sys.executable, program, verb, FOLDER])
        return f"#!/bin/bash\n{run} || touch {FOLDER}/failed\n"

    def launched(self, job: str, verb: str) -> dict[str, list[float]]:
        """Way -> seconds, as measured by such a job."""
        self._await(job, self.folder / f"{verb}.json")
        return self._times(f"{verb}.json")

    def gone(self, job: str, ways: Sequence[str]) -> dict[str, float]:
        """Way -> median in seconds from the SIGKILL of one task until no process is left; the job starts the ways."""
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(KILLS):
            for way in ways:
                marks = kill_folder(self.folder, number, way)
                self._await(job, marks)
                times[way].append(self._kill_one(job, marks))
                gone_file(marks).touch()
        return _medians(times)

    def processes(self) -> list[int]:
        """The pids of alice's processes on the hosts of jobs."""
        return self._family(self._names(), b"")

    def outer_pid(self, host: str, pid: int) -> int:
        """This machine's id of one of alice's processes.

        Args:
            host: The host that it runs on.
            pid: Its id there.
        """
        names = self._names()
        inside = (one for one in self.processes() if names[_name_space(one)] == host)
        return next(one for one in inside if _inner_pid(one) == pid)

    def _names(self) -> dict[str, str]:
        """Name space -> host, of the hosts of jobs."""
        from testbeds import bed as beds

        hosts = beds.require(self._kind).hosts
        return {_name_space(hosts[host].pid): host for host in (_SCRIPTED, *_OTHERS)}

    def _kill_one(self, job: str, marks: Path) -> float:
        end = time.monotonic() + _LIMIT
        while len(marked(marks)) < TASKS:
            self._check(job, end)
            time.sleep(0.02)
        time.sleep(1.0)  # for the start to finish
        names = self._names()
        mark = f"{MARK}={FOLDER}/{marks.name}\0".encode()
        family = self._family(names, mark)
        os.kill(next(pid for pid in family if names[_name_space(pid)] == _VICTIM and _is_task(pid)), signal.SIGKILL)
        begin = time.monotonic()
        while family := [pid for pid in family if self._belongs(pid, names, mark)] or self._family(names, mark):
            self._check(job, end)
            time.sleep(0.005)
        return time.monotonic() - begin

    def _family(self, names: Mapping[str, str], mark: bytes) -> list[int]:
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and self._belongs(int(pid), names, mark)]

    def _belongs(self, pid: int, names: Mapping[str, str], mark: bytes) -> bool:
        """Whether a process is one of a way: any of alice's on a host without the job's script.

        Args:
            pid: Its process id.
            names: Name space -> host.
            mark: The entry in the environment of a way's processes on the host of the job's script.
        """
        try:
            process = Path(f"/proc/{pid}")
            if process.stat().st_uid != self._alice:
                return False
            host = names.get(_name_space(pid))
            return host in _OTHERS or (host == _SCRIPTED and mark in (process / "environ").read_bytes())
        except OSError:  # it is gone
            return False

    def _await(self, job: str, path: Path) -> None:
        """Wait for a file of the job."""
        end = time.monotonic() + _LIMIT
        while not path.exists():
            self._check(job, end)
            time.sleep(0.1)

    def _check(self, job: str, end: float) -> None:
        """SystemExit when the job has failed, or the time is over."""
        if time.monotonic() < end and not (self.folder / "failed").exists():
            return
        log = self.folder / "job.log"
        raise SystemExit(f"job {job} does not go on: {log.read_text() if log.exists() else 'it has not begun'}")

    def _times(self, name: str) -> dict[str, list[float]]:
        times: dict[str, list[float]] = json.loads((self.folder / name).read_text())
        return times


@contextlib.contextmanager
def test_bed(kind: str, needs: Mapping[str, str], *options: str) -> Iterator[Cluster]:
    """Bring up a separate test bed, and take it down in any case.

    Args:
        kind: Its scheduler: slurm or sge.
        needs: Command -> the package that contains it, for further commands on its hosts.
        options: Further words for `scripts/testbed up`.
    """
    sys.path.insert(0, str(ROOT / "scripts"))
    from testbeds import packages
    from testbeds.errors import TestbedError

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        packages.need(needs, print)
    except TestbedError as error:
        raise SystemExit(str(error)) from None
    state = Path(f"/run/gridtf-bench-{os.getpid()}")
    os.environ["GRIDTF_TESTBED_STATE"] = str(state)
    try:
        tool(kind, "up", "--quiet", *options)
        yield Cluster(kind, state / kind / "shared")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        tool(kind, "down")


def tool(kind: str, *arguments: str, text: str = "") -> str:
    """Run a command of scripts/testbed; returns its output. SystemExit when it fails."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/testbed"), kind, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
    )
    if done.returncode:
        raise SystemExit(f"scripts/testbed {kind} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def _medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {way: statistics.median(seconds) for way, seconds in times.items()}


def _name_space(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/uts").readlink())


def _inner_pid(pid: int) -> int:
    """The id of a process in its own name space: proc(5), NSpid."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def _is_task(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [f"{FOLDER}/{TASK_FILE}".encode()]
