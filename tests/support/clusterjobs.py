"""Jobs on a test bed: submitted by an ordinary user on the login host, observed through the shared folder."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from gridtf.run.rundir import RunDir, read_record
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.jobs import StartedJob

PATIENCE = 240.0  # seconds that a test waits for what takes a tenth of it on a quiet machine
GRIDTF = ("python", "-c", "import sys; from gridtf.cli import main; sys.exit(main())")


def gridtf(
    bed: Bed, *words: str, user: str = "alice", timeout: float = 180, check: bool = True, **more: Any
) -> CompletedProcess[str]:
    """Run a gridtf command on the login host."""
    env = {"PYTHONPATH": str(CHECKOUT), "GRIDTF_SITE_CONFIG": "", **more.pop("env", {})}
    return bed.run("login", *GRIDTF, *words, user=user, timeout=timeout, check=check, env=env, **more)


def refused(bed: Bed, *words: str, **more: Any) -> str:
    """Submit a job that must be refused, with at most four lines and no run directory; returns the lines."""
    before = set(bed.home().glob("gridtf-runs/*"))
    done = gridtf(bed, "submit", "--scheduler", bed.kind, *words, "--", "true", check=False, **more)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert set(bed.home().glob("gridtf-runs/*")) == before
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4, done.stderr
    return done.stderr


def shares_gpus(bed: Bed) -> bool:
    """Whether steps of a job on this Slurm can share its GPUs."""
    version = bed.run("login", "srun", "--version").stdout.split()[-1]
    return version >= "22.05"


class ClusterJob(StartedJob):
    """A job that alice has submitted.

    Attributes:
        id: The scheduler's id of the job.
        seen_as: Its run directory as the hosts see it.
    """

    verb = "submit"
    patience = PATIENCE

    def __init__(self, bed: Bed, *words: str, user: str = "alice", **more: Any) -> None:
        self.bed, self.user = bed, user
        self.submitted = gridtf(bed, self.verb, "--json", *words, user=user, **more)
        answer = json.loads(self.submitted.stdout)
        self.id: str = answer["job_id"]
        self.seen_as: str = answer["run_dir"]
        path = Path(self.seen_as)
        self.run = RunDir(bed.shared / path.relative_to(SHARED) if path.is_relative_to(SHARED) else path)

    def gridtf(self, command: str, *words: str, check: bool = True, timeout: float = 180) -> CompletedProcess[str]:
        return gridtf(self.bed, command, self.seen_as, *words, user=self.user, check=check, timeout=timeout)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.gridtf("status", "--json").stdout))

    @property
    def output(self) -> str:
        log = self.run.log
        return log.read_text(errors="replace") if log.exists() else "(no job.log)"

    def said(self) -> str:
        return f"{super().said()}\n{self.bed.about(self.id)}"

    def running(self, count: int) -> dict[str, dict[str, Any]]:
        """Wait until ``count`` tasks run."""

        def all_run() -> dict[str, dict[str, Any]]:
            tasks = {name: task for name, task in self.tasks().items() if task["state"] == "RUNNING"}
            return tasks if len(tasks) == count else {}

        return dict(self.until(all_run, f"{count} tasks to run"))

    def verdict(self, seconds: float | None = None, attempt: int = 1) -> dict[str, Any]:
        path = self.run.attempt(attempt).verdict
        return dict(self.until(lambda: read_record(path), f"the verdict of attempt {attempt}", seconds))


def received(bed: Bed, *hosts: str, link: str = "eth0") -> dict[str, int]:
    """Host -> bytes that it has received through this link."""
    found = {}
    for host in hosts:
        text = bed.run(host, "cat", "/proc/net/dev").stdout
        (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{link}:"))
        found[host] = int(line.split(":")[1].split()[0])
    return found
