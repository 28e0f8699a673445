"""What a job has found out about hosts goes into the user's memory of them, in the home folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.errors import HostLostError
from gridtf.run import hosthistory
from gridtf.run.hosthistory import LOST, STALLED, Finding
from gridtf.states import JobState

_LIMIT = 2.0  # seconds: the home folder may hang


def remember(job: LaunchedJob, hosts: HostMonitor, end: Verdict, error: Exception | None, stalled: str = "") -> None:
    """Remember the host that has ended an attempt, if one has.

    Where all of several other hosts are silent, the launcher's host may be the one that is cut off.

    Args:
        hosts: The hosts of the attempt, whose processes have been ended.
        end: The verdict.
        error: What has ended the attempt; None: a task or a signal.
        stalled: The host that the tasks wait for; empty: none.
    """
    named = error.host if isinstance(error, HostLostError) else (end.cause or {}).get("host")
    lost = named in hosts.left() and (len(hosts.hosts) == 2 or not hosts.alone(job.here))
    found = [(named, LOST)] * (end.state == JobState.NODE_FAIL and lost) + [(stalled, STALLED)] * bool(stalled)
    cluster = job.scheduler.login.cluster(job.system.environ)
    noted = [Finding(str(host), job.job_id, job.system.time(), kind, end.reason, cluster) for host, kind in found]
    if noted:
        aside(job, lambda: hosthistory.note(job.system.environ, noted))


def aside(job: LaunchedJob, write: Callable[[], None]) -> None:
    """Write something into the home folder, by a process that may hang there: this one waits for it for two seconds.

    Args:
        write: Writes it.
    """
    with contextlib.suppress(OSError):  # too many processes, or the child has been reaped already
        child, begin = job.system.fork(write), job.system.monotonic()
        while not os.waitpid(child, os.WNOHANG)[0] and job.system.monotonic() - begin < _LIMIT:
            job.system.sleep(0.01)
