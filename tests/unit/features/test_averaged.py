"""What the verdict tells of averaging."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.bootstrap.judge.evidence import STOP, Evidence
from gridtf.bootstrap.judge.verdict import conclude
from gridtf.contract import TO_AVERAGE
from gridtf.features.averaged import notes
from gridtf.states import JobState
from tests.support.plans import task

MADE = {"exchanges": 12, "steps": 240, "distance": 0.0031}
DUE = {"exchanges": 0, "steps": 240, "due": True}
NOT_DUE = {"exchanges": 0, "steps": 19, "due": False}


def told(*averaging: dict[str, Any] | None, state: JobState = JobState.COMPLETED) -> tuple[str, str]:
    tasks = [task(f"worker:{index}") for index in range(len(averaging))]
    records: dict[str, Any] = {each.name: {} for each in tasks}
    for each, found in zip(tasks, averaging, strict=True):
        if found:
            records[each.name] = {"progress": {"step": 1, "values": {}, "time": 1.0, "averaging": found}}
    end = conclude(Evidence(STOP, "all tasks have ended", state=state), [*notes(tasks, records)])
    return end.reason, end.hint


def test_exchanges_are_told_with_the_member_that_was_furthest_from_the_mean() -> None:
    reason, hint = told(MADE, {**MADE, "steps": 120, "distance": 0.012}, None)
    made = "averaging made 12 exchanges in 120-240 steps; before the last one, the tasks were up to 1.2 % from the mean"
    assert (reason, hint) == (f"all tasks have ended; {made}", "")


def test_training_that_has_averaged_nothing_is_a_warning_with_what_to_write() -> None:
    reason, hint = told(DUE, DUE)
    warning = "nothing was averaged: 2 tasks made 240 steps, each by itself"
    assert (reason, hint) == (f"all tasks have ended; {warning}", TO_AVERAGE)


@pytest.mark.parametrize(
    ("averaging", "state"),
    [
        ((None, None), JobState.COMPLETED),
        ((NOT_DUE, NOT_DUE), JobState.COMPLETED),
        ((DUE, DUE), JobState.FAILED),
        ((DUE, DUE), JobState.CANCELLED),
    ],
)
def test_nothing_is_told_of_other_jobs(averaging: tuple[dict[str, Any] | None, ...], state: JobState) -> None:
    assert told(*averaging, state=state) == ("all tasks have ended", "")
