"""What stacks say about where tasks are, and whether a job is stalled, decided without processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.features import stalls
from gridtf.features.stalls import agent
from gridtf.features.stalls.launcher import between, quiet_since
from gridtf.run import stacks
from gridtf.run.rundir import Record
from tests.support.features import FakeHelper, agent_view
from tests.support.plans import hosts, task_plan
from tests.support.streams import FakeLink
from tests.support.system import FakeSystem

WAITING = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f02 (most recent call first):
  File "/v/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute
  File "/home/alice/train.py", line 20 in step
  File "/home/alice/train.py", line 44 in <module>
"""
LOADING = WAITING.replace(
    "\nCurrent",
    """
Thread 0x00007f03 [loader] (most recent call first):
  File "/home/alice/data.py", line 88 in read
  File "/v/lib/python3.11/site-packages/tensorflow/python/data/ops/from_generator_op.py", line 9 in next

Current""",
)
SPIED = """\
Process 12: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 12 (idle): "MainThread"
    wait (threading.py:327)
    <module> (train.py:3)
Thread 13 (active): "other"
    work (train.py:9)
"""


def job(**texts: str) -> dict[str, Any]:
    """worker:0 and so on, on n0 and so on."""
    tasks = {}
    for index, text in enumerate(texts.values()):
        process = {"pid": 10 + index, "name": "python", "state": "S", "text": text}
        tasks[f"worker:{index}"] = {"host": f"n{index}", "processes": [process]}
    return tasks


def said(tasks: dict[str, Any]) -> list[str]:
    packed = stacks.packed(tasks)
    return [str(group) for group in stacks.groups(packed["tasks"], packed["stacks"])]


def test_main_thread_is_the_first_one_also_as_py_spy_shows_it() -> None:
    main, other = stacks.threads(LOADING)[0], stacks.threads(SPIED)[0]
    assert [frame.place for frame in main] == ["execute.py:53", "train.py:20", "train.py:44"]
    assert [frame.place for frame in other] == ["threading.py:327", "train.py:3"]
    assert stacks.threads("no stack") == ()


def test_the_odd_one_out_comes_first_and_is_where_its_own_code_runs() -> None:
    tasks = job(a=WAITING, b=WAITING.replace("7f0", "7e0"), c=LOADING)
    assert said(tasks) == ["worker:2 on n2 is at data.py:88", "worker:0-1 wait in TensorFlow (train.py:20)"]
    packed = stacks.packed(tasks)
    assert len(packed["stacks"]) == 2  # addresses of threads make no difference
    found = stacks.groups(packed["tasks"], packed["stacks"])
    expected = "worker:0-1 wait in TensorFlow (train.py:20); worker:2 on n2 is at data.py:88"
    assert stacks.summary(found) == expected


def test_thread_that_all_tasks_have_does_not_hide_the_difference() -> None:
    beat = 'Thread 0x1 (most recent call first):\n  File "/home/alice/beat.py", line 5 in run\n\n'
    late = WAITING.replace("line 20", "line 30")
    assert said(job(a=beat + WAITING, b=beat + late)) == [
        "worker:0 on n0 waits in TensorFlow (train.py:20)",
        "worker:1 on n1 waits in TensorFlow (train.py:30)",
    ]
    assert said(job(a=beat + WAITING)) == ["worker:0 on n0 waits in TensorFlow (train.py:20)"]


def test_processes_that_are_stopped_or_show_nothing_are_named() -> None:
    tasks = job(a=WAITING, b="", c="")
    tasks["worker:1"]["processes"][0]["state"] = "T"
    tasks["worker:2"]["processes"][0]["why"] = "py-spy is not installed"
    assert said(tasks) == [
        "worker:0 on n0 waits in TensorFlow (train.py:20)",
        "worker:1 on n1 is stopped by a signal (state T)",
        "worker:2 on n2 shows no stack: py-spy is not installed",
    ]
    of_no_file = job(a='Thread 0x01 (most recent call first):\n  File "<string>", line 1 in <module>\n')  # python -c
    assert said(of_no_file) == ["worker:0 on n0 shows no stack: none of its threads runs code of a file"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["worker:0"], "worker:0"),
        (["worker:2", "worker:0", "worker:1", "ps:0"], "worker:0-2, ps:0"),
        (["worker:0", "worker:2", "worker:3", "worker:9"], "worker:0, worker:2-3, worker:9"),
    ],
)
def test_names_of_tasks_are_shortened(names: list[str], text: str) -> None:
    assert stacks.spans(names) == text


def test_two_looks_are_equal_where_nothing_has_moved_and_something_is_seen() -> None:
    again = job(a=WAITING.replace("7f0", "7e0"))
    assert stacks.equal(job(a=WAITING), again)
    assert not stacks.equal(job(a=WAITING), job(a=LOADING))
    assert not stacks.equal(job(a=""), job(a=""))
    other = job(a=WAITING)
    other["worker:0"]["processes"][0]["pid"] = 99
    assert not stacks.equal(job(a=WAITING), other)
    stopped = job(a="")
    stopped["worker:0"]["processes"][0]["state"] = "D"
    assert stacks.equal(stopped, stopped)


# --- whether all tasks are quiet


def placed(name: str, **more: Any) -> PlacedTask:
    task_type, _, index = name.partition(":")
    usual = {"gpus": 0, "cpus": None, "local_rank": None, "rank": None, "served": False, "in_cluster": True}
    return PlacedTask(task_type, int(index), "n0", **{**usual, **more})


def records(**quiet: float | None) -> dict[str, Record]:
    found = {}
    for name, since in quiet.items():
        found[name.replace("_", ":")] = {"state": "RUNNING", **({} if since is None else {"quiet": since})}
    return found


def test_job_is_quiet_since_its_last_task_is() -> None:
    tasks = [placed("worker:0", rank=0), placed("worker:1", rank=1)]
    assert quiet_since(tasks, records(worker_0=100.0, worker_1=160.0)) == 160.0
    assert quiet_since(tasks, records(worker_0=100.0, worker_1=None)) is None
    ended = records(worker_0=100.0, worker_1=None)
    ended["worker:1"]["state"] = "COMPLETED"
    assert quiet_since(tasks, ended) == 100.0
    assert quiet_since(tasks, {}) is None


def test_servers_that_wait_for_clients_are_not_stalled() -> None:
    served = [placed("ps:0", served=True), placed("worker:0", rank=0, served=True)]
    assert quiet_since(served, records(ps_0=1.0, worker_0=1.0)) is None


def test_second_dump_comes_a_minute_after_the_first_or_sooner_where_little_time_is_given() -> None:
    assert (between(600.0), between(8.0)) == (60.0, 2.0)


# --- how an agent takes them


def test_process_takes_the_stacks_and_what_it_has_said_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[FakeHelper] = []
    monkeypatch.setattr(agent, "Helper", partial(FakeHelper, started))
    view = agent_view(task_plan(tmp_path / "run", hosts(0, slots=1), tasks={"worker": {"count": 1}}), FakeSystem())
    link = view.conversation.link
    assert isinstance(link, FakeLink)
    feature = agent.InAgent(view)
    view.conversation.expect(feature.hears)

    def look(asked: str, *said: bytes, ended: bool) -> list[Any]:
        link.say(stalls.DUMP, {"id": asked})
        view.conversation.hear()
        for helper in started[-1:]:
            helper.said, helper.pid = [*said], None if ended else 100
        feature.look()
        return link.sent

    first, second, third = ("0123456789abcde" + last for last in "123")
    assert look(first, ended=False) == []
    assert look(first, b'{"worker:0": {"proc', ended=False) == []
    assert look(second, b'esses": []}}', ended=True) == [
        (stalls.STACKS, {"id": first, "tasks": {"worker:0": {"processes": []}}})
    ]
    assert len(started) == 2
    assert len(look(second, b'{"worker:0": {"proc', ended=True)) == 1  # it was killed
    assert len(look(second, ended=True)) == 1
    look(third, ended=True)
    assert len(look(third, b"{}", ended=True)) == 2
    assert len(started) == 3
