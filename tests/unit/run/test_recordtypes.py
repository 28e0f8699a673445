"""The kinds of records, and the report on a record that does not fit."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gridtf.jobspec.request import resolve
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.recordtypes import check
from gridtf.values import Value, as_dict

PACKAGE = Path(recordtypes.__file__).parents[1]
TASK = {
    "type": "worker",
    "index": 0,
    "host": "n1",
    "gpus": 0,
    "cpus": None,
    "local_rank": 0,
    "rank": 0,
    "served": False,
    "in_cluster": True,
}
PLAN = {
    "nonce": "f00d",
    "job": {"id": "7", "name": "digits", "scheduler": "slurm"},
    "hosts": {"n1": "n1"},
    "tasks": [TASK],
    "python": "/usr/bin/python3",
    "cwd": "/",
    "spec": {"command": ["true"]},
    "request": json.loads(json.dumps(resolve(JobSpec(command=("true",)), "slurm").to_dict(in_job=True))),
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (recordtypes.Plan, PLAN),
        (recordtypes.Outline, {**PLAN, "of a later gridtf": [1]}),
        (recordtypes.Submitted, {"scheduler": "sge", "job_id": "190.3", "start": None, "elements": ["1", "2"]}),
        (recordtypes.Submitted, {"scheduler": "local", "job_id": "17.node-1.x", "pid": 17, "time": 1}),
        (recordtypes.Submitted, {"scheduler": "pbs", "job_id": "1234[7].server"}),
        (recordtypes.HostState, {"tasks": {"worker:0": {"state": "RUNNING", "started": 1.5, "exit": None}}}),
        (recordtypes.Launcher, {"detail": "Größe \udcff"}),  # a path of any bytes
    ],
)
def test_check_accepts_records_of_gridtf(kind: Any, value: object) -> None:
    assert check(kind)(value) == ""


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (recordtypes.Plan, {**PLAN, "tasks": [TASK, {**TASK, "index": "0"}]}, "tasks.1.index is '0'"),
        (recordtypes.Plan, {**PLAN, "tasks": [{**TASK, "type": "../x"}]}, "tasks.0.type is '../x'"),
        (recordtypes.Plan, {**PLAN, "tasks": {}}, "tasks is {}"),
        (recordtypes.Plan, {**PLAN, "whole": [2]}, "whole is [2]"),
        (recordtypes.Plan, {**PLAN, "whole": [2, 4, 1]}, "whole is [2, 4, 1]"),
        (recordtypes.Plan, {**PLAN, "job": {"id": "7", "name": "x"}}, "job.scheduler is missing"),
        (recordtypes.Plan, {**PLAN, "hosts": {"a\x1b": 1}}, r"hosts.a\x1b is 1"),
        (recordtypes.Submitted, {"scheduler": "slurm", "job_id": "--user=alice"}, "job_id is '--user=alice'"),
        (recordtypes.Submitted, {"scheduler": "slurm", "job_id": "*"}, "job_id is '*'"),
        (recordtypes.Submitted, {"scheduler": "slurm", "job_id": "7\n"}, r"job_id is '7\n'"),
        (recordtypes.Submitted, {"scheduler": "slurm", "job_id": "7", "cluster": "a,b"}, "cluster is 'a,b'"),
        (recordtypes.Submitted, {"scheduler": "local", "job_id": "7", "pid": -1}, "pid is -1"),
        (recordtypes.Submitted, {"scheduler": "local", "job_id": "7", "pid": True}, "pid is True"),
        (recordtypes.Launcher, {"time": float("nan")}, "time is nan"),
        (recordtypes.Launcher, {"time": 1e300}, "time is 1e+300"),
        (recordtypes.Launcher, {"host": "a\0b"}, r"host is 'a\x00b'"),
        (recordtypes.Launcher, {"host": "\ud800"}, r"host is '\ud800'"),
        (recordtypes.Verdict, {"state": "FAILED", "cause": []}, "cause is []"),
        (recordtypes.HostState, {"tasks": {"worker:0": []}}, "tasks.worker:0 is []"),
    ],
)
def test_check_reports_the_key_and_the_wrong_value(kind: Any, value: object, wrong: str) -> None:
    assert check(kind)(value) == wrong


class Part(Value):
    name: str
    size: int | None = None


class Whole(Value):
    parts: tuple[Part, ...]
    span: tuple[int, int]
    words: frozenset[str]
    texts: Mapping[str, str]
    share: float | None
    done: bool = False


def test_value_is_read_from_what_it_is_written_as() -> None:
    whole = Whole((Part("a", 1), Part("b")), (1, 2), frozenset("ba"), {"x": "y"}, 0.5)
    record = json.loads(json.dumps(as_dict(whole)))
    assert record["words"] == ["a", "b"]
    assert recordtypes.read(Whole, {**record, "of a later gridtf": 1}) == whole
    del record["done"], record["parts"][1]["size"]
    assert recordtypes.read(Whole, record) == whole


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"parts": [{"name": "a"}, {"name": 1}]}, "parts.1.name is 1"),
        ({"parts": [{"size": 1}]}, "parts.0.name is missing"),
        ({"parts": [{"name": "a", "size": -1}]}, "parts.0.size is -1"),
        ({"span": [1]}, "span is [1]"),
        ({"words": "ab"}, "words is 'ab'"),
        ({"texts": {"x": None}}, "texts.x is None"),
        ({"share": "0.5"}, "share is '0.5'"),
        ({"done": 1}, "done is 1"),
    ],
)
def test_record_that_is_none_of_a_value_says_what_is_wrong(change: dict[str, Any], wrong: str) -> None:
    record = as_dict(Whole((), (1, 2), frozenset(), {}, None))
    with pytest.raises(ValueError, match=re.escape(wrong)):
        recordtypes.read(Whole, {**record, **change})


def test_check_abbreviates_huge_or_deep_values() -> None:
    deep = json.loads("[" * 500 + "]" * 500)
    assert len(check(recordtypes.Verdict)({"state": deep})) < 100
    assert len(check(recordtypes.Verdict)({"state": 5, "x" * 10**6: 5, "y": "z" * 10**6})) < 100
    assert len(check({str: int})({"x" * 10**6: "y" * 10**6})) < 100


@pytest.mark.thorough
def test_every_record_is_read_with_a_kind() -> None:
    calls = [
        (path.name, node.lineno, len(node.args))
        for path in PACKAGE.rglob("*.py")
        if not {"read_record", "read_private"}.isdisjoint(re.findall(r"\w+", text := path.read_text(encoding="utf-8")))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("read_record", "read_private")
    ]
    assert len(calls) > 15
    assert [(name, line) for name, line, count in calls if count < 2] == []


def test_tasks_of_a_plan_have_their_names() -> None:
    plan = {"tasks": [{"type": "ps", "index": 0, "host": "n1"}, {"type": "worker", "index": 10}]}
    assert [(name, task.get("host")) for name, task in recordtypes.tasks_of(plan).items()] == [
        ("ps:0", "n1"),
        ("worker:10", None),
    ]
    assert recordtypes.tasks_of({}) == {}
