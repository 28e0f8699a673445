"""The launcher's half: it asks all hosts where tasks are, for users and where the job seems to be stalled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from gridtf.bootstrap.judge.evidence import STOP, SUSPECT, Evidence
from gridtf.bootstrap.launcher import api
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.features.stalls import DUMP, STACKS
from gridtf.run import recordtypes, stacks
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record
from gridtf.states import TaskState
from gridtf.values import Value

_ANSWERS = 6.0  # seconds within which hosts answer; agents take at most four
_BETWEEN = 60.0  # seconds between two dumps, at most
_MOST_IN_ALL = 32 << 20  # characters of stacks in stacks.json
_SAME = 2.0  # seconds by which a clock that is corrected may move
HINT = "gridtf stacks, while the job runs, shows where all tasks are; on_stall and stall_after say what to do about it"


def quiet_since(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> float | None:
    """Since when no task of a job has done anything. Pure.

    Args:
        tasks: The tasks of the job.
        records: Task -> its record, with its times by one clock.

    Returns:
        Seconds since the epoch; None where a task does something, or no task that runs is one that trains by itself:
        servers may wait for clients.
    """
    running = [task for task in tasks if records.get(task.name, {}).get("state") == TaskState.RUNNING]
    if not any(task.trains and not task.served for task in running):
        return None
    since = [records[task.name].get("quiet") for task in running]
    return None if None in since else max(float(each) for each in since if each is not None)


def between(after: float) -> float:
    """Seconds between the two dumps of a job that is stalled after so many seconds. Pure."""
    return min(_BETWEEN, after / 4)


class Dump(Value):
    """What the hosts have answered.

    Attributes:
        tasks: Task -> its record with texts.
        missing: The hosts that have not answered.
        taken: When, by the monotonic clock.
    """

    tasks: Mapping[str, Record]
    missing: tuple[str, ...]
    taken: float

    def packed(self) -> Record:
        """The part of stacks.json that says where the tasks are."""
        return stacks.packed(self.tasks)

    def summary(self) -> str:
        """One line on where the tasks are."""
        packed = self.packed()
        return stacks.summary(stacks.groups(packed["tasks"], packed["stacks"]))

    def waits_for_disk(self) -> str:
        """The host with tasks that wait for a disk or a file system, where it is one of several; else empty."""
        halted = {task["host"] for task in self.tasks.values() for each in task["processes"] if each["state"] == "D"}
        return halted.pop() if len(halted) == 1 < len({task["host"] for task in self.tasks.values()}) else ""


class InLauncher(api.Feature):
    """Answers requests for stacks, and finds out whether the job is stalled."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {STACKS: {"id": recordtypes.Hex, "tasks": {str: recordtypes.Shown}}}
    asks: ClassVar[Mapping[str, Kind]] = {STACKS: recordtypes.StacksRequest}

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        self._system, self._spec = view.job.system, view.job.spec
        self._after = self._spec.seconds_to_stall  # None: it is not found out whether the job is stalled
        self._answers: dict[str, Record] = {}  # host -> its last answer
        self._asked: list[str] = []  # ids of requests that are to be answered
        self._id = ""  # of the dump that is being taken
        self._then: Callable[[Dump], None] = self._answer  # what is done with it
        self._deadline = 0.0
        self._next = float("-inf")  # when the job is judged again
        self._since: float | None = None  # since when the job has been quiet
        self._first: Dump | None = None
        self._stalled = ""  # where the tasks of a stalled job are
        self._host = ""  # the one host, of several, whose tasks it waits for, since its disk does not respond

    def asked(self, request: Record) -> None:
        self._asked.append(request["id"])

    def heard(self, host: str, content: Record) -> None:
        self._answers[host] = content

    def look(self) -> None:
        if self.view.now is None:
            return
        now = self._system.monotonic()
        if self._id:
            hosts = self.view.hosts.hosts
            if (
                sum(answer["id"] == self._id for answer in self._answers.values()) == len(hosts)
                or now >= self._deadline
            ):
                self._id, taken = "", self._taken(self._id)
                self._then(taken)
        elif self._asked:
            self._ask(self._answer)
        elif self._after is not None and now >= self._next:
            self._next = now + min(1.0, between(self._after))
            self._judge(now, self._after)

    def status(self) -> str:
        if not self._stalled or self._since is None:
            return ""
        seconds = self._system.time() - self._since
        how_long = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        return f"stalled for {how_long}: {self._stalled}"

    def stop(self) -> Evidence | None:
        on_stall = self._spec.on_stall
        if self._waits() or not self._stalled or on_stall not in ("end", "restart"):
            return None
        return Evidence(STOP, self.status(), hint=HINT, final='on_stall is "end"' if on_stall == "end" else "")

    def known(self, end: Evidence) -> Iterable[Evidence]:
        # a file server that holds records up as well is the reason, and not the one host whose task writes to it
        if self._host and not self.view.reporter.unrecorded:
            yield Evidence(SUSPECT, self._host, "the job waited for a disk or a file system of this host")

    def _waits(self) -> bool:
        """Whether the launcher itself waits for something, such as an evaluator."""
        now = self.view.now
        return bool(now and (now.ended or now.awaited))  # since the stacks were taken that show that the job is stalled

    def _ask(self, then: Callable[[Dump], None]) -> None:
        self._id, self._then = os.urandom(8).hex(), then
        self._deadline = self._system.monotonic() + _ANSWERS
        self.view.hosts.listener.send_all(DUMP, {"id": self._id})

    def _taken(self, asked: str) -> Dump:
        found: dict[str, Record] = {}
        left, missing = _MOST_IN_ALL, []
        for host in self.view.hosts.hosts:
            answer = self._answers.pop(host, {"id": ""})
            if answer["id"] != asked:
                missing.append(host)
                continue
            for name, task in answer["tasks"].items():
                left -= sum(len(process.get("text", "")) for process in task["processes"])
                found[name] = {"host": host, "processes": task["processes"] if left > 0 else []}
        ordered = {task.name: found[task.name] for task in self.view.tasks if task.name in found}
        return Dump(ordered, tuple(missing), self._system.monotonic())

    def _answer(self, taken: Dump) -> None:
        for request in self._asked[-1:]:  # one answer is enough for all of them
            reporter = self.view.reporter
            record = {"nonce": reporter.nonce, "id": request, "time": self._system.time(), "missing": [*taken.missing]}
            reporter.recorder.write(self.view.attempt.stacks, json.dumps({**record, **taken.packed()}))
        self._asked = []

    # --- whether the job is stalled

    def _judge(self, now: float, after: float) -> None:
        since = None if self._waits() else quiet_since(self.view.tasks, self.view.hosts.reports.by_one_clock())
        if since is None or self._since is None or since > self._since + _SAME:
            if self._stalled:
                self._system.log("the job is not stalled any more")
                self.view.reporter.note("going on")
            self._since, self._first, self._stalled, self._host = since, None, "", ""
        if self._since is None or self._stalled or self._system.time() - self._since < after:
            return
        if self._first is None:
            if self._runs():
                self._ask(self._keep)
            else:
                self._next = now + between(after)
        elif now - self._first.taken >= between(after):
            self._ask(self._compare)

    def _runs(self) -> bool:
        """Whether the scheduler knows that the job is not suspended."""
        return self.view.job.scheduler.injob.suspended(self._system.environ) is False

    def _keep(self, taken: Dump) -> None:
        self._first = taken

    def _compare(self, taken: Dump) -> None:
        first, self._first = self._first, taken
        whole = first is not None and not first.missing and not taken.missing
        if first is not None and whole and stacks.equal(first.tasks, taken.tasks) and self._runs():
            self._stalled, self._host = taken.summary(), taken.waits_for_disk()
            self._system.log(self.status())
            self.view.reporter.note("stalled", text=self.status())
