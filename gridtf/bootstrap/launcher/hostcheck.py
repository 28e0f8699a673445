"""The check of the hosts before the tasks start (`check`): all measure at once, then in pairs, and are compared."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping

from gridtf.bootstrap.judge import hostcheck as judge
from gridtf.bootstrap.launcher import remember
from gridtf.bootstrap.launcher.contact import Contact
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.bootstrap.wire import messages
from gridtf.run import hosthistory, recordtypes
from gridtf.run.rundir import Record, RunDir, read_record
from gridtf.text import counted, some

_LIMIT = 60.0  # seconds for all of it; a host that has not answered by then hangs
_CONFIRMATIONS = 2  # further measurements that must show the same
_TMP_BYTES = 16 << 20  # that each host writes into TMPDIR at once
_RUN_BYTES = 64 << 20  # that all hosts write into the run directory, in all measurements together
_MOST_RUN_BYTES = 8 << 20  # that each host writes there at once
_VALID = 86400.0  # seconds for which a host that has passed need not be checked again
_NETWORK = frozenset({"bandwidth", "latency"})


class HostCheck:
    """One check.

    Args:
        plan: The attempt, all of whose hosts have reported.
        hosts: Its hosts.
        reporter: What users are told.
        contact: Waits.
    """

    def __init__(
        self, job: LaunchedJob, plan: AttemptPlan, hosts: HostMonitor, reporter: Reporter, contact: Contact
    ) -> None:
        self._job, self._plan, self._hosts, self._reporter, self._contact = job, plan, hosts, reporter, contact
        self._system = job.system
        self._number = 0
        self._deadline = self._system.monotonic() + _LIMIT
        self._hung: list[str] = []
        self._alike: dict[str, dict[str, str]] = {}
        self._missing: dict[str, dict[str, str]] = {}
        self._ports: dict[str, int] = {}

    def run(self) -> dict[str, str]:
        """Check the hosts, unless that is not due. Returns host -> what is wrong with it."""
        if why := self._needless():
            self._reporter.note("check", text=f"the hosts are not checked: {why}")
            return {}
        begin = self._system.monotonic()
        self._hosts.listen()
        first = ["gpu"] if any(task.gpus for task in self._plan.tasks) else []
        values = self._measure({*first, "cpu", "memory", "tmp", "run"} | _NETWORK)
        found = judge.suspects(values, self._alike)
        for _ in range(_CONFIRMATIONS):
            if found:
                again = judge.suspects(self._measure(judge.kinds(found)), self._alike)
                found = {key: again[key] for key in found if key in again}
        bad = judge.by_host(found)
        if 0 < 2 * len(self._hung) <= len(self._plan.hosts):
            bad |= dict.fromkeys(self._hung, f"its check did not end within {_LIMIT:.0f} s")
        self._record(values, bad, self._system.monotonic() - begin)
        return bad

    def _needless(self) -> str:
        """Why the hosts need not be checked; empty where they do."""
        job = self._job
        array = RunDir(job.run.path.parents[1])
        if job.run.path.parent == array.elements:
            sweep = read_record(array.sweep, recordtypes.Sweep, own=True)
            if sweep and job.run.path.name != "1":
                return "the first element of the sweep does that"
        if self._reporter.attempt.number > 1:
            return "the first attempt has done that"
        return "they have passed a check within a day" if self._passed() else ""

    def _passed(self) -> bool:
        """Whether all hosts have passed a check of late."""
        environ, since = self._system.environ, self._system.time() - _VALID
        answer, answers = os.pipe()

        def look() -> None:
            if hosthistory.checked_since(environ, self._cluster, since).issuperset(self._plan.hosts):
                os.write(answers, b"yes")

        remember.aside(self._job, look)
        os.close(answers)
        os.set_blocking(answer, False)
        try:
            return bool(os.read(answer, 3))
        except BlockingIOError:  # the process still looks
            return False
        finally:
            os.close(answer)

    @property
    def _cluster(self) -> str:
        return self._job.scheduler.login.cluster(self._system.environ)

    def _measure(self, kinds: Collection[str]) -> dict[str, dict[str, float]]:
        """Measure on all hosts that still answer. Returns host -> name of a value -> the value."""
        hosts = [host for host in self._plan.hosts if host not in self._hung]
        share = min(_MOST_RUN_BYTES, _RUN_BYTES // (1 + _CONFIRMATIONS) // len(hosts or [""]))
        local = [kind for kind in ("gpu", "cpu", "memory", "tmp", "run") if kind in kinds]
        order = {"measures": local, "tmp": [_TMP_BYTES], "run": [str(self._plan.attempt.path), share]}
        found = {
            host: dict(answer["values"]) for host, answer in self._ask(dict.fromkeys(hosts, order), "alone").items()
        }
        if _NETWORK.intersection(kinds):
            pairs = []
            for pairs_now in judge.rounds([host for host in found if self._ports.get(host)]):
                pairs += self._measure_pairs(pairs_now)
            for host, values in judge.best(pairs).items():
                found[host] |= values
        for host, values in found.items():
            values[judge.CLOCK] = self._hosts.reports.clock(host)
        return found

    def _measure_pairs(self, pairs: Collection[tuple[str, str]]) -> list[tuple[tuple[str, str], dict[str, float]]]:
        """Measure the ways within pairs of hosts, none of which is in two of them."""
        orders: dict[str, Record] = {}
        for serving, asking in pairs:
            token = os.urandom(32).hex()
            peer = [self._hosts.reports.published[serving]["address"], self._ports[serving]]
            for host, other in ((serving, None), (asking, peer)):
                orders[host] = {"measures": ["pair"], "peer": other, "token": token}
        answers = self._ask(orders, "in pairs")
        made = []
        for pair in pairs:
            ends = [answers[host]["values"] for host in pair if host in answers]
            ways = [end.get("bandwidth", 0.0) for end in ends]
            values = {"bandwidth": min(ways, default=0.0)}
            values |= {name: end[name] for end in ends for name in end.keys() & {"latency"}}
            if ends:
                made.append((pair, values))
        return made

    def _ask(self, orders: Mapping[str, Record], how: str) -> dict[str, Record]:
        """Have hosts measure at the same time. Returns host -> its answer; a host that gives none hangs.

        Args:
            orders: Host -> what it is to measure.
            how: For the status.
        """
        if self._system.monotonic() >= self._deadline:
            return {}
        self._number += 1
        answers = self._hosts.reports.checked
        for host, order in orders.items():
            self._hosts.listener.send(host, messages.CHECK, {**order, "number": self._number})
        while True:
            waits = [host for host in orders if answers.get(host, {}).get("number") != self._number]
            left = self._deadline - self._system.monotonic()
            if not waits or left <= 0:
                break
            self._reporter.report("waiting", f"the hosts are checked, {how}: {some(waits)}")
            self._contact.pause(min(left, self._contact.longest))
            self._hosts.read()
            self._hosts.check()
        self._hung += waits
        told = {host: answers[host] for host in orders if host not in waits}
        for host, answer in told.items():
            self._ports[host] = answer["port"]
            self._alike.setdefault(host, {}).update(answer["alike"])
            self._missing.setdefault(host, {}).update(answer["missing"])
        return told

    def _record(self, values: judge.Values, bad: Mapping[str, str], seconds: float) -> None:
        """Tell users what was found, and remember it where no other jobs have disturbed the check."""
        job, now = self._job, self._system.time()
        gpus = sum(task.gpus for task in self._plan.tasks)
        spent = f", {seconds * gpus:.0f} GPU-seconds" if gpus else ""
        lacking = {f"{name}: {why}": host for host, missing in self._missing.items() for name, why in missing.items()}
        without = f"; not measured: {some(list(lacking))}" if lacking else ""
        count = counted(len(self._plan.hosts), "host")
        outcome = "" if len(self._plan.hosts) == 1 else f": {some(list(bad)) or 'none'} far from the others"
        self._reporter.note("check", text=f"{count} checked in {seconds:.1f} s{spent}{outcome}{without}")
        record = {"nonce": self._plan.nonce, "time": now, "seconds": seconds, "gpu_seconds": seconds * gpus}
        record |= {"values": values, "missing": self._missing, "bad": bad}
        self._reporter.recorder.write(self._plan.attempt.check, json.dumps(record, indent=1))
        if (cluster := self._cluster) and job.scheduler.injob.is_exclusive(job.request):
            environ, about = self._system.environ, (job.job_id, now, hosthistory.CHECK)
            noted = [hosthistory.Finding(host, *about, why, cluster) for host, why in bad.items()]
            passed = [host for host in values if host not in bad] if len(values) >= judge.FEWEST else []

            def write() -> None:
                hosthistory.note(environ, noted)
                hosthistory.note_checked(environ, passed, now, cluster)

            remember.aside(job, write)
