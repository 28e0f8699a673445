"""The examples of hooks: a real MLflow from the package index with its store of files, and a webhook."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import EXAMPLES
from tests.support.fixtures import Launch

STEPS = "import gridtf, os; gridtf.progress(7, loss=0.25); assert os.environ['GRIDTF_ATTEMPT'] == '2'"
JOB: dict[str, Any] = {"tasks": {"worker": {"count": 1}}, "params": {"lr": 0.1, "layers": 4}, "restarts": 1}
# The same, but each event waits for the hook of the one before: what is left at the end of a job has 60 s in all.
STEPS_SEEN = """
import gridtf, os, time
def seen(event):
    while not os.path.exists(event + os.environ["GRIDTF_ATTEMPT"]):
        time.sleep(0.05)
seen("start")
gridtf.progress(7, loss=0.25)
seen("first_step")
assert os.environ["GRIDTF_ATTEMPT"] == "2"
"""
MLFLOW = "mlflow-skinny==3.17.2"


@pytest.fixture(scope="session")
def python_with_mlflow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of its own, since MLflow brings packages that gridtf does not need."""
    folder = tmp_path_factory.mktemp("mlflow")
    python = str(folder / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = subprocess.run([python, "-m", "pip", "install", "-q", MLFLOW], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{MLFLOW} cannot be installed here: {done.stderr[-500:]}")
    return python


def test_mlflow_has_parameters_values_and_the_end_of_a_job(
    launch: Launch, tmp_path: Path, python_with_mlflow: str
) -> None:
    env = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    notify = shlex.join([python_with_mlflow, f"{EXAMPLES}/mlflow/notify.py"])
    on = [f'{notify} && touch "$GRIDTF_EVENT$GRIDTF_ATTEMPT"']
    job = launch(sys.executable, "-c", STEPS_SEEN, on=on, env=env, name="digits", **JOB)
    assert job.wait() == 0, job.output
    assert "hook" not in job.output.replace("hooks.log", ""), job.run.hooks_log.read_text()
    (run,) = [path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml")]
    assert {path.name: path.read_text() for path in (run / "params").iterdir()} == {"lr": "0.1", "layers": "4"}
    assert (run / "metrics" / "loss").read_text().split("\n")[-2].split()[1:] == ["0.25", "7"]
    tags = {path.name: path.read_text() for path in (run / "tags").iterdir()}
    assert (tags["state"], tags["attempt"], tags["job_id"]) == (
        "COMPLETED",
        "2",
        f"{job.process.pid}.{os.uname().nodename}",
    )
    assert tags["run_dir"] == str(job.run.path)
    meta = (run / "meta.yaml").read_text()
    assert "status: 3\n" in meta  # FINISHED
    assert "run_name: digits\n" in meta


@pytest.fixture
def posts() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of this host: its URL, and what was posted to it."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def test_webhook_posts_a_line_at_each_event(launch: Launch, posts: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = posts
    on = [shlex.join([sys.executable, f"{EXAMPLES}/webhook/notify.py"])]
    env = {"WEBHOOK_URL": url, "NO_PROXY": "127.0.0.1"}
    job = launch(sys.executable, "-c", STEPS, on=on, env=env, name="digits", **JOB)
    assert job.wait() == 0, job.output
    job_id = received[0]["record"]["job_id"]
    start, step, failure, *_, end = [each["text"].partition(f"digits (job {job_id}) ")[2] for each in received]
    assert start.startswith("has started on ")
    assert step == "trains: step 7"
    assert failure.startswith("FAILED: worker:0 on ")
    assert failure.endswith("attempt 2 follows")
    assert end.startswith("COMPLETED: ")
    assert [each["record"]["event"] for each in received].count("end") == 1


def test_unreachable_webhook_is_told_and_harmless(launch: Launch) -> None:
    on = [shlex.join([sys.executable, f"{EXAMPLES}/webhook/notify.py"])]
    env = {"WEBHOOK_URL": "http://127.0.0.1:9/", "NO_PROXY": "127.0.0.1"}
    job = launch("true", on=on, env=env, tasks={"worker": {"count": 1}})
    assert job.verdict()["state"] == "COMPLETED"
    assert "hook 1 failed with exit code 1, at end: see" in job.output
    assert "Connection refused" in job.run.hooks_log.read_text()
