"""Finds out, while an attempt runs, who holds the others up, from the samples that the hosts send."""

from __future__ import annotations

from collections.abc import Sequence

from gridtf.bootstrap.agent.sampler import sample_interval
from gridtf.bootstrap.judge import straggler
from gridtf.bootstrap.judge.straggler import Straggler
from gridtf.bootstrap.launcher.reports import Reports
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.placement import PlacedTask

_IN_A_ROW = 3  # judgements that must agree until somebody is named
_WITHDRAWN = 6  # judgements that must not, until the name is withdrawn


class Stragglers:
    """Looks after the samples of an attempt.

    Args:
        job: The job.
        tasks: Its tasks.
    """

    def __init__(self, job: LaunchedJob, tasks: Sequence[PlacedTask]) -> None:
        self._system = job.system
        trains = [task for task in tasks if task.trains]
        # the clients of parameter servers, and what is no cluster, do not wait for each other in each step
        lone = any(task.row.alone if task.row.trains else task.row.in_cluster for task in tasks)
        self._tasks = frozenset(() if lone else (task.name for task in trains))
        self._hosts = sorted({task.host for task in trains})
        self._interval = sample_interval(job.spec.sample_interval, len(self._hosts))
        enough = self._tasks and self._interval and len(self._hosts) >= straggler.FEWEST_HOSTS
        self._next = float("-inf") if enough else float("inf")  # when it is looked at next
        self._newest = 0.0  # when the last sample was taken that was judged
        self._last: tuple[str, str] | None = None  # host and cause of the last judgement
        self._agree = self._differ = 0
        self.named: Straggler | None = None

    def look(self, reports: Reports) -> bool:
        """Look at what is new.

        Args:
            reports: What the hosts have reported.

        Returns:
            Whether ``named`` has changed: the straggler; None where none is known.
        """
        now = self._system.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval / 4
        samples = {host: reports.samples.get(host, ()) for host in self._hosts}
        newest = max((known[-1]["time"] for known in samples.values() if known), default=0.0)
        if newest < self._newest + self._interval or any(len(known) < straggler.WINDOW for known in samples.values()):
            return False
        self._newest = newest
        found = straggler.find(samples, self._tasks)
        key = (found.host, found.what) if found else None
        self._agree = self._agree + 1 if key == self._last else 1
        self._last = key
        named = (self.named.host, self.named.what) if self.named else None
        self._differ = 0 if key == named else self._differ + 1
        if found and key != named and self._agree >= _IN_A_ROW:
            self.named = found
            return True
        if self.named and not found and self._differ >= _WITHDRAWN:
            self.named = None
            return True
        return False
