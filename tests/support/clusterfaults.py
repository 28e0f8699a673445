"""Faults of jobs on a test bed, and checks that no process of theirs is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterjobs import GRIDTF, PATIENCE, ClusterJob
from tests.support.jobs import until

NODES = ("n1", "n2", "n3", "n4")
EVERYWHERE = ("login", *NODES)
# Seconds after a fault, on a busy machine; by the default heartbeat_timeout, and by Slurm, it is noticed only after 30.
PROMPT = 25.0
GRIDTF_ENVIRON = {"PYTHONPATH": str(CHECKOUT), "GRIDTF_SITE_CONFIG": ""}
# A task with a child in a session of its own.
FAMILY = "setsid sleep 300 & sleep 300"
# Runs until the test makes a file called go.
UNTIL_GO = "until ls | grep -qx go; do sleep 0.2; done"
# Runs until the test releases its job.
UNTIL_RELEASED = "until [ -e $OUTPUT_DIR/go ]; do sleep 0.1; done"
# Ignores TERM, like its child.
STUBBORN = "trap '' TERM; setsid sleep 300 & while :; do sleep 0.2; done"


def started(
    bed: Bed, *words: str, nodes: int = 4, name: str = "fault", command: str = FAMILY, running: bool = True
) -> ClusterJob:
    """Start a job of one task per host, worker:0 on n1 and so on; with ``running``, wait until all run."""
    options = (*bed.options, "--name", name, "--nodes", str(nodes), "--tasks-per-node", "1")
    job = ClusterJob(bed, *options, "--kill-grace", "1", *words, "--", "bash", "-c", command)
    if running:
        job.running(nodes)
    return job


def release(job: ClusterJob) -> None:
    """Have tasks with UNTIL_RELEASED end."""
    (job.run.output / "go").touch()


def admin(bed: Bed, *argv: str, host: str = "ctl") -> str:
    """Run a command as root; returns its output."""
    return bed.run(host, *argv, user="root").stdout


def kill9(bed: Bed, host: str, *pids: int) -> None:
    """Kill processes with SIGKILL, all at once; of several, one may die with another before its turn."""
    bed.run(host, "kill", "-9", *map(str, pids), user="root", check=len(pids) == 1)


def parent(bed: Bed, host: str, pid: int) -> int:
    return int(admin(bed, "ps", "-o", "ppid=", "-p", str(pid), host=host))


def no_process_left(bed: Bed, hosts: Sequence[str] = NODES, seconds: float = 60) -> None:
    """Wait until no process of alice's is on these hosts, on each for at most ``seconds``."""

    def left(host: str) -> str:
        return bed.run(host, "pgrep", "-a", "-u", "alice", user="root", check=False).stdout

    def none(host: str) -> bool:
        return not left(host)

    for host in hosts:
        until(partial(none, host), f"no process to be on {host}", seconds, partial(left, host))


def ended(job: ClusterJob, state: str, *pieces: str, seconds: float = PATIENCE, attempt: int = 1) -> dict[str, Any]:
    """Wait for the verdict; it must have this state, and these pieces in its reason or hint."""
    verdict = job.verdict(seconds, attempt)
    text = f"{verdict['reason']}\n{verdict['hint']}"
    printed = job.agents_output(attempt)
    assert verdict["state"] == state, f"{verdict}\n{job.output}{printed}"
    for piece in pieces:
        assert piece in text, f"{verdict}\n{job.output}{printed}"
    return verdict


@contextmanager
def mounted(bed: Bed, host: str, *options: str) -> Iterator[None]:
    """Mount something on this host. options: of mount(8), the mount point last."""
    admin(bed, "mount", *options, host=host)
    try:
        yield
    finally:
        admin(bed, "umount", options[-1], host=host)


def forget_addresses(sge: Bed, *hosts: str) -> None:
    """Start sge_execd of these hosts again: it may have asked for an address meanwhile, and remembers the answer."""
    for host in hosts:
        admin(sge, "pkill", "-9", "-x", "sge_execd", host=host)
        sge.mend(host)


# Read from job.json: an agent that qrsh starts has not got the job's environment yet.
_LATE = """
import json as _json, sys as _sys, time as _time
from pathlib import Path as _Path
for _word in _sys.argv[2:3]:  # the run directory
    if (_job := _Path(_word, "job.json")).is_file():
        _time.sleep(float(_json.loads(_job.read_text())["spec"].get("env", {}).get("AGENT_DELAY", 0)))
"""


@contextmanager
def late_agents(bed: Bed, host: str) -> Iterator[None]:
    """On this host, delay the agents of jobs with the variable AGENT_DELAY by that many seconds."""
    node = CHECKOUT / "gridtf/bootstrap/agent/node.py"
    late = bed.home() / "late_node.py"
    late.write_text(f"{node.read_text()}\n{_LATE}")
    with mounted(bed, host, "--bind", bed.seen(late), str(node)):
        yield


@contextmanager
def begun(job: ClusterJob, command: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a gridtf command on this job in the background."""
    with job.bed.popen("login", *GRIDTF, command, job.seen_as, *words, env=GRIDTF_ENVIRON) as process:
        try:
            yield process
        finally:
            process.terminate()


def finished(process: subprocess.Popen[str], code: int, seconds: float = PATIENCE) -> str:
    """Wait for a process, which must end with this exit code; returns its output."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == code, out + err
    return out + err
