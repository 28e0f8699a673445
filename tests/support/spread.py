"""Which process runs which unit of work: see units.py."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.units import Units, bed_of

_BEDS = 2  # of a kind, at once


class Spread(LoadScopeScheduling):
    """Gives the units to the processes in their order.

    A kind of bed is brought up by two processes, which share its units, and by a third one only where nothing else is
    left to do.
    """

    def __init__(self, config: pytest.Config, log: Any, units: Units) -> None:
        super().__init__(config, log)
        self._units = units
        self._users: dict[str, set[object]] = defaultdict(set)  # bed -> the processes that have one
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return self._units.of(nodeid)

    def _reschedule(self, node: Any) -> None:
        # not before a process has run all tests but the last, which it runs when it knows the next one
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        first = next(iter(self.workqueue))
        unit = next((unit for unit in self.workqueue if self._suits(node, unit)), first)
        self._users[bed_of(unit)].add(node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _suits(self, node: object, unit: str) -> bool:
        users = self._users[bed_of(unit)]
        return not bed_of(unit) or node in users or len(users) < _BEDS


class SideBySide:
    """The plugin with which the process that distributes the tests does so."""

    def __init__(self, units: Units) -> None:
        self._units = units

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["units"] = str(self._units.path)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Spread:
        return Spread(config, log, self._units)
