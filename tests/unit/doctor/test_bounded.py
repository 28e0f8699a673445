"""Work in a process of its own, with a deadline."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from gridtf.doctor.bounded import Aside
from gridtf.host import procfs

T = TypeVar("T")


def soon() -> float:
    return time.monotonic() + 30


def result(work: Aside[T], deadline: float) -> T | None:
    try:
        return work.result(deadline)
    finally:
        work.end()


def test_result_comes_back_from_another_process() -> None:
    text, pid = result(Aside(lambda: ("x" * 200_000, os.getpid())), soon()) or ("", 0)
    assert len(text) == 200_000
    assert pid not in (0, os.getpid())


def test_works_run_side_by_side(tmp_path: Path) -> None:
    def meet(number: int) -> str:
        (tmp_path / str(number)).touch()
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        return "met"

    works = [Aside(partial(meet, number)) for number in range(4)]
    assert [result(work, soon()) for work in works] == ["met"] * 4


def test_silent_work_ends_at_the_deadline_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def hang() -> str:
        child = subprocess.Popen(["sleep", "60"])
        pid.with_suffix(".new").write_text(str(child.pid))
        pid.with_suffix(".new").rename(pid)
        child.wait()
        return "never"

    work = Aside(hang)
    while not pid.exists():
        time.sleep(0.01)
    assert result(work, time.monotonic()) is None
    deadline = time.monotonic() + 10
    while procfs.alive(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_work_that_dies_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(Aside(lambda: os._exit(3)), soon()) is None
    monkeypatch.setattr(pickle, "dumps", lambda found: b"\x80\x04K")  # it was killed while it wrote
    assert result(Aside(lambda: 1), soon()) is None


def test_work_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    def begin() -> None:
        Aside(hang)
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def hang() -> None:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "pid")
        time.sleep(60)

    assert result(Aside(begin), soon()) is None
    deadline = time.monotonic() + 10
    while procfs.alive(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
