"""The launcher's half, the only one: it judges the newest samples of an attempt, and names who is slow."""

from __future__ import annotations

from gridtf.bootstrap.agent.sampler import sample_interval
from gridtf.bootstrap.launcher import api
from gridtf.features.straggler import judge
from gridtf.features.straggler.judge import Straggler
from gridtf.values import as_dict

_IN_A_ROW = 3  # judgements that must agree until somebody is named
_WITHDRAWN = 6  # judgements that must not, until the name is withdrawn


class Feature(api.Feature):
    """Looks after the samples of an attempt.

    Attributes:
        named: Who is slow; None where nobody is known to be.
    """

    vital = False

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        trains = [task for task in view.tasks if task.trains]
        # the clients of parameter servers, and what is no cluster, do not wait for each other in each step
        lone = any(task.row.alone if task.row.trains else task.row.in_cluster for task in view.tasks)
        self._tasks = frozenset(() if lone else (task.name for task in trains))
        self._hosts = sorted({task.host for task in trains})
        self._interval = sample_interval(view.job.spec.sample_interval, len(self._hosts))
        enough = self._tasks and self._interval and len(self._hosts) >= judge.FEWEST_HOSTS
        self._next = float("-inf") if enough else float("inf")  # when it is looked at next
        self._newest = 0.0  # when the last sample was taken that was judged
        self._last: tuple[str, str] | None = None  # host and cause of the last judgement
        self._agree = self._differ = 0
        self.named: Straggler | None = None

    def look(self) -> None:
        now = self.view.job.system.monotonic()
        if now < self._next or self.view.now is None:
            return
        self._next = now + self._interval / 4
        reports = self.view.hosts.reports
        samples = {host: reports.samples.get(host, ()) for host in self._hosts}
        newest = max((known[-1]["time"] for known in samples.values() if known), default=0.0)
        if newest < self._newest + self._interval or any(len(known) < judge.WINDOW for known in samples.values()):
            return
        self._newest = newest
        found = judge.find(samples, self._tasks)
        key = (found.host, found.what) if found else None
        self._agree = self._agree + 1 if key == self._last else 1
        self._last = key
        named = (self.named.host, self.named.what) if self.named else None
        self._differ = 0 if key == named else self._differ + 1
        if found and key != named and self._agree >= _IN_A_ROW:
            self._name(found)
        elif self.named and not found and self._differ >= _WITHDRAWN:
            self._name(None)

    def status(self) -> str:
        return self.named.text if self.named else ""

    def _name(self, found: Straggler | None) -> None:
        """Tell users who it is; None: nobody any more."""
        before, self.named = self.named, found
        if about := found or before:
            where = {"task": about.task, "host": about.host, "what": about.what}
            more = {"text": about.text} if found else {}
            self.view.reporter.show("slow", as_dict(found) if found else {})
            self.view.reporter.note("slow" if found else "in step", **where, **more)
