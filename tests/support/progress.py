"""What a person sees while tests run in several processes: how much is left, what runs, and each failure at once."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import units
from tests.support.units import Units

_PAUSE, _PAUSE_ON_TERMINAL = 20.0, 1.0  # seconds between two lines, which replace each other on a terminal
_MOST_LINES = 20  # of the message of a failure


class Progress:
    """A plugin of the process that distributes the tests.

    Args:
        reporter: pytest's own, whose dots it replaces.
        unit_of: Which unit a test is in.
        keep: Write down how long everything took: units.DURATIONS.
    """

    def __init__(
        self, reporter: pytest.TerminalReporter, unit_of: Units, *, keep: bool, now: float | None = None
    ) -> None:
        self._reporter, self._units, self._keep = reporter, unit_of, keep
        self._begin = time.monotonic() if now is None else now
        self._tests: Sequence[str] = ()
        self._counts: Counter[str] = Counter()  # unit -> its tests
        self._share: dict[str, float] = {}  # unit -> expected seconds of each of its tests
        self._whole = self._done = 0.0  # expected seconds
        self._finished = self._failed = 0
        self._running: dict[str, float] = {}  # test -> its start
        self._took: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)  # unit -> as in units.DURATIONS
        self._left_out: Counter[str] = Counter()
        self._over = threading.Event()

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if not self._tests:
            self.expect(ids)
            threading.Thread(target=self._tell, daemon=True).start()

    def expect(self, ids: Sequence[str]) -> None:
        """These tests will run."""
        self._tests, self._counts = ids, Counter(map(self._units.of, ids))
        seconds = units.expected(self._counts)
        self._whole = sum(seconds.values())
        self._share = {unit: seconds[unit] / count for unit, count in self._counts.items()}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        unit = self._units.of(nodeid)
        self._took[unit][0] += time.monotonic() - self._running.pop(nodeid)
        self._done += self._share.get(unit, 0)
        self._finished += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for kind, spent in enumerate(getattr(report, "spent", ()), 1):
            self._took[self._units.of(report.nodeid)][kind] += spent
        if report.failed:
            self._failed += 1
            self._erase()
            self._reporter.write_line(f"failed: {report.nodeid}", red=True)
            crash = getattr(report.longrepr, "reprcrash", None)
            for line in crash.message.splitlines()[:_MOST_LINES] if crash else ():  # the whole comes at the end
                self._reporter.write_line(f"    {line}")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        """Without letters; the word of a failure is for the summary."""
        category, _, word = yield
        return category, "", word if report.failed else ""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._over.set()
        self._erase()
        if self._keep and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            units.record(self._took, self._counts)

    def pytest_terminal_summary(self) -> None:
        if self._keep:
            self._tell_cpu()
        if self._left_out:
            left = ", ".join(f"{count:,} of {topic}" for topic, count in sorted(self._left_out.items()))
            self._reporter.section("not run")
            self._reporter.write_line(f"tests left out: {left}")
            more = "all of them: scripts/test --release; what a landing needs: --all; one topic: scripts/test slurm, …"
            self._reporter.write_line(more)

    def _tell_cpu(self) -> None:
        self._reporter.section("CPU-seconds, of these daemons of test beds")
        beds: dict[str, list[float]] = defaultdict(lambda: [0.0] * 2)
        for unit, (_, spent, daemons) in self._took.items():
            for name in ("all", units.bed_of(unit) or unit.split("/")[1]):
                beds[name] = [beds[name][0] + spent, beds[name][1] + daemons]
        for name, (spent, daemons) in sorted(beds.items(), key=lambda item: -item[1][0]):
            self._reporter.write_line(f"{spent:8,.0f}{daemons:8,.0f}  {name}")

    def _tell(self) -> None:
        on_terminal = bool(self._reporter.isatty)
        while not self._over.wait(_PAUSE_ON_TERMINAL if on_terminal else _PAUSE):
            line = self.line(time.monotonic())
            if on_terminal:
                self._reporter.rewrite(line[: shutil.get_terminal_size().columns - 1], erase=True)
            else:
                self._reporter.write_line(line)

    def _erase(self) -> None:
        if self._reporter.isatty:
            self._reporter.rewrite("", erase=True)

    def line(self, now: float) -> str:
        """What has been done, what is left and what runs."""
        spent, part = now - self._begin, self._done / self._whole if self._whole else 0
        left = f", about {spent * (1 - part) / part / 60:.0f} min left" if part > 0.05 else ""
        failed = f", {self._failed} failed" if self._failed else ""
        running = ", ".join(f"{_short(test)} {now - begin:.0f} s" for test, begin in dict(self._running).items())
        done = f"{self._finished:,} of {len(self._tests):,} tests{failed}"
        return f"{spent // 60:3.0f}:{spent % 60:02.0f} {part:4.0%}{left}; {done}; now {running}"


def _short(name: str) -> str:
    """tests/cluster/test_jobs.py::test_cancel[sge] -> cluster/jobs: cancel[sge]"""
    file, _, test = name.partition("::")
    return f"{file.removeprefix('tests/').removesuffix('.py')}: {test}".replace("test_", "")
