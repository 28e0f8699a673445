"""The verdict says what has happened in the user's own words and at the user's own line, whatever TensorFlow and Keras
have wrapped the exception in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.judge.verdict import Verdict, of_task
from gridtf.contract import LOCAL_DIR, TASK_INDEX, TASK_TYPE
from gridtf.run.rundir import Attempt, RunDir
from tests.faults.exceptions import EXCEPTIONS, RUNNER, Raising
from tests.faults.firstlines import fits
from tests.support.jobs import LaunchedJob
from tests.support.legacy_keras import need_tf_keras
from tests.support.plans import task
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

HOOK = Path(gridtf.__file__).parent / "hook"
RUN = [one for one in EXCEPTIONS if sys.version_info >= (3, 11) or "ExceptionGroup" not in one.program]
# What no line below a verdict may be: an argument of a layer, a row of a tensor, the end of a rendezvous.
UNWANTED = re.compile(r" *•|.*rguments received by|[\[ ]*(\d+\.,? +)+|.*local_rendezvous.*ABORTED")


def judged(attempt: Attempt, folder: Path) -> Verdict:
    """The verdict on a task that has left its log and what its hook has noted in a folder."""
    noted = local_dir.exception(folder, "worker:0")
    assert noted is not None, (folder / "log").read_text()[-3000:]
    (folder / "log").rename(attempt.task_log("worker", 0))
    return of_task(task("worker:0"), {"state": "FAILED", "exit": 1, "pid": noted["pid"], "exception": noted}, attempt)


@pytest.mark.timeout(1200)
def test_first_line_of_every_exception_is_the_program_s_own(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(RUN))]
    for folder, one in zip(folders, RUN, strict=True):
        folder.mkdir()
        (folder / "train.py").write_text(one.program)
    env = {TASK_TYPE: "worker", TASK_INDEX: "0", LOCAL_DIR: str(tmp_path), "PYTHONPATH": f"{HOOK}:{need_tf_keras()}"}
    subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, folders)],
        env={**os.environ, **env, "CUDA_VISIBLE_DEVICES": ""},
        check=True,
    )
    attempt = RunDir(tmp_path).new_attempt()
    wrong: list[tuple[Raising, Any]] = []
    for folder, one in zip(folders, RUN, strict=True):
        verdict = judged(attempt, folder)
        assert verdict.cause is not None
        tail = verdict.cause["tail"]
        reason = verdict.reason.partition(": ")[2]
        if not (fits(one.line, reason) and verdict.hint.startswith(one.hint) and tail) or len(verdict.reason) > 1000:
            wrong.append((one, (verdict.reason, verdict.hint)))
        if unwanted := [line for line in tail if UNWANTED.match(line)]:
            wrong.append((one, unwanted))
    assert not wrong


@pytest.mark.parametrize("what", ["a `tf.function` raises", "a layer in a layer of Keras 3 raises in `fit`"])
def test_verdict_of_a_job_has_the_program_s_own_message_and_line(what: str, tmp_path: Path) -> None:
    one = next(one for one in EXCEPTIONS if one.what == what)
    (tmp_path / "train.py").write_text(one.program)
    job = LaunchedJob(tmp_path, {"command": [sys.executable, "train.py"], "gpus_per_task": 0})
    verdict = job.verdict(LIMIT)
    assert fits(f"worker:0 on HOST: {one.line}", verdict["reason"]), job.output
    assert not [line for line in verdict["cause"]["tail"] if UNWANTED.match(line)], job.output
