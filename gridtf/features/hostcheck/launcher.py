"""The launcher's half: what the hosts are to measure, and what follows from that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gridtf.bootstrap.launcher import api
from gridtf.errors import BadHostError
from gridtf.features.hostcheck import CHECK, CHECKED, judge
from gridtf.run import hosthistory, recordtypes
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record, RunDir, listdir
from gridtf.text import counted, some

_LIMIT = 60.0  # seconds for all of it; a host that has not answered by then hangs
_IMPORT = 120.0  # seconds that are added where there are GPUs: a file server and busy CPUs may hold TensorFlow up
_CONFIRMATIONS = 2  # further measurements that must show the same
_TMP_BYTES = 16 << 20  # that each host writes into TMPDIR at once
_RUN_BYTES = 64 << 20  # that all hosts write into the run directory, in all measurements together
_VALID = 86400.0  # seconds for which a host that has passed need not be checked again

Pairs = Sequence[tuple[str, str]]  # of hosts, none of which is in two of them


class InLauncher(api.Feature):
    """One check, of the first attempt in an allocation."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {CHECKED: recordtypes.Checked}

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        self._job, self._system, self._again = view.job, view.job.system, before is not None
        # host -> what it has measured last; late: seconds that its clock is behind, and the way of the message
        self._answers: dict[str, Record] = {}
        self._number = 0
        self._hung: list[str] = []
        self._alike: dict[str, dict[str, str]] = {}
        self._missing: dict[str, dict[str, str]] = {}
        self._told = ""

    def heard(self, host: str, content: Record) -> None:
        self._answers[host] = {**content, "late": self._system.time() - content["time"]}

    def met(self) -> None:
        bad = {} if self._again else self._bad()
        if not bad:
            return
        told, hint = some([f"{host}: {what}" for host, what in bad.items()]), f"see {self.view.attempt.check}"
        replaced, then = tuple(self.view.replaceable([*bad])), self._job.spec.on_bad_host
        if replaced and (len(replaced) == len(bad) or then == "warn"):
            raise BadHostError(told, why=f"spare hosts take the place of {some(replaced)}", hint=hint, hosts=replaced)
        if then == "end":
            raise BadHostError(told, why='on_bad_host is "end"', hint=hint)
        self._told = told
        self.view.reporter.notice(told, hint)

    def status(self) -> str:
        return self._told

    def _bad(self) -> dict[str, str]:
        """Check the hosts, unless that is not due. Returns host -> what is wrong with it."""
        with_tasks = {task.host for task in self.view.tasks}
        self._tested = [host for host in self.view.hosts.hosts if host in with_tasks]
        self._limit = _LIMIT + _IMPORT * any(task.gpus for task in self.view.tasks)
        self._deadline = self._system.monotonic() + self._limit
        run, array = self._job.run, RunDir(self._job.run.path.parents[1])
        further = run.path.parent == array.elements and run.path.name != "1" and array.sweep.name in listdir(array.path)
        recent = self.view.aside(self._passed).splitlines()
        needless = {
            "the first attempt has done that": self.view.reporter.attempt.number > 1,
            "the first element of the sweep does that": further,
            "they have passed a check within a day": {*recent}.issuperset(self._tested),
        }
        if why := next((why for why, applies in needless.items() if applies), ""):
            self.view.reporter.note("check", text=f"the hosts are not checked: {why}")
            return {}
        begin = self._system.monotonic()
        self.view.hosts.listen()
        values = self._measure()
        found, again = judge.suspects(values, self._alike), 0
        while found and again < _CONFIRMATIONS:
            also, again = judge.suspects(self._measure(), self._alike), again + 1
            found = {key: also[key] for key in found if key in also}
        bad: dict[str, str] = {}
        for (host, _), what in judge.explained(found).items():
            bad[host] = ", ".join(filter(None, (bad.get(host), what)))
        if 2 * len(self._hung) <= len(self._tested):
            bad |= dict.fromkeys(self._hung, f"its check did not end within {self._limit:.0f} s")
        self._record(values, bad, self._system.monotonic() - begin)
        return bad

    def _passed(self) -> str:
        """The hosts that have passed a check lately, one a line."""
        environ, since = self._system.environ, self._system.time() - _VALID
        return "\n".join(hosthistory.checked_since(environ, self._job.scheduler.login.cluster(environ), since))

    def _measure(self) -> dict[str, dict[str, float]]:
        """Measure on all hosts that still answer. Returns host -> name of a value -> the value."""
        hosts = [host for host in self._tested if host not in self._hung]
        share = _RUN_BYTES // (1 + _CONFIRMATIONS) // max(3, len(hosts))
        order = {"tmp": ["", _TMP_BYTES], "run": [str(self.view.attempt.path), share]}
        with_gpus = {task.host for task in self.view.tasks if task.gpus}  # the GPUs of other hosts are not the job's
        kinds = {host: ["gpu"] * (host in with_gpus) + ["share", "cpu", "memory", "tmp", "run"] for host in hosts}
        answers = self._ask({host: {**order, "measures": kinds[host]} for host in hosts}, "alone")
        able = {host: answer["port"] for host, answer in answers.items() if answer["port"]}
        ways: dict[str, dict[str, float]] = {}
        for pairs in judge.rounds([*able]):
            judge.take_best(ways, self._measure_pairs(pairs, able))
        clocks = {host: {judge.CLOCK: answer["late"]} for host, answer in answers.items()}
        return {host: {**answer["values"], **ways.get(host, {}), **clocks[host]} for host, answer in answers.items()}

    def _measure_pairs(self, pairs: Pairs, ports: Mapping[str, int]) -> dict[tuple[str, str], dict[str, float]]:
        """Measure the ways within pairs of hosts. Returns the pair -> name of a value -> the value."""
        orders: dict[str, Record] = {}
        for serving, asking in pairs:
            order = {"measures": ["pair"], "token": os.urandom(32).hex()}
            peer = [self.view.hosts.reports.published[serving]["address"], ports[serving]]
            orders |= {serving: {**order, "peer": None}, asking: {**order, "peer": peer}}
        answers = {host: answer["values"] for host, answer in self._ask(orders, "in pairs").items()}
        ways = {pair: [answers.get(host, {}).get("bandwidth") for host in pair] for pair in pairs}
        # where an end has not measured it, as when other programs connect to the host, it is not known: it is not 0
        return {pair: {**answers[pair[1]], "bandwidth": min(ends)} for pair, ends in ways.items() if None not in ends}

    def _ask(self, orders: Mapping[str, Record], how: str) -> dict[str, Record]:
        """Have hosts measure at the same time. Returns host -> its answer; a host that gives none hangs.

        Args:
            orders: Host -> what it is to measure.
            how: For the status.
        """
        if self._system.monotonic() >= self._deadline:
            return {}
        self._number += 1
        answers = self._answers
        for host, order in orders.items():
            self.view.hosts.listener.send(host, CHECK, {"number": self._number, "order": order})
        waiting, left = [*orders], self._limit
        while waiting and left > 0:
            self.view.reporter.report("waiting", f"the hosts are checked, {how}: {some(waiting)}")
            self.view.wait(left)
            self.view.hosts.read()
            self.view.hosts.check()
            waiting = [host for host in waiting if answers.get(host, {}).get("number") != self._number]
            left = self._deadline - self._system.monotonic()
        self._hung += waiting
        told = {host: answers[host] for host in orders if host not in waiting}
        for host, answer in told.items():
            self._alike.setdefault(host, {}).update(answer["alike"])
            self._missing.setdefault(host, {}).update(answer["missing"])
        return told

    def _record(self, values: judge.Values, bad: Mapping[str, str], seconds: float) -> None:
        """Tell users what was found, and remember it where no other jobs have disturbed the check."""
        job, reporter, now = self._job, self.view.reporter, self._system.time()
        gpus = sum(task.gpus for task in self.view.tasks)
        spent = f", {seconds * gpus:.0f} GPU-seconds" if gpus else ""
        lacking = {name: f"{name}: {why}" for missing in self._missing.values() for name, why in missing.items()}
        without = f"; not measured: {some([*lacking.values()])}" if lacking else ""
        count = counted(len(self._tested), "host")
        outcome = "" if len(self._tested) == 1 else f": {some(list(bad)) or 'none'} far from the others"
        reporter.note("check", hosts=[*bad], text=f"{count} checked in {seconds:.1f} s{spent}{outcome}{without}")
        record = {"nonce": reporter.nonce, "time": now, "seconds": seconds, "gpu_seconds": seconds * gpus}
        record |= {"values": values, "missing": self._missing, "bad": bad}
        reporter.recorder.write(self.view.attempt.check, json.dumps(record, indent=1))
        environ = self._system.environ
        if (cluster := job.scheduler.login.cluster(environ)) and job.scheduler.injob.is_exclusive(job.request):
            about = job.job_id, now, hosthistory.CHECK
            # a check that did not end may be one that somebody has stopped
            measured = [host for host in bad if host not in self._hung]
            noted = [hosthistory.Finding(host, *about, bad[host], cluster) for host in measured]
            well = [host for host in values if len(values[host]) > 1 and host not in bad]  # more than the clock
            passed = well if len(values) >= judge.FEWEST else ()
            self.view.aside(lambda: hosthistory.note(environ, noted))
            self.view.aside(lambda: hosthistory.note_checked(environ, passed, now, cluster))
