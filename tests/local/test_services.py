"""Services, which are no servers of TensorFlow: their ports, their addresses, and their failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch

# Asks a service until it answers, which begins at the same time; prints the answer.
ASK = """
import sys, time, urllib.request
deadline = time.monotonic() + 60
while True:
    try:
        print(urllib.request.urlopen(f"http://{sys.argv[1]}/page", timeout=10).read().decode())
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.05)
"""
# Fails when the process whose id the file has is gone, and was waited for.
FAIL_AFTER = """
until [ -s pid ] && [ ! -e "/proc/$(cat pid)" ]; do sleep 0.02; done
exit 3
"""


def test_web_server_binds_the_port_that_other_tasks_know(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("here")
    # it binds its port exclusively, as most programs do
    web_server = {"kind": "service", "command": [sys.executable, "-m", "http.server", "{port}"]}
    command = (sys.executable, "-c", ASK, "{page_hosts}")
    job = launch(*command, tasks={"page": web_server, "worker": {"count": 2}}, tasks_per_node=2)
    assert job.verdict()["state"] == "COMPLETED", job.output
    assert [(job.attempt.logs / f"worker-{index}.log").read_text() for index in (0, 1)] == ["here\n"] * 2


def test_port_and_address_are_those_of_the_task_itself(launch: Launch) -> None:
    tasks = {"page": {"kind": "service", "command": ["echo", "{port}", "{address}"]}, "worker": {"count": 2}}
    job = launch("echo", "{port}", "{address}", tasks=tasks, tasks_per_node=2)
    assert job.verdict()["state"] == "COMPLETED", job.output
    record = read_record(job.attempt.rendezvous) or {}
    addresses = {"page-0": record["outside"]["page"][0]}
    addresses |= {f"worker-{index}": each for index, each in enumerate(record["cluster"]["worker"])}
    for task, address in addresses.items():
        text = (job.attempt.logs / f"{task}.log").read_text()
        assert text == f"{address.rpartition(':')[2]} {address}\n", task


def test_service_that_failed_before_the_job_is_named_in_its_verdict(launch: Launch) -> None:
    fails = ["bash", "-c", "echo $$ > pid; exit 7"]
    job = launch(
        "bash", "-c", FAIL_AFTER, tasks={"page": {"kind": "service", "command": fails}, "worker": {"count": 1}}
    )
    reason = job.verdict()["reason"]
    assert "worker:0" in reason.split(";")[0]
    assert "page:0 had failed before" in reason


SERVED = {"chief": {"count": 1}, "ps": {"count": 1}, "worker": {"count": 0}}


def test_served_task_imports_the_modules_of_the_job_first(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "operations.py").write_text("import os\nopen('imported', 'w').write(os.environ['GRIDTF_TASK_TYPE'])\n")
    waits = ("bash", "-c", "until [ -s imported ]; do sleep 0.02; done; cat imported")
    job = launch(*waits, tasks=SERVED, serve=["ps"], serve_imports=["operations"])
    assert job.verdict()["state"] == "COMPLETED", job.output
    assert (job.attempt.logs / "chief-0.log").read_text() == "ps"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No module named 'operations'"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("raise RuntimeError('of another TensorFlow')", "of another TensorFlow"),
    ],
)
def test_module_that_a_served_task_cannot_import_is_the_reason(
    launch: Launch, tmp_path: Path, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / "operations.py").write_text(f"{text}\n")
    job = launch("sleep", "1000", tasks=SERVED, serve=["ps"], serve_imports=["operations"])
    reason = job.verdict()["reason"]
    assert reason.startswith("ps:0 on "), reason
    assert f"ImportError: serve_imports: operations cannot be imported on this host: {why}" in reason
