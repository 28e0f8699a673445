"""What the hosts of an attempt have reported to the launcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.run.rundir import Record
from gridtf.text import some

SAMPLES = 6  # of each host that are kept
_SKEW = 0.2  # seconds by which clocks of hosts may differ without being corrected: more than a message takes


class Reports:
    """Collects the messages of the hosts.

    Args:
        system: The launcher's host, whose clock counts.

    Attributes:
        published: Host -> its addresses, ports, GPUs and versions.
        tasks: Task name -> its record, as its host has last reported it.
        waits: Host -> what its agent waits for.
        checkpoint: Whether a host reports that a checkpoint was requested there.
        states: How many states of tasks have been reported.
        changed: Whether something has been reported since the owner of this set it to False.
        progressed: The same for the progress of tasks, and for samples.
        happened: Events of hosts and tasks, until the owner takes them: as in events.jsonl.
        sampled: Samples, and when logs have grown, until the owner takes them: messages of the kind SAMPLE.
        gone: Host -> why its agent has ended by itself.
        over: The hosts where no process of the job is left.
        samples: Host -> its newest samples, oldest first.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.published: dict[str, Record] = {}
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self.checkpoint = False
        self.states = 0
        self.changed = self.progressed = False
        self.happened: list[Record] = []
        self.sampled: list[Record] = []
        self.gone: dict[str, Record] = {}
        self.over: set[str] = set()
        self.samples: dict[str, deque[Record]] = {}
        self._states: dict[str, Record] = {}  # host -> what it has reported last
        self._skew: dict[str, float] = {}  # host -> seconds that its clock is behind this one, and a message's way

    def take(self, host: str, kind: str, content: Record) -> None:
        """Take note of a message.

        Args:
            host: The host that has sent it.
            kind: Its kind, as in messages.
            content: Its content.
        """
        if kind == messages.HOST:
            if host not in self.published:
                self.happened.append({"time": self._system.time(), "event": "ready", "host": host})
            self.published[host] = content
            self.changed = True
        elif kind == messages.STATE:
            self._note(host, content)
        elif kind == messages.SAMPLE:
            self._note_sample(host, content)
        elif kind == messages.GONE:
            self.gone[host] = content
            self.changed = True
            if content.get("over"):
                self.over.add(host)

    def leftovers(self) -> str:
        """What processes of the attempt have left behind, by host; empty where they have left nothing."""
        found = {host: state["left"] for host, state in sorted(self._states.items()) if state.get("left")}
        return "; ".join(f"left on {host}: {some(lines)}" for host, lines in found.items())

    def gpus_in_use(self) -> str:
        """The memory of the job's GPUs that was in use before its tasks started; empty where none was."""
        found = [
            f"{mib} MiB of GPU {gpu} on {host}"
            for host, record in sorted(self.published.items())
            for gpu, mib in record.get("gpus_in_use", {}).items()
        ]
        return f"memory in use before the tasks started: {some(found)}" if found else ""

    def _note(self, host: str, state: Record) -> None:
        self.states += 1
        if "time" in state:
            late = self._system.time() - state["time"]
            self._skew[host] = min(late, self._skew.get(host, late))  # the least has spent the least time on its way
            state = {name: value for name, value in state.items() if name != "time"}
        before = self._states.get(host, {})
        self._states[host] = state
        self.changed = self.changed or _without_progress(before) != _without_progress(state)
        self.progressed = True
        for name, task in state["tasks"].items():
            self._note_event(host, name, self.tasks.get(name, {}), task)
        self.tasks.update(state["tasks"])
        if state.get("waits"):
            self.waits[host] = state["waits"]
        if state.get("checkpoint"):
            self.checkpoint = True
        if state.get("over"):
            self.over.add(host)
        if state.get("gone"):
            self.gone[host] = state["gone"]

    def _note_event(self, host: str, name: str, before: Record, task: Record) -> None:
        """Note that a task was started, or has ended."""
        skew = self._skew.get(host, 0.0)
        shifted = _shifted(task, skew) if abs(skew) > _SKEW else task
        restarts = task.get("restarts", 0)
        event = {"task": name, "host": host}
        if task.get("started") is not None and (before.get("started") is None or restarts > before.get("restarts", 0)):
            more = {"restarts": restarts} if restarts else {}
            self.happened.append({"time": shifted["started"], "event": "started", **event, **more})
        if task.get("ended") is not None and before.get("ended") != task["ended"]:
            how = {key: task.get(key) for key in ("state", "exit", "signal")}
            self.happened.append({"time": shifted["ended"], "event": "ended", **event, **how})

    def _note_sample(self, host: str, content: Record) -> None:
        """Note what a host has used, and when the logs there have grown, by the clock of this host."""
        skew = self._skew.get(host, 0.0)
        if abs(skew) > _SKEW:
            sample, logs = content.get("sample"), content["logs"]
            logs = {task: [[time + skew, size] for time, size in points] for task, points in logs.items()}
            content = {"logs": logs, **({"sample": {**sample, "time": sample["time"] + skew}} if sample else {})}
        if "sample" in content:
            self.samples.setdefault(host, deque(maxlen=SAMPLES)).append(content["sample"])
        self.sampled.append(content)
        self.progressed = True

    def by_one_clock(self) -> dict[str, Record]:
        """Task name -> its record, with its times by the clock of this host."""
        found = dict(self.tasks)
        for host, skew in self._skew.items():
            if abs(skew) > _SKEW:
                found.update({name: _shifted(task, skew) for name, task in self._states[host]["tasks"].items()})
        return found

    def records(self, hosts: Sequence[str]) -> dict[str, Record]:
        """What hosts have reported, for the record of all hosts.

        Args:
            hosts: The hosts, in the order of the record.

        Returns:
            Host -> its entry; none where it has reported nothing.
        """
        found: dict[str, Record] = {}
        for host in hosts:
            known = {**self.published.get(host, {}), "tasks": {}, **self._states.get(host, {})}
            if host in self.gone:
                known["gone"] = self.gone[host]
            if host in self.samples:
                known["sample"] = self.samples[host][-1]
            if host in self.published or host in self._states or host in self.gone:
                found[host] = known
        return found


def _shifted(task: Record, seconds: float) -> Record:
    moved = {name: task[name] + seconds for name in ("started", "ended", "quiet") if task.get(name) is not None}
    if noted := task.get("exception"):
        moved["exception"] = {**noted, "time": noted["time"] + seconds}
    return {**task, **moved}


def _without_progress(state: Record) -> Record:
    tasks = {name: {**task, "progress": None} for name, task in state.get("tasks", {}).items()}
    return {**state, "tasks": tasks}
