"""What a job has found out about hosts goes into the user's memory of them, in the home folder."""

from __future__ import annotations

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher import api
from gridtf.states import JobState

_QUESTION = 4.0  # seconds for all that is asked about a host
_ANSWER = 2.0  # seconds of these for the host itself


class InLauncher(api.Feature):
    """Remembers the host that has ended an attempt, if one has, and those that are suspected.

    Where all of several other hosts are silent, the launcher's host may be the one that is cut off. A host that answers
    and is in service is well: what was silent is its agent, which somebody may have stopped or killed.
    """

    vital = False

    def concluded(self, end: Verdict) -> None:
        view, hosts = self.view, self.view.hosts
        named = end.lost or (end.cause or {}).get("host")
        lost = named in hosts.left() and (len(hosts.hosts) == 2 or not hosts.alone(view.job.here))
        fault = ""
        if end.state == JobState.NODE_FAIL and lost:
            fault = view.aside(lambda: self._fault(str(named)), _QUESTION)
        if fault or end.suspects:
            view.aside(lambda: self._note(end, str(named), fault))

    def _fault(self, host: str) -> str:
        """What is wrong with a host that was lost; empty where it answers at a port of its tasks, and is in service."""
        from gridtf.host import network

        known = self.view.hosts.reports.published.get(host) or {"ports": {}}
        port = next(iter(known["ports"].values()), None)  # a spare host has none
        if port and not network.answers(known["address"], port, _ANSWER):
            return "it does not answer"
        return self.view.job.scheduler.injob.host_fault(host)

    def _note(self, end: Verdict, lost: str, fault: str) -> str:
        from gridtf.run import hosthistory

        job = self.view.job
        found = [(lost, hosthistory.LOST, f"{end.reason}; {fault}")] * bool(fault)
        found += [(host, hosthistory.STALLED, why) for host, why in end.suspects]
        environ, now = job.system.environ, job.system.time()
        cluster = job.scheduler.login.cluster(environ)
        noted = [hosthistory.Finding(host, job.job_id, now, kind, why, cluster) for host, kind, why in found]
        hosthistory.note(environ, noted)
        return ""
