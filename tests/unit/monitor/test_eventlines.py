"""Events in words."""

from __future__ import annotations

from typing import Any

from gridtf.monitor import eventlines
from gridtf.monitor.lines import text_of


def event(what: str, time: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"time": 1_764_000_000.0 + time, "event": what, "attempt": 1, **more}


def words(*events: dict[str, Any], columns: int = 200) -> list[str]:
    return [line.split("  ", 1)[1] for line in text_of(eventlines.lines(events, columns)).splitlines()]


def test_what_happened_to_many_tasks_in_turn_is_one_line() -> None:
    started = [event("started", task=f"worker:{number}", host="n1") for number in range(256)]
    failed = event("ended", task="worker:7", host="n1", state="FAILED", exit=1)
    assert words(*started, failed) == [
        "started: worker:0, worker:1, worker:2 and 253 more",
        "FAILED, exit code 1: worker:7 on n1",
    ]


def test_attempts_are_not_put_together() -> None:
    one = event("started", task="worker:0", host="n1")
    assert len(words(one, {**one, "attempt": 2})) == 2


def test_events_of_a_long_job_have_a_date() -> None:
    assert "-" not in text_of(eventlines.lines([event("queued"), event("rendezvous", 60.0)], 80))
    assert "-" in text_of(eventlines.lines([event("queued"), event("rendezvous", 90_000.0)], 80))
    assert eventlines.lines([], 80) == []


def test_long_event_is_cut_or_folded() -> None:
    record = event("notice", text="word " * 40)
    assert [len(line) <= 40 for line in text_of(eventlines.lines([record], 40)).splitlines()] == [True]
    assert len(eventlines.lines([record], 40, most=3)) == 3


def test_control_characters_are_escaped() -> None:
    assert words(event("notice", text="\x1b[2Jx\n")) == [r"\x1b[2Jx\n"]


def test_failures_are_marked() -> None:
    styles = [line[1][1] for line in eventlines.lines([event("verdict", state=s) for s in ("FAILED", "COMPLETED")], 80)]
    assert styles == ["bad", ""]
