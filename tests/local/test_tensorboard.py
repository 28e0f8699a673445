"""gridtf tensorboard, with a server in the place of TensorBoard: how it is reached, and that nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridtf
from gridtf.errors import NotFoundError
from gridtf.login import tensorboard
from gridtf.run import registry
from tests.support.jobs import gone, until
from tests.support.python import ROOT, environment, heed_signals

# Listens as TensorBoard does, with a process of its own that ignores TERM, and writes both ids.
_SERVER = """
import os, signal, socket, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if os.path.exists(options["--logdir"] + "/broken"):
    sys.exit("something\\nit cannot read the events\\n")
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
with open(options["--logdir"] + "/pids", "w") as file:
    file.write(f"{os.getpid()} {child}")
server = socket.create_server((options["--host"], int(options["--port"])))
while True:
    server.accept()[0].close()
"""


@pytest.fixture
def job(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gridtf.Job:
    """A job that has completed, and a TensorBoard to show its results."""
    package = tmp_path / "stand-in" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(_SERVER)
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{ROOT}")
    done = gridtf.submit(gridtf.JobSpec(command=["true"], name="digits", scheduler="local"))
    assert done.wait(60).state == "COMPLETED"
    return done


@pytest.fixture
def started(job: gridtf.Job) -> Iterator[subprocess.Popen[str]]:
    with start() as process:
        yield process
        process.kill()


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gridtf", "tensorboard", "digits", *words],
        env=environment(PYTHONPATH=os.environ["PYTHONPATH"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )


def shown(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(4)]


def pids(job: gridtf.Job) -> list[int]:
    file = job.output_dir / "pids"
    return [int(word) for word in until(lambda: file.exists() and file.read_text(), "the server").split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_tensorboard_says_how_to_reach_it_and_leaves_nothing(
    job: gridtf.Job, started: subprocess.Popen[str], number: signal.Signals
) -> None:
    folder, forward, url, warning = shown(started)
    assert folder == f"TensorBoard shows {job.output_dir}\n"
    port = int(url.rpartition(":")[2].strip("/\n"))
    user, host = registry.who()["user"], tensorboard.host_name()
    assert forward == f"on your own computer:  ssh -L {port}:127.0.0.1:{port} {user}@{host}\n"
    assert warning.startswith(f"Every user of {host} can connect to it")
    socket.create_connection(("127.0.0.1", port), 10).close()
    started.send_signal(number)
    assert started.wait(30) == 130
    assert gone(*pids(job))


def test_tensorboard_ends_with_a_gridtf_that_is_killed(job: gridtf.Job, started: subprocess.Popen[str]) -> None:
    shown(started)
    server, child = pids(job)
    started.kill()
    assert gone(server)
    os.kill(child, signal.SIGKILL)  # TensorBoard's own one ends by itself


def test_tensorboard_in_a_job_ends_with_the_command(job: gridtf.Job) -> None:
    with start("--in-job") as process:
        _, forward, _, _ = shown(process)
        assert re.search(r"ssh -L (\d+):127\.0\.0\.1:\1 ", forward)
        board = gridtf.find("tensorboard-digits")
        assert board.status().state == "RUNNING"
        servers = pids(job)
        process.terminate()
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert f"job {board.id}: CANCELLED" in process.stderr.read()
    assert gone(*servers)
    assert board.status().state == "CANCELLED"


def failed(*words: str) -> tuple[int, str]:
    """Exit code and errors of a command that ends by itself."""
    with start(*words) as process:
        _, error = process.communicate(timeout=180)
    return process.returncode, error


def test_tensorboard_that_fails_says_why(job: gridtf.Job) -> None:
    (job.output_dir / "broken").touch()
    code, error = failed()
    assert (code, error.partition("\n")[0]) == (1, "starting TensorBoard")
    assert error.endswith("gridtf: TensorBoard has ended with exit code 1\n  it cannot read the events\n")
    code, error = failed("--in-job")
    assert (code, "gridtf: the job of TensorBoard has ended: " in error) == (1, True)


def test_tensorboard_refuses_what_cannot_work(job: gridtf.Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, what in (
            (["--port", port], f"port {port} of {os.uname().nodename} is in use"),
            (["--port", "0"], "argument --port: '0' is not a port"),
            (["--port", "6006", "--in-job"], "--port chooses a port of this host"),
            (["--logdir", "nowhere"], "there is no folder "),
        ):
            code, error = failed(*words)
            assert (code, what in error) == (2, True), error


def test_host_without_tensorboard_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match=f"there is no TensorBoard on {os.uname().nodename}") as caught:
        tensorboard.program()
    assert caught.value.hint.endswith("-m pip install tensorboard")
    command = tmp_path / "tensorboard"
    command.touch(0o755)
    assert tensorboard.program() == [str(command)]
