"""gridtf.progress: cheap, at most one write a second, the last report at exit, and numbers that every reader takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import reporting
from gridtf.bootstrap.agent import local_dir
from gridtf.errors import UsageError
from tests.support.python import environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """GRIDTF_LOCAL_DIR of worker:1, in a process that has reported nothing yet."""
    for name, value in (("LOCAL_DIR", str(tmp_path)), ("TASK_TYPE", "worker"), ("TASK_INDEX", "1")):
        monkeypatch.setenv(f"GRIDTF_{name}", value)
    monkeypatch.setattr(reporting, "_reporter", reporting._Reporter())
    monkeypatch.setattr("atexit.register", lambda _: None)
    return tmp_path


def written(folder: Path) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(f"not JSON: {word}")

    text = (folder / "progress-worker-1.json").read_text()
    return json.loads(text, parse_constant=refuse)


class Scalar:
    """As NumPy's and TensorFlow's; counts how often it is read."""

    def __init__(self, value: float) -> None:
        self.value, self.read = value, 0

    def __float__(self) -> float:
        self.read += 1
        return self.value

    def __int__(self) -> int:
        return int(self.value)


def test_extremes_of_all_reports_are_written_for_some_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(now: float, loss: float) -> Any:
        monkeypatch.setattr(time, "monotonic", lambda: now)
        gridtf.progress(1, loss=loss, other=Scalar(loss))
        return written(folder)["ranges"]

    for now, loss in ((100.0, 1.0), (100.2, 9.0), (100.4, -3.0), (100.6, float("nan"))):
        assert report(now, loss) == {"loss": [1.0, 1.0]}  # as it was first
    for now in (101.0, 102.0, 103.0):  # again and again, for an agent that has not read it before
        assert report(now, 2.0) == {"loss": [-3.0, 9.0]}
    assert report(104.0, 2.0) == {"loss": [2.0, 2.0]}


def test_first_report_is_written_at_once_then_one_a_second_and_the_last_at_exit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    gridtf.progress(1, loss=2.5)
    assert written(folder)["step"] == 1
    assert written(folder)["values"] == {"loss": 2.5}
    assert abs(written(folder)["time"] - time.time()) < 60
    loss = Scalar(1.5)
    now = 100.9
    gridtf.progress(2, loss=loss)
    assert (written(folder)["step"], loss.read) == (1, 0)
    now = 101.0
    gridtf.progress(Scalar(3), loss=loss)
    assert (written(folder)["step"], written(folder)["values"], loss.read) == (3, {"loss": 1.5}, 1)
    gridtf.progress(4)
    reporting._reporter.end()
    assert (written(folder)["step"], written(folder)["values"]) == (4, {})
    assert local_dir.progress(folder, "worker:1") == written(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["progress-worker-1.json"]


def test_nan_and_inf_are_words_since_json_has_no_numbers_for_them(folder: Path) -> None:
    inf = float("inf")
    gridtf.progress(1, a=float("nan"), b=inf, c=-inf, d=True, e=2**70)
    values = written(folder)["values"]
    assert values == {"a": "nan", "b": "inf", "c": "-inf", "d": 1.0, "e": float(2**70)}
    assert [str(float(values[name])) for name in "abc"] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("value", ["0.5", None, [1.0]])
def test_value_that_is_no_number_is_refused(value: Any, folder: Path) -> None:
    gridtf.progress(1)
    with pytest.raises(UsageError, match="loss is not a number but"):
        gridtf.progress(2, loss=value)


def test_value_that_only_looks_like_a_number_is_refused_when_it_is_written(folder: Path) -> None:
    class Vector:
        def __float__(self) -> float:
            raise TypeError("only length-1 arrays can be converted")

    with pytest.raises(UsageError, match="loss is not a number but Vector"):
        gridtf.progress(1, loss=Vector())


@pytest.mark.parametrize("step", [None, "a", float("nan"), float("inf")])
def test_step_that_is_no_number_is_refused(step: Any, folder: Path) -> None:
    with pytest.raises(UsageError, match="is not a number of steps"):
        gridtf.progress(step)


def test_number_that_no_float_can_hold_is_reported_as_infinite(folder: Path) -> None:
    gridtf.progress(1, a=10**400, b=-(10**400))
    assert written(folder)["values"] == {"a": "inf", "b": "-inf"}


def test_a_disk_that_cannot_be_written_does_not_end_a_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDTF_LOCAL_DIR", str(folder / "gone"))
    gridtf.progress(1)


def test_outside_a_task_nothing_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRIDTF_LOCAL_DIR")
    gridtf.progress(1, loss=0.5)
    assert list(folder.iterdir()) == []


@pytest.mark.thorough
def test_a_program_of_many_steps_spends_little_on_its_reports_and_leaves_the_last_one(tmp_path: Path) -> None:
    program = """
import sys, time, gridtf
gridtf.progress(0, loss=1.0)
begin = time.process_time()
for step in range(1, 20001):
    gridtf.progress(step, loss=1.0 / step, accuracy=0.5)
print((time.process_time() - begin) / 20000)
assert not {"tensorflow", "numpy"} & set(sys.modules)
"""
    names = {"GRIDTF_LOCAL_DIR": str(tmp_path), "GRIDTF_TASK_TYPE": "worker", "GRIDTF_TASK_INDEX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment(), **names}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20e-6
    assert written(tmp_path)["step"] == 20000


def test_record_that_is_no_report_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "progress-worker-0.json"
    for text in ("", "{", "[]", '{"step": "x", "values": {}, "time": 1.0}', '{"step": 1}'):
        file.write_text(text)
        assert local_dir.progress(tmp_path, "worker:0") is None
    file.unlink()
    os.mkfifo(file)
    assert local_dir.progress(tmp_path, "worker:0") is None


def test_last_report_of_a_program_has_its_own_step_whatever_that_is(folder: Path) -> None:
    class Step(Scalar):
        """As a variable of Keras 3 is one."""

        def __bool__(self) -> bool:
            raise TypeError("a variable cannot be used as a boolean")

    reporting.finish(3)
    assert written(folder)["step"] == 3
    gridtf.progress(Step(7))
    reporting.finish(9)
    assert written(folder)["step"] == 7
