"""Where launchers of 0.1.0 that an upgrade in place has overtaken find what remembers hosts. To go after 0.2.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.api import LauncherView
from gridtf.features.badhosts import InLauncher


def remember(job: Any, hosts: Any, end: Verdict, error: Exception | None, stalled: str = "") -> None:
    """Remember the host that has ended an attempt, if one has."""
    disk = "the job waited for a disk or a file system of this host"
    known = {"lost": getattr(error, "host", ""), "suspects": ((stalled, disk),) * bool(stalled)}
    now: Any = SimpleNamespace(state=end.state, reason=end.reason, cause=end.cause, **known)
    view: Any = LauncherView(job, hosts.attempt, hosts, None)  # type: ignore[arg-type]
    InLauncher(view, None).concluded(now)
