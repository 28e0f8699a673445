"""Who holds the others up in lock-step training: the judgement, and what the launcher makes of it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.features.straggler import NETWORK, WINDOW, InLauncher, Straggler, find
from gridtf.jobspec.tasktypes import KINDS, TASK_TYPES
from gridtf.run.rundir import Record
from gridtf.values import as_dict
from tests.support.system import FakeSystem

RECORDED = Path(__file__).parents[2] / "recorded/slow"
TASKS = frozenset(f"worker:{number}" for number in range(4))
Change = Callable[[Record, Record], None]  # of a sample, and of its task


def samples(count: int = WINDOW, hosts: int = 4, /, **changes: Change) -> dict[str, list[Record]]:
    """Samples of a job in lock-step on hosts n0, n1, …, each with one task; changes: host -> what differs there."""
    found: dict[str, list[Record]] = {}
    for number in range(hosts):
        following = f"10.0.0.{number} 10.0.0.{(number + 1) % hosts}"
        for at in range(count):
            task: Record = {"cpu": 1.0, "threads": {"S": 90}, "delay": 0.1, "step": 10 * at, "rate": 2.0}
            sample: Record = {"time": 5.0 * at + 0.1 * number, "host": f"n{number}", "sent": 1e6, "received": 1e6}
            sample |= {"gpus": {}, "links": {following: 0.2}, "tasks": {f"worker:{number}": task}}
            if change := changes.get(f"n{number}"):
                change(sample, task)
            found.setdefault(f"n{number}", []).append(sample)
    return found


def of_task(**values: Any) -> Change:
    return lambda _, task: task.update(values)


def of_host(**values: Any) -> Change:
    return lambda sample, _: sample.update(values)


def judged(**changes: Change) -> tuple[str, str, str] | None:
    found = find(samples(**changes), TASKS)
    return (found.host, found.what, found.sure) if found else None


def gpu(**values: float) -> Change:
    return of_host(gpus={"0": {"use": 99.0, **values}})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"n2": of_task(delay=3.0)}, ("n2", "CPU", "very likely")),
        ({"n2": of_task(delay=0.5)}, ("n2", "CPU", "likely")),
        ({"n2": of_task(delay=3.0, cpu=0.9)}, ("n2", "CPU", "very likely")),
        ({"n2": of_task(delay=3.0, cpu=1.2)}, ("n2", "CPU", "very likely")),
        ({"n2": of_task(delay=3.0, cpu=1.5)}, ("n2", "more to compute", "very likely")),
        ({"n2": of_task(delay=3.0, cpu=1.5), "n3": of_task(cpu=1.5)}, ("n2", "CPU", "very likely")),
        ({"n2": of_task(delay=0.4, cpu=1.5)}, None),
        ({"n2": of_task(delay=0.4)}, None),  # too little to explain anything
        ({f"n{number}": of_task(delay=2.0 + number / 10) for number in range(4)}, None),  # all lack CPUs
        # all lack CPUs, and the first host has the launcher as well
        ({f"n{number}": of_task(delay=3.6 if number == 0 else 0.9) for number in range(4)}, None),
        (
            {f"n{number}": of_task(delay=5.5 if number == 2 else 0.9) for number in range(4)},
            ("n2", "CPU", "very likely"),
        ),
        ({f"n{number}": of_task(delay=3.0 if number == 2 else 0.79) for number in range(4)}, ("n2", "CPU", "likely")),
        ({"n2": of_task(delay=3.0), "n3": of_task(delay=2.5)}, None),  # two of them
        ({"n2": of_task(threads={"S": 90, "D": 1})}, ("n2", "input", "very likely")),
        ({"n2": of_task(threads={"D": 1}), "n1": of_task(delay=3.0)}, None),  # which of them, nobody knows
        ({"n2": of_task(threads={"D": 1}, delay=3.0)}, ("n2", "CPU", "very likely")),
        (
            {f"n{number}": gpu(throttled=float(number == 1)) for number in range(4)},
            ("n1", "GPU throttled", "very likely"),
        ),
        ({f"n{number}": gpu(clock=1980.0 - 600 * (number == 3)) for number in range(4)}, ("n3", "GPU clock", "likely")),
        ({f"n{number}": gpu(clock=1980.0 - 200 * number) for number in range(4)}, None),  # other models
        ({f"n{one}": of_task(rate=0.0, delay=3.0 * (one == 2)) for one in range(4)}, ("n2", "CPU", "very likely")),
        ({"n2": of_task(rate=0.0, delay=3.0)}, None),  # not in lock-step
        ({"n2": of_task(rate=5.0, delay=3.0)}, None),  # not in lock-step
        ({"n2": of_task(step=900, delay=3.0)}, None),
    ],
)
def test_one_host_that_does_not_wait_is_named_with_what_it_lacks(changes: dict[str, Change], expected: object) -> None:
    assert judged(**changes) == expected


def test_task_with_more_to_compute_is_named_with_its_cpu_time() -> None:
    found = find(samples(n2=of_task(delay=3.0, cpu=1.5)), TASKS)
    assert found is not None
    used = "it uses 1.5 s of CPU time in a second, each other task 1 s at most"
    assert found.text == f"worker:2 on n2 holds the others up (more to compute, very likely): {used}"


def links(*ends: tuple[str, float]) -> Change:
    return of_host(links={f"10.0.0.{pair[0]} 10.0.0.{pair[1]}": share for pair, share in ends})


def test_the_host_that_all_busy_connections_share_has_a_slow_link() -> None:
    both = {"n1": links(("12", 0.9)), "n2": links(("23", 0.98))}
    assert judged(**both) == ("n2", "network", "very likely")
    # of one connection, either end may be slow
    assert judged(n2=links(("23", 0.98))) is None
    # the network is what limits all of them; two connections of different hosts; one that has more to send
    assert judged(**{f"n{one}": links((f"{one}{(one + 1) % 4}", 0.95)) for one in range(4)}) is None
    assert judged(n0=links(("01", 0.9)), n2=links(("23", 0.98))) is None
    more = of_host(sent=9e6, links={"10.0.0.2 10.0.0.3": 0.98})
    assert judged(n2=more) is None
    # a bridge for containers has the same address on all hosts
    bridge = {f"n{one}": of_host(links={"172.17.0.1 172.17.0.2": 0.99}) for one in range(4)}
    assert judged(**bridge) is None


@pytest.mark.parametrize("lacking", ["delay", "threads", "links", "all"])
def test_samples_of_another_version_say_nothing(lacking: str) -> None:
    """A kernel or an agent that does not tell something; a host that has left; too few samples or hosts."""

    def without(sample: Record, task: Record) -> None:
        for key in ("delay", "links") if lacking == "all" else (lacking,):
            sample.pop(key, None)
            task.update({"threads": {}} if key == "threads" else {})
            if key == "delay":
                task.pop("delay", None)

    assert judged(**{f"n{number}": without for number in range(4)}) is None
    slow = of_task(delay=3.0)
    assert find(samples(WINDOW - 1, n2=slow), TASKS) is None
    assert find(samples(WINDOW, 2, n1=slow), TASKS) is None
    assert find(samples(n2=slow), frozenset()) is None
    late = samples(n2=slow)
    late["n1"] = [{**sample, "time": sample["time"] - 60} for sample in late["n1"]]
    assert find(late, TASKS) is None


def test_only_the_chief_tells_its_steps() -> None:
    def silent(**values: float) -> Change:
        def change(_: Record, task: Record) -> None:
            task.pop("step")
            task.pop("rate")
            task.update(values)

        return change

    assert judged(n1=silent(), n3=silent(), n2=silent(delay=3.0)) == ("n2", "CPU", "very likely")
    # where nobody does, hosts that send to each other make steps
    assert judged(n0=silent(), n1=silent(), n3=silent(), n2=silent(delay=3.0)) == ("n2", "CPU", "very likely")

    def waits(sample: Record, task: Record) -> None:  # as while the chief evaluates
        task["rate"] = 0.0
        sample["links"] = dict.fromkeys(sample["links"], 0.001)

    assert judged(n0=waits, n1=waits, n3=waits, n2=of_task(rate=0.0, delay=3.0)) is None
    assert judged(n0=silent(), n1=waits, n3=silent(), n2=silent(delay=3.0)) is None

    def waits_for_seconds(sample: Record, task: Record) -> None:  # its rate is that of the last steps
        task["step"] = min(20, task["step"])
        sample["links"] = dict.fromkeys(sample["links"], 0.001)

    def evaluates(sample: Record, task: Record) -> None:
        waits_for_seconds(sample, task)
        task["delay"] = 3.0

    assert judged(n0=evaluates, n1=waits_for_seconds, n2=waits_for_seconds, n3=waits_for_seconds) is None

    def long_step(delay: float) -> Change:
        return lambda sample, task: sample.update(links={}) or task.update(step=20, rate=0.1, delay=delay)

    assert judged(n0=long_step(0.1), n1=long_step(0.1), n2=long_step(3.0), n3=long_step(0.1)) is not None
    # it tells of its steps once in an epoch
    assert judged(**{f"n{one}": of_task(step=20, delay=3.0 * (one == 2)) for one in range(4)}) is not None


@pytest.mark.parametrize("mute", [False, True])
@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_samples_of_real_jobs(path: Path, mute: bool) -> None:
    """Of test beds: hosts with a quota each, one of them slowed (its name is in that of the file), or none.

    mute: as if the program told nothing of its steps.
    """
    _, host, what = path.stem.split("-")
    known: dict[str, list[Record]] = {}
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        for task in sample["tasks"].values() if mute else ():
            task.pop("step")
            task.pop("rate")
        known.setdefault(sample["host"], []).append(sample)
    found = find({host: each[-WINDOW:] for host, each in known.items()}, TASKS)
    named = (found.host, found.what) if found else ("none", "none")
    assert named == (host, what.replace("_", " ")), found


class Launcher:
    """Feeds samples, one of each host at a time, to what the launcher has of them."""

    def __init__(self, *kinds: str) -> None:
        self.system = FakeSystem()
        job: Any = SimpleNamespace(system=self.system, spec=SimpleNamespace(sample_interval=5.0))
        row = TASK_TYPES["worker"]
        tasks: Any = [SimpleNamespace(name=f"worker:{n}", host=f"n{n}", trains=True, row=row) for n in range(4)]
        for kind in kinds:
            more = {**TASK_TYPES, **KINDS}[kind]
            tasks.append(SimpleNamespace(name=f"{kind}:0", host="n0", trains=False, row=more))
        self.reports: Any = SimpleNamespace(samples={})
        self.told: list[tuple[str, str]] = []
        self.shown: Record = {}
        view = {"now": True, "hosts": SimpleNamespace(reports=self.reports), "reporter": self}
        self.of_job = InLauncher(SimpleNamespace(job=job, tasks=tasks, **view), None)  # type: ignore[arg-type]
        self.at = 0.0

    def note(self, event: str, **about: Any) -> None:
        self.told.append((event, about["task"]))

    def show(self, name: str, about: Record) -> None:
        assert name == "slow"
        self.shown = about

    def sample(self, times: int, **changes: Change) -> list[Straggler | None]:
        """What was named, or withdrawn."""
        news = []
        for _ in range(times):
            self.at += 5.0
            for host, (sample,) in samples(1, **changes).items():
                for task in sample["tasks"].values():
                    task["step"] = int(self.at)
                of_host = self.reports.samples.setdefault(host, deque(maxlen=WINDOW))
                of_host.append({**sample, "time": sample["time"] + self.at})
            for _ in range(10):
                self.system.clock += 0.5
                count = len(self.told)
                self.of_job.look()
                news += [self.of_job.named] * (len(self.told) - count)
        assert self.shown == as_dict(self.of_job.named or {})
        assert self.of_job.status() == self.shown.get("text", "")
        return news


def test_a_name_is_said_after_three_judgements_that_agree_and_withdrawn_after_six() -> None:
    launcher, slow = Launcher(), of_task(delay=3.0)
    assert launcher.sample(20) == []
    (named,) = launcher.sample(7, n2=slow)
    assert named is not None
    assert (named.task, named.host, named.what) == ("worker:2", "n2", "CPU")
    assert named.text.startswith(
        "worker:2 on n2 holds the others up (CPU, very likely): its threads wait for a CPU 3 s"
    )
    assert launcher.sample(3) == []  # as while it is saved
    assert launcher.sample(7, n2=slow) == []
    (then,) = launcher.sample(7, n3=of_task(threads={"D": 1}))  # another one takes its place
    assert (then and then.host) == "n3"
    assert launcher.sample(15) == [None]
    assert launcher.told == [("slow", "worker:2"), ("slow", "worker:3"), ("in step", "worker:3")]


def test_jobs_with_parameter_servers_of_any_name_are_not_judged() -> None:
    assert Launcher("ps").sample(20, n2=of_task(delay=3.0)) == []
    assert Launcher("member").sample(20, n2=of_task(delay=3.0)) == []
    assert Launcher("client").sample(20, n2=of_task(delay=3.0)) == []


@pytest.mark.parametrize("beside", ["evaluator", "service", "data_worker"])
def test_jobs_in_lock_step_with_tasks_beside_them_are_judged(beside: str) -> None:
    assert Launcher(beside).sample(20, n2=of_task(delay=3.0)) != []


def test_the_causes_have_an_order() -> None:
    """A slow link delays files of a server as well, and a GPU that is too hot comes before all."""

    def slow(sample: Record, task: Record) -> None:
        links(("23", 0.98))(sample, task)
        task["threads"] = {"D": 1}

    assert judged(n1=links(("12", 0.9)), n2=slow) == ("n2", NETWORK, "very likely")
