"""The conformance suite of gridtf.testing on real clusters, run on their login host as a plain user."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import tested
from tests.support.cluster import CHECKOUT, HOSTS, SHARED


@pytest.mark.parametrize(("name", "tests"), [("slurm", "TestSlurm"), ("sge", "TestGridEngine")])
def test_live_conformance(request: pytest.FixtureRequest, name: str, tests: str) -> None:
    bed = request.getfixturevalue(name)
    # without the conftest of these tests, which removes the variables of a cluster from the environment
    options = ("-q", "-p", "no:cacheprovider", "--noconftest", f"--basetemp={SHARED}/home/alice/conformance")
    file = bed.home() / "result.json"
    plugin = ("-p", "gridtf.testing", f"--gridtf-result={bed.seen(file)}")
    done = bed.run(
        "login",
        *("python", "-m", "pytest", *options, *plugin, f"{CHECKOUT}/tests/support/live.py::{tests}"),
        env={"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1", "GRIDTF_SITE_CONFIG": ""},
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout), done.stdout
    assert "skipped" not in done.stdout
    result = json.loads(file.read_text())
    tested.check(result, "alice", SHARED, *(f'"{host}"' for host in HOSTS))
    assert re.search(r"\d+\.\d+", result["version"])
    if request.config.getoption("record"):
        tested.record(result)
