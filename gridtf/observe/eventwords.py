"""The events of a job in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gridtf.states import TaskState
from gridtf.text import counted, some

Event = Mapping[str, Any]

_NEWS = ("allocated", "notice", "stalled", "going on", "slow", "in step", "stopping")


def is_news(event: Event) -> bool:
    """Whether an event says more than the states of the job, which those who follow it see as well."""
    kind = event["event"]
    return (
        kind in _NEWS
        or (kind == "started" and bool(event.get("restarts")))
        or (kind == "ended" and event.get("state") == TaskState.FAILED)
        or (kind == "verdict" and bool(event.get("next")))
    )


def words(events: Sequence[Event], *, most: int = 16) -> str:
    """An event in words, or several that differ in their host or task alone.

    Args:
        events: Records of events.jsonl, at least one, each with its attempt. Their texts may hold control characters.
        most: Hosts or tasks that are named.
    """
    first = events[0]
    kind, text = first["event"], first.get("text", "")
    if kind == "allocated":
        hosts = first.get("hosts", [])
        return f"allocated {counted(len(hosts), 'host')}: {some(hosts, most=most)}"
    if kind == "ready":
        return f"ready: {some([event.get('host', '') for event in events], most=most)}"
    if kind in ("started", "ended"):
        return f"{_of_tasks(first)}: {_tasks(events, most)}"
    if kind == "stopping":
        return f"ending the tasks: {text}"
    if kind in ("exec", "exec ended"):
        code = f", {outcome(first)}" if kind == "exec ended" and outcome(first) else ""
        return (
            f"{kind}: {text} ({first.get('user', '')} beside {first.get('task', '')} on {first.get('host', '')}{code})"
        )
    if kind == "verdict":
        then = f"; attempt {first['next']} follows" if first.get("next") else ""
        return f"attempt {first['attempt']} {first.get('state', '')}: {text}{then}"
    known = {"queued": "submitted", "rendezvous": "all hosts have reported their ports", "going on": "its tasks go on"}
    if kind == "in step":
        return f"{first.get('task', '')} on {first.get('host', '')} holds the others up no more"
    if kind in known:
        return known[kind]
    return str(text) if kind in _NEWS and text else f"{kind}: {text}" if text else str(kind)


def outcome(event: Event) -> str:
    """How a task ended: the signal, or the exit code unless the task is COMPLETED; empty where neither is known."""
    if event.get("signal"):
        return str(event["signal"])
    code = event.get("exit")
    return "" if code is None or event.get("state") == TaskState.COMPLETED else f"exit code {code}"


def _of_tasks(event: Event) -> str:
    """What happened to tasks."""
    if event["event"] == "started":
        return f"started again (restarts: {event['restarts']})" if event.get("restarts") else "started"
    return ", ".join(filter(None, (event.get("state", "ended"), outcome(event))))


def _tasks(events: Sequence[Event], most: int) -> str:
    names = [event.get("task", "") for event in events]
    on = f" on {events[0]['host']}" if len(events) == 1 and "host" in events[0] else ""
    return some(names, most=most) + on
