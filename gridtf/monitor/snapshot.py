"""All that the monitor shows of a job at one time, as its reader hands it over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gridtf.monitor import rows
from gridtf.monitor.charts import Point
from gridtf.monitor.history import Use
from gridtf.monitor.table import Row
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.observe.views import JobView


class Snapshot(Value):
    """A job at one time.

    Attributes:
        name: The name of the job, or its run directory while nothing has been read.
        view: Its state; None while nothing has been read.
        events: The records of its events, oldest first.
        recent: Task or host -> what it used at the last times.
        curves: (task, name of a value) -> what it reported.
        at: When this was read (time.monotonic()).
        now: The same in seconds since the epoch, by this host's clock.
        clock: The newest time in the launcher's records, by the clock of its host; None where there is no launcher.
        ends: When the walltime will be over, by the clock of the launcher's host; None where that is not known.
        private: The user who alone may read which tasks the job has; empty for a job of this user.
        reading: Whether older samples are still being read.
        trouble: Why nothing newer can be read, in one line.
    """

    name: str
    view: JobView | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    recent: Mapping[str, tuple[Use, ...]] = {}
    curves: Mapping[tuple[str, str], tuple[Point, ...]] = {}
    at: float = 0.0
    now: float = 0.0
    clock: float | None = None
    ends: float | None = None
    private: str = ""
    reading: bool = True
    trouble: str = ""

    @cached_property
    def tasks(self) -> list[Row]:
        """A row for each task: made once, since each key draws the screen anew."""
        return rows.tasks(self)

    @cached_property
    def hosts(self) -> list[Row]:
        """A row for each host, likewise."""
        return rows.hosts(self)
