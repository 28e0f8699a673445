"""Samples of a host, and what they add up to."""

from __future__ import annotations

from typing import Any

from gridtf.report.usage import Usage


def sample(time: float, host: str = "n1", **more: Any) -> dict[str, Any]:
    """A sample of a host with one GPU and one task."""
    task = {"cpu": 2.0, "memory": 1 << 30, "read": 0.0, "written": 0.0, "processes": 1, "threads": {}, **more}
    return {
        "time": time,
        "host": host,
        "cpus": 8,
        "cpu": 3.0,
        "memory": 2 << 30,
        "memory_total": 8 << 30,
        "received": 0.0,
        "sent": 0.0,
        "tasks": {"worker:0": task},
        "gpus": {"0": {"use": 50.0, "memory": 4 << 30, "memory_total": 8 << 30, "power": 360.0}},
    }


def used(*samples: dict[str, Any]) -> Usage:
    """What these samples add up to."""
    usage = Usage()
    for one in samples:
        usage.add(one)
    return usage
