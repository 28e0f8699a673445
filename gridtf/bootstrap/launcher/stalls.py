"""Where the tasks of a running job are: the launcher asks all hosts, for users and where the job is stalled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence

from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.run import stacks
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


class Stalls:
    """Looks after an attempt: answers requests for stacks, and finds out whether the job is stalled.

    Args:
        tasks: Its tasks.
        hosts: Its hosts.
        nonce: The nonce of the attempt.
        recorder: What writes the answer.

    Attributes:
        host: The one host, of several, whose tasks a stalled job waits for, since its disk does not respond; or empty.
    """

    def __init__(
        self, job: LaunchedJob, tasks: Sequence[PlacedTask], hosts: HostMonitor, nonce: str, recorder: Recorder
    ) -> None:
        self._job, self._tasks, self._hosts, self._nonce = job, tasks, hosts, nonce
        self._recorder, self._system = recorder, job.system
        self._after = job.spec.seconds_to_stall  # None: it is not found out whether the job is stalled
        self._asked: list[str] = []  # ids of requests that are to be answered
        self._id = ""  # of the dump that is being taken
        self._then: Callable[[Dump], None] = self._answer  # what is done with it
        self._deadline = 0.0
        self._next = float("-inf")  # when the job is judged again
        self._since: float | None = None  # since when the job has been quiet
        self._first: Dump | None = None
        self._stalled = self.host = ""  # where the tasks of a stalled job are

    def ask(self, request: str) -> None:
        """Have a request answered: its id."""
        self._asked.append(request)

    def look(self, *, waits: bool) -> str:
        """See what is new.

        Args:
            waits: Whether the launcher itself waits for something, such as an evaluator.

        Returns:
            That the job is stalled, for how long, and where its tasks are; empty where it is not.
        """
        now = self._system.monotonic()
        if self._id:
            answers = [host for host, answer in self._hosts.reports.stacks.items() if answer["id"] == self._id]
            if len(answers) < len(self._hosts.hosts) and now < self._deadline:
                return self._text()
            self._id, taken = "", self._taken(self._id)
            self._then(taken)
        elif self._asked:
            self._ask(self._answer)
        elif self._after is not None and now >= self._next:
            self._next = now + min(1.0, between(self._after))
            self._judge(now, self._after, waits=waits)
        return self._text()

    def _text(self) -> str:
        if not self._stalled or self._since is None:
            return ""
        seconds = self._system.time() - self._since
        how_long = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        return f"stalled for {how_long}: {self._stalled}"

    def _ask(self, then: Callable[[Dump], None]) -> None:
        self._id, self._then = os.urandom(8).hex(), then
        self._deadline = self._system.monotonic() + _ANSWERS
        self._hosts.listener.send_all(messages.DUMP, {"id": self._id})

    def _taken(self, asked: str) -> Dump:
        found: dict[str, Record] = {}
        left, missing = _MOST_IN_ALL, []
        for host in self._hosts.hosts:
            answer = self._hosts.reports.stacks.pop(host, {"id": ""})
            if answer["id"] != asked:
                missing.append(host)
                continue
            for name, task in answer["tasks"].items():
                left -= sum(len(process.get("text", "")) for process in task["processes"])
                found[name] = {"host": host, "processes": task["processes"] if left > 0 else []}
        ordered = {task.name: found[task.name] for task in self._tasks if task.name in found}
        return Dump(ordered, tuple(missing), self._system.monotonic())

    def _answer(self, taken: Dump) -> None:
        for request in self._asked[-1:]:  # one answer is enough for all of them
            record = {"nonce": self._nonce, "id": request, "time": self._system.time(), "missing": [*taken.missing]}
            self._recorder.write(self._hosts.attempt.stacks, json.dumps({**record, **taken.packed()}))
        self._asked = []

    # --- whether the job is stalled

    def _judge(self, now: float, after: float, *, waits: bool) -> None:
        since = None if waits else quiet_since(self._tasks, self._hosts.reports.by_one_clock())
        if since is None or self._since is None or since > self._since + _SAME:
            if self._stalled:
                self._system.log("the job is not stalled any more")
            self._since, self._first, self._stalled, self.host = since, None, "", ""
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
        return self._job.scheduler.injob.suspended(self._system.environ) is False

    def _keep(self, taken: Dump) -> None:
        self._first = taken

    def _compare(self, taken: Dump) -> None:
        first, self._first = self._first, taken
        whole = first is not None and not first.missing and not taken.missing
        if first is not None and whole and stacks.equal(first.tasks, taken.tasks) and self._runs():
            self._stalled, self.host = taken.summary(), taken.waits_for_disk()
            self._system.log(self._text())
