"""The conformance suite on this machine's own scheduler, as authors of plugins run it, with its result."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tested
from tests.support.cluster import CHECKOUT

_TESTS = "tests/unit/schedulers/test_conformance.py::TestLiveLocal"


def test_result_of_the_suite_can_be_sent(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gridtf.testing", _TESTS]
    done = subprocess.run(
        [*command, f"--gridtf-result={file}"], cwd=CHECKOUT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    # root is the user of many a machine, and a word of some test
    tested.check(result, os.uname().nodename, *({getpass.getuser()} - {"root"}), str(tmp_path))
    if request.config.getoption("record"):
        tested.record(result)


def test_result_names_what_has_failed(tmp_path: Path) -> None:
    wrong = tmp_path / "test_wrong.py"
    wrong.write_text(
        "from gridtf.schedulers.local import scheduler\n"
        "from gridtf.testing import LiveConformance\n"
        "class TestWrong(LiveConformance):\n"
        "    scheduler = scheduler\n"
        "    def unknown_job(self): raise OSError('it is gone')\n"
        "def test_of_another_kind(): assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gridtf.testing", "-k", "unknown or available or another"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    options = ["--gridtf-result=result.json", "--rootdir=.", "test_wrong.py"]
    done = subprocess.run([*command, *options], cwd=tmp_path, env=env, capture_output=True, timeout=400, check=False)
    assert done.returncode == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["passed"] == ["test_live_is_available"]
    assert result["failed"] == ["test_live_unknown_job_is_purged"]
    assert "gone" not in json.dumps(result)
