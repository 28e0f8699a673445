"""Ports and the versions of TensorFlow that the Pythons of tasks have, with stand-ins for real installations.

The old server is a stand-in: it binds its port exclusively, as TensorFlow's does up to 2.2. TensorFlow 1.15.0 and 2.2.0
themselves need Python 3.7 or 3.8, and were tried by hand.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import ROOT, LaunchedJob

SERVER = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
port = int(config["cluster"][task["type"]][task["index"]].rpartition(":")[2])
with socket.create_server(("", port)):
    print("serves", port)
"""


def install(folder: Path, *versions: str) -> str:
    """Make a folder for PYTHONPATH in which this version of TensorFlow seems to be installed."""
    for version in versions:
        (folder / f"tensorflow_cpu-{version}.dist-info").mkdir(parents=True)
    return f"{ROOT}:{folder}"


@pytest.mark.parametrize(
    ("version", "ports", "state"),
    [("1.15.5", {}, "COMPLETED"), ("2.2.0", {}, "COMPLETED"), ("2.2.0", {"ports": "hold"}, "FAILED")],
)
def test_port_is_let_go_for_a_server_that_cannot_share_it(
    version: str, ports: dict[str, str], state: str, tmp_path: Path
) -> None:
    (tmp_path / "serve.py").write_text(SERVER)
    spec: dict[str, Any] = {"command": [sys.executable, "serve.py"], "tasks": {"worker": {"count": 2}}, **ports}
    packages = install(tmp_path / "packages", version)
    job = LaunchedJob(tmp_path, {**spec, "tasks_per_node": 2, "gpus_per_task": 0, "env": {"PYTHONPATH": packages}})
    assert job.verdict()["state"] == state, job.output
    logs = [job.attempt.task_log("worker", index).read_text() for index in (0, 1)]
    assert all("serves" in log for log in logs) == (state == "COMPLETED")
    assert any("Address already in use" in log for log in logs) == (state == "FAILED")


def test_hosts_with_different_versions_are_named_before_the_tasks_start(tmp_path: Path) -> None:
    old, none = install(tmp_path / "old", "2.15.1"), install(tmp_path / "none")
    hosts = [
        {"name": name, "prefix": ["env", f"PYTHONPATH={path}:{os.environ.get('PYTHONPATH', '')}"]}
        for name, path in (("n1", old), ("n2", old), ("n3", none))
    ]
    # a Python that has no TensorFlow itself
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\nversion = 3.11.7\n")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    program = "import os, sys; print('started'); sys.exit(os.environ['RANK'] == '2')"
    spec = {"command": [str(python), "-c", program], "tasks": {"worker": {"count": 3}}, "gpus_per_task": 0}
    job = LaunchedJob(tmp_path, spec, hosts)
    verdict = job.verdict()
    differ = "hosts have different versions of TensorFlow: 2.15.1 on n1, n2; none on n3"
    assert verdict["reason"] == f"worker:2 on n3: exit code 1 ({differ})"
    assert f"gridtf: {differ}\n" in job.output
    assert "TensorFlow supports one version per cluster" in job.output
    assert job.output.index(differ) < job.output.index("FAILED:")
