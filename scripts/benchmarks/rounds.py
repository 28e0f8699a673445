"""Measurements on the hosts of a test bed, as an ordinary user: all ways in turn, in several rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from marks import HOSTS, MARK, gone_file, kill_folder, set_begin, until_last
from ways import Ways

ROUNDS = 11
FEW = 5  # rounds of what takes longer
KILLS = 3
SUBMISSIONS = 11
LIMIT = 120.0
_SELDOM = 3
_LAST_LINES = 20


class Job:
    """Measurements inside a job. settle: waits until the scheduler has cleaned up after a way, before the next one."""

    def __init__(self, ways: Ways, settle: Callable[[], None]) -> None:
        self._ways = ways
        self._folder = ways.folder
        self._settle = settle

    def launch(
        self,
        names: Sequence[str],
        *,
        whole: Collection[str] = (),
        seldom: Collection[str] = (),
        rounds: int = ROUNDS,
        name: str = "launch",
    ) -> None:
        """Write the seconds that the ways took into NAME.json, without a first round to warm up.

        Args:
            names: The ways.
            whole: Ways that are measured to their end, not until the last of their tasks runs.
            seldom: Ways that run only in every third round.
            rounds: The number of rounds.
            name: What is measured.
        """
        times: dict[str, list[float]] = {way: [] for way in names}
        for number in range(rounds + 1):
            for way in names:
                if way in seldom and number % _SELDOM:
                    continue
                marks = self._folder / f"marks-{name}-{number}-{way}"
                seconds = self._run(way, marks)
                if way not in whole:
                    try:
                        seconds = until_last(marks, HOSTS * self._ways.each)
                    except ValueError as error:
                        raise self._failure(way, str(error)) from None
                if number:
                    times[way].append(seconds)
        write(self._folder / f"{name}.json", times)

    def to_be_killed(self, names: Sequence[str]) -> None:
        """Start the ways again, and wait for the end of each after Cluster.gone has killed one of its tasks."""
        for number in range(KILLS):
            for way in names:
                marks = kill_folder(self._folder, number, way)
                self._run(way, marks, stay=LIMIT)
                await_that(gone_file(marks).exists, f"{way} does not end")

    def _run(self, way: str, marks: Path, stay: float = 0) -> float:
        """Run a way to its end, which may be a failure when ``stay`` is set; returns the seconds it took."""
        marks.mkdir()
        command = self._ways.command(way, marks, stay)
        with self._log(way).open("wb") as output:
            environ = {**os.environ, MARK: str(marks)}
            begin = time.time()
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                raise self._failure(way, f"it has not ended after {LIMIT:g} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        end = time.time()
        set_begin(marks, begin)
        if bool(code) != bool(stay):
            raise self._failure(way, f"it ended with exit code {code}")
        self._settle()
        self._ways.tidy()
        return end - begin

    def _log(self, way: str) -> Path:
        """The output of the way's last run."""
        return self._folder / f"{way}.log"

    def _failure(self, way: str, what: str) -> SystemExit:
        lines = self._log(way).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return SystemExit("\n  ".join([f"{way}: {what}; the last lines of its output:", *(lines or ["(none)"])]))


def submit(folder: Path, ways: Mapping[str, Sequence[str]], clear: Callable[[], None]) -> None:
    """Write the seconds that commands on the login host take into submit.json.

    clear: forgets the jobs that they have submitted, which must not disturb what is measured.
    """
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(SUBMISSIONS + 1):
        for way, command in ways.items():
            begin = time.perf_counter()
            output(command)
            if number:
                times[way].append(time.perf_counter() - begin)
            clear()
    write(folder / "submit.json", times)


def gridtf(verb: str, scheduler: str, *options: str) -> list[str]:
    """`gridtf submit` or `gridtf render` of a job that does nothing."""
    return [sys.executable, "-m", "gridtf", verb, f"--scheduler={scheduler}", "--name=bench", *options, "--", "true"]


def await_that(true: Callable[[], bool], otherwise: str) -> None:
    """Wait until a condition is true. SystemExit with the message ``otherwise`` when that takes too long."""
    end = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > end:
            raise SystemExit(otherwise)
        time.sleep(0.05)


def output(command: Sequence[str], *, may_fail: bool = False) -> str:
    """Run a command; returns its output. SystemExit when it fails, unless it may."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode and not may_fail:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr}")
    return done.stdout


def write(path: Path, times: dict[str, list[float]]) -> None:
    """Write a file atomically, since Cluster waits for it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(times))
    new.replace(path)
