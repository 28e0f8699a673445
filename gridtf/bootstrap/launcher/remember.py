"""What a job has found out about hosts goes into the user's memory of them, in the home folder."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import HostLostError
from gridtf.host import network, processes
from gridtf.run import hosthistory
from gridtf.run.hosthistory import LOST, STALLED, Finding
from gridtf.states import JobState

_LIMIT = 2.0  # seconds: the home folder may hang
_ANSWER, _QUESTION = 2.0, 4.0  # seconds for the host to answer, and for all that is asked about it


def remember(job: LaunchedJob, hosts: HostMonitor, end: Verdict, error: Exception | None) -> None:
    """Remember the host that has ended an attempt, if one has, and those that are suspected.

    Where all of several other hosts are silent, the launcher's host may be the one that is cut off. A host that answers
    and is in service is well: what was silent is its agent, which somebody may have stopped or killed.

    Args:
        hosts: The hosts of the attempt, whose processes have been ended.
        end: The verdict.
        error: What has ended the attempt; None: a task or a signal.
    """
    named = error.host if isinstance(error, HostLostError) else (end.cause or {}).get("host")
    lost = named in hosts.left() and (len(hosts.hosts) == 2 or not hosts.alone(job.here))
    found = []
    if end.state == JobState.NODE_FAIL and lost:
        fault = aside(job, lambda: _fault(job, hosts, str(named)), _QUESTION)
        found = [(named, LOST, f"{end.reason}; {fault}")] * bool(fault)
    found += [(host, STALLED, why) for host, why in end.suspects]
    cluster, now = job.scheduler.login.cluster(job.system.environ), job.system.time()
    noted = [Finding(str(host), job.job_id, now, kind, why, cluster) for host, kind, why in found]
    if noted:
        aside(job, lambda: hosthistory.note(job.system.environ, noted))


def _fault(job: LaunchedJob, hosts: HostMonitor, host: str) -> str:
    """What is wrong with a host that was lost; empty where it answers at a port of its tasks, and is in service."""
    known = hosts.reports.published.get(host) or {"ports": {}}
    port = next(iter(known["ports"].values()), None)  # a spare host has none
    if port and not network.answers(known["address"], port, _ANSWER):
        return "it does not answer"
    return job.scheduler.injob.host_fault(host)


def aside(job: LaunchedJob, work: Callable[[], str | None], limit: float = 0.0) -> str:
    """Do something by a process that may hang, such as in the home folder: this one waits for it for some seconds.

    Args:
        work: Does that.
        limit: Seconds; 0: two.

    Returns:
        What it has returned; empty where it has not in time.
    """

    def run(line: socket.socket) -> None:
        processes.keep_only([line.fileno()])
        line.sendall((work() or "").encode())

    helper, said, begin = Helper(0.0, job.system, wakes=False), b"", job.system.monotonic()
    helper.start(run)
    while helper.pid is not None and job.system.monotonic() - begin < (limit or _LIMIT):
        job.system.sleep(0.01)
        said += helper.hear()
    ended = helper.pid is None
    helper.end(signal.SIGKILL)
    return said.decode() if ended else ""
