"""The streams between launcher and agents: closed by force in every phase, and strangers at the launcher's port."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gridtf.bootstrap.wire import messages
from gridtf.run.rundir import Record, read_record
from tests.faults.streams import close_connections, repeated
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, gone, until

pytestmark = pytest.mark.root

TWO_HOSTS = [{"name": "h1"}, {"name": "h2"}]
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"
PAUSE = 0.2  # seconds between two times that all connections are closed
OTHER_USER = 64002


def listener(job: LaunchedJob) -> Record:
    """Where the launcher listens."""
    return dict(until(lambda: read_record(job.attempt.listener), "the launcher to listen"))


def close_all(job: LaunchedJob) -> int:
    return close_connections(job.process.pid, listener(job)["port"])


def phase(job: LaunchedJob, piece: str) -> None:
    """Wait until the launcher's record says so."""
    until(lambda: piece in str(read_record(job.attempt.launcher)), f"{piece}; the log says:\n{job.output}")


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (7, "FAILED")])
def test_connections_that_are_closed_all_the_time_do_not_change_the_verdict(
    launch: Launch, code: int, state: str
) -> None:
    job = launch("bash", "-c", f"{UNTIL_GO}; exit {code}", hosts=TWO_HOSTS)
    port = listener(job)["port"]
    with repeated(lambda: close_connections(job.process.pid, port), PAUSE) as closed:
        pids = job.running("worker:0", "worker:1")
        seen = sum(closed)
        until(lambda: sum(closed) > seen + 4, "connections to be closed while tasks run")
        (job.folder / "go").touch()
        verdict = job.verdict()
    assert verdict["state"] == state, job.output
    if code:
        assert f"exit code {code}" in verdict["reason"]
    gone(*pids.values())


def test_connections_closed_while_hosts_are_awaited(launch: Launch) -> None:
    late = ["bash", "-c", 'until [ -e start ]; do sleep 0.05; done; exec "$@"', "late"]
    job = launch("true", hosts=[{"name": "h1"}, {"name": "h2", "prefix": late}])
    phase(job, "rendezvous: 1 of 2 hosts, waiting for h2")
    for _ in range(3):
        until(lambda: close_all(job), "the agent of h1 to be connected again")
    (job.folder / "start").touch()
    assert job.verdict()["state"] == "COMPLETED"


def test_connections_closed_in_the_tear_down(launch: Launch) -> None:
    stubborn = f'trap "" TERM; if [ $RANK = 1 ]; then {UNTIL_GO}; exit 7; fi; while :; do sleep 0.05; done'
    job = launch("bash", "-c", stubborn, hosts=TWO_HOSTS, kill_grace=20)
    pids = job.running("worker:0", "worker:1")
    (job.folder / "go").touch()
    phase(job, "ending the remaining processes")
    for _ in range(3):
        until(lambda: close_all(job), "the agents to be connected again")
    verdict = job.verdict()
    assert (verdict["cause"]["task"], verdict["cause"]["exit"]) == ("worker:1", 7)
    assert {name: task["state"] for name, task in job.tasks().items()} == {"worker:0": "STOPPED", "worker:1": "FAILED"}
    gone(*pids.values())


def test_agent_that_is_stopped_for_less_than_the_heartbeat_timeout_costs_nothing(launch: Launch) -> None:
    job = launch("bash", "-c", UNTIL_GO, hosts=TWO_HOSTS, heartbeat_timeout=20)
    pids = job.running("worker:0", "worker:1")
    agent = job.agent_pid("h2")
    os.kill(agent, signal.SIGSTOP)
    time.sleep(5)
    os.kill(agent, signal.SIGCONT)
    (job.folder / "go").touch()
    assert job.verdict()["state"] == "COMPLETED"
    gone(*pids.values())


def resident(pid: int) -> int:
    """Bytes of memory of a process (proc(5), VmHWM: the most so far)."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def visit(port: int, words: bytes) -> socket.socket:
    """A connection to the launcher, over which these bytes have been sent."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(words)
    return connection


def of_earlier_attempt(port: int, secret: bytes) -> socket.socket:
    """A connection of a process that knows everything but the secret."""
    connection = visit(port, b"")
    received = bytearray()
    while (message := messages.take(received, messages.MOST)) is None:
        received += connection.recv(4096)
    kind, content = messages.decoded(message, messages.FROM_LAUNCHER)
    assert kind == messages.CHALLENGE
    answer = secrets.token_hex(32)
    proof = messages.proof(secret, "agent", "h2", content["challenge"], answer)
    hello = {"format": messages.FORMAT, "host": "h2", "environment": True, "challenge": answer, "proof": proof}
    connection.sendall(messages.encoded(messages.HELLO, hello))
    return connection


# Sends without an end, as another user.
FLOOD = """
import socket, sys
while True:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stranger:
        try:
            stranger.sendall((1 << 30).to_bytes(4, "big"))
            while True:
                stranger.sendall(bytes(1 << 16))
        except OSError:
            pass
"""


def test_strangers_at_the_launcher_s_port_are_named_and_change_nothing(launch: Launch) -> None:
    """For the whole life of a job, which is longer than they get to prove themselves."""
    first = launch("bash", "-c", UNTIL_GO, hosts=TWO_HOSTS)
    old = bytes.fromhex(listener(first)["secret"])  # which goes with the launcher
    (first.folder / "go").touch()
    assert first.verdict()["state"] == "COMPLETED"
    (first.folder / "go").unlink()
    job = launch("bash", "-c", f"echo hello; {UNTIL_GO}", hosts=TWO_HOSTS)
    until(lambda: len(job.run.attempts()) == 2, "the second attempt")
    port = listener(job)["port"]
    user = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    with ExitStack() as stack:
        rude = {
            "a message of 1195725856 bytes, where at most 1024 are allowed": b"GET / HTTP/1.0\r\n\r\n",
            "a message of 1073741824 bytes": struct.pack("!I", 1 << 30),
            "a message that is not JSON": struct.pack("!I", 4) + b"\xff\0{]",
            "where hello or": messages.encoded("stop", {}),
        }
        for words in rude.values():
            stack.enter_context(visit(port, words))
        stack.enter_context(of_earlier_attempt(port, old))
        silent = stack.enter_context(visit(port, b""))
        half = stack.enter_context(visit(port, messages.encoded(messages.HELLO, {})[:7]))
        job.running("worker:0", "worker:1")
        for why in (*rude, "a wrong proof: it does not know the secret of this attempt"):
            until(lambda why=why: why in job.output, f"{why!r} in the log:\n{job.output}")  # type: ignore[misc]
        before = resident(job.process.pid)
        flood = stack.enter_context(subprocess.Popen([*user, sys.executable, "-S", "-c", FLOOD, str(port)]))
        stack.callback(flood.kill)
        many = [stack.enter_context(visit(port, b"")) for _ in range(200)]
        for connection in (silent, half, *many):
            connection.settimeout(30)
            while connection.recv(4096):  # the challenge; in the end the launcher closes each
                pass
        assert flood.poll() is None
        assert resident(job.process.pid) - before < 20 << 20
        assert "has not proved" in job.output
        assert job.output.count("connected to the launcher, but") == 10
        (job.folder / "go").touch()
        verdict = job.verdict()
    assert verdict["state"] == "COMPLETED", job.output
    assert "127.0.0.1 port" in job.output
