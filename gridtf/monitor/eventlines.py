"""The lines of the events of a job; what happened to many hosts or tasks in turn is one line. Reads the time zone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from gridtf.monitor.lines import Line, folded
from gridtf.observe.eventwords import Event, words
from gridtf.states import JobState, TaskState

_DAY = 20 * 3600.0  # seconds that a job takes until its events have a date
_NAMED = 3  # of many hosts or tasks
_STYLES = {"stalled": "warn", "slow": "warn", "stopping": "warn", "notice": "warn"}
_WELL = (JobState.COMPLETED, JobState.SAVED, TaskState.STOPPED)


def lines(events: Sequence[Event], columns: int, *, most: int = 1) -> list[Line]:
    """A line for each event, or for several of one kind in turn.

    Args:
        events: The records of events, oldest first.
        columns: Columns of a line.
        most: Lines that a long one is folded into; the rest is cut off.
    """
    if not events:
        return []
    form = "%m-%d %H:%M" if events[-1]["time"] - events[0]["time"] > _DAY else "%H:%M:%S"
    made: list[Line] = []
    for _, group in groupby(events, _kind):
        same = list(group)
        when = time.strftime(form, time.localtime(same[0]["time"]))
        before = f"{when}  "
        for text in folded(words(same, most=_NAMED), columns - len(before), most=most):
            made.append(((before, "dim"), (text, _style(same[0]))))
            before = " " * len(before)
    return made


def _kind(event: Event) -> tuple[object, ...]:
    """What events that are shown as one have in common."""
    what = event["event"]
    if what == "ready":
        return (what, event["attempt"])
    if what in ("started", "ended"):
        return (what, event["attempt"], *(event.get(key) for key in ("state", "exit", "signal", "restarts")))
    return (id(event),)


def _style(event: Event) -> str:
    if event["event"] in ("ended", "verdict"):
        return "" if event.get("state") in _WELL else "bad"
    return _STYLES.get(event["event"], "")
