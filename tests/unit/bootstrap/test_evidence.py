"""What outranks what in the end of an attempt: each kind and the next one, who is asked, and what is told beside it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.blame import FAILED, LOST, SILENT, Cause
from gridtf.bootstrap.judge.evidence import (
    ABANDONED,
    ACCUSED,
    BESIDE,
    EXPLAINS,
    HOST_OF_RANK,
    MOMENTS,
    NOTE,
    OF_TASKS,
    ORDER,
    OTHERS,
    STOP,
    TASK,
    TRAINED,
    WELL,
    Evidence,
    first,
)
from gridtf.bootstrap.judge.verdict import Verdict, conclude
from gridtf.run.rundir import Attempt, RunDir
from gridtf.states import JobState
from tests.support.plans import task

ALL = frozenset(ORDER)
NEXT = [(moment, *pair) for moment in MOMENTS for pair in pairwise(kind for kind in ORDER if kind in moment)]
ONE, TWO = task("worker:0"), task("worker:1", "h1", rank=1)
RECORDS: dict[str, Any] = {each.name: {"state": "FAILED", "exit": 3, "signal": None} for each in (ONE, TWO)}


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).new_attempt()


@pytest.mark.parametrize(("moment", "one", "two"), NEXT)
def test_each_kind_is_asked_before_the_next_one_which_is_not_asked_where_it_knows(
    moment: frozenset[str], one: str, two: str
) -> None:
    asked: list[str] = []

    def ask(kind: str, *, knows: bool) -> Evidence | None:
        asked.append(kind)
        return Evidence(kind) if knows else None

    found = first(moment, {two: lambda: ask(two, knows=True), one: lambda: ask(one, knows=True)})
    assert (found and found.kind, asked) == (one, [one])
    found = first(moment, {two: lambda: ask(two, knows=True), one: lambda: ask(one, knows=False)})
    assert (found and found.kind, asked[1:]) == (two, [one, two])


def test_nobody_is_asked_who_cannot_know_at_that_moment() -> None:
    assert first(frozenset({TASK}), {STOP: lambda: Evidence(STOP)}) is None
    assert set().union(*MOMENTS) == ALL
    assert all(ORDER.values())  # each with the reason why it stands there


def test_who_is_asked_may_know_of_an_end_of_another_kind() -> None:
    found = first(ALL, {TASK: lambda: Evidence(STOP, "the agent has failed"), TRAINED: lambda: Evidence(TRAINED)})
    assert found == Evidence(STOP, "the agent has failed")


# --- what is told


def test_what_has_stopped_the_attempt_explains_the_task_that_failed(attempt: Attempt) -> None:
    known = [Evidence(EXPLAINS, "mpirun ended", on=OF_TASKS), Evidence(EXPLAINS, "mpirun says: x", on=OTHERS)]
    end = conclude(Evidence(TASK, found=Cause(ONE, FAILED)), known, RECORDS, attempt)
    assert (end.reason, end.why, end.cause and end.cause["task"]) == (
        "worker:0 on h0: exit code 3",
        "mpirun ended",
        "worker:0",
    )
    for kind, how in ((ACCUSED, SILENT), (HOST_OF_RANK, LOST), (ABANDONED, FAILED)):
        told = conclude(Evidence(kind, found=Cause(ONE, how, TWO)), known, RECORDS, attempt)
        assert told.why.startswith("mpirun ended; mpirun says: x")
    assert conclude(Evidence(STOP, "x", state=JobState.CANCELLED), known) == Verdict(JobState.CANCELLED, "x")


def test_note_is_a_part_of_the_reason_of_the_ends_that_it_names() -> None:
    note = Evidence(NOTE, "n", hint="y", on=WELL)
    done = Evidence(TRAINED, "done", hint="x", state=JobState.COMPLETED)
    assert conclude(done, [note]) == Verdict(JobState.COMPLETED, "done; n", hint="x; y")
    assert conclude(done, [note.replace(instead=True)]).hint == "y"
    for state in (JobState.FAILED, JobState.NODE_FAIL):
        assert conclude(done.replace(state=state), [note]) == Verdict(state, "done", hint="x")


def test_task_s_end_is_not_told_with_what_is_told_with_its_state(attempt: Attempt) -> None:
    """A lost host is named once: it is the reason itself."""
    note = Evidence(EXPLAINS, "lost contact with 2 hosts", on=(JobState.NODE_FAIL,))
    lost = conclude(Evidence(ACCUSED, found=Cause(TWO, LOST, ONE)), [note], RECORDS, attempt)
    assert (lost.state, lost.why) == (JobState.NODE_FAIL, "worker:0 on h0: exit code 3")
    missed = Evidence(STOP, "no heartbeat from host h1", state=JobState.NODE_FAIL)
    assert conclude(missed, [note]).why == "lost contact with 2 hosts"


def test_what_else_is_known_follows_the_reason_of_any_end(attempt: Attempt) -> None:
    left = Evidence(BESIDE, "left on h0: /dev/shm/x")
    task_s = conclude(Evidence(TASK, found=Cause(ONE, FAILED)), [left], RECORDS, attempt)
    assert task_s.why == conclude(Evidence(STOP, "x"), [left]).why == left.what
