"""The fence round the ports of tasks: another user of the host knocks, and only the members of the job get in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gridtf.host import processes, procfs, sockets
from gridtf.run.rundir import RunDir
from tests.support.fence import KNOCK, MEMBER, RACE
from tests.support.jobs import hosts_of, until
from tests.support.strangers import ALICE, BOB, LIMIT, Strangers

pytestmark = pytest.mark.root


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    folder = Path(tempfile.mkdtemp(prefix="gridtf-fence-", dir="/tmp"))
    folder.chmod(0o755)
    made = Strangers(folder)
    try:
        yield made
    finally:
        processes.signal_all(made.jobs(), signal.SIGKILL)
        until(lambda: not made.jobs(), "the end of alice's jobs")
        for path in folder.glob("alice/run/attempt-1/state/hosts.json"):  # of agents that were killed
            for left in Path("/tmp").glob(f"gridtf-{json.loads(path.read_text())['nonce']}-*"):
                shutil.rmtree(left)
        shutil.rmtree(folder)


class Job:
    """A job of alice's whose members listen on their ports, and connect to each other in rounds.

    Args:
        strangers: alice and bob.
        words: Options of gridtf submit.
        rounds: How often each member connects to each address of all; 0: never.
        crowd: How many connections it makes at once, that it resets as soon as it is in; 0: one, that it uses.
    """

    def __init__(
        self, strangers: Strangers, *words: str, rounds: int = 3, crowd: int = 0, program: str = MEMBER
    ) -> None:
        self.strangers, self.folder = strangers, strangers.folder / "alice"
        (self.folder / "member.py").write_text(program)
        self.run, self.over = self.folder / "run", self.folder / "over"
        alone = ["--fence", "auto", "--sample-interval", "0"]  # the guard is the agent's only other child
        placed = ["--workers", "2", "--tasks-per-node", "2", "--run-dir", self.run, *alone, *words]
        command = [
            "--",
            "env",
            sys.executable,
            self.folder / "member.py",
            self.over,
            rounds,
            crowd,
            '{"127.0.0.1": "::1"}',
        ]
        done = strangers.gridtf("submit", *placed, *command, cwd=self.folder)
        assert done.code == 0, done.err

    def host(self) -> dict[str, Any]:
        """The record of the host."""
        (record,) = until(lambda: hosts_of(RunDir(self.run).attempt(1)).values(), "the host's record")
        return dict(record)

    def ports(self) -> list[int]:
        return list(self.host()["ports"].values())

    def logs(self) -> list[str]:
        return [path.read_text() for path in sorted((self.run / "attempt-1/logs").glob("worker*.log"))]

    def rounds_done(self) -> None:
        def done() -> bool:
            logs = self.logs()
            assert not any("Traceback" in log for log in logs), logs
            return len(logs) == 2 and all("rounds done" in log for log in logs)

        until(done, "the rounds of all members", seconds=2 * LIMIT)

    def end(self) -> dict[str, Any]:
        """End it; returns the verdict."""
        self.over.touch()
        path = self.run / "attempt-1/verdict.json"
        # reserved while the job runs
        until(lambda: path.exists() and path.read_text().strip().endswith("}"), "the verdict")
        return dict(json.loads(path.read_text()))

    @contextmanager
    def knocked(self, code: str = KNOCK) -> Iterator[Callable[[], dict[str, Any]]]:
        """bob knocks at all ports, from before any task listens; yields what returns the result once it is over."""
        words = [sys.executable, "-c", code, self.over, self.run]
        with self.strangers.start(BOB, words, self.strangers.folder / "bob") as process:

            def result() -> dict[str, Any]:
                self.over.touch()
                out, err = process.communicate(timeout=LIMIT)
                assert process.returncode == 0, err
                return dict(json.loads(out.splitlines()[-1]))

            yield result


def guard(job: Job) -> int:
    """The process of the guard: the child of the agent that is no task."""
    agent = job.host()["pid"]

    def found() -> int:
        children = procfs.children(agent)
        guards = [pid for pid in children if procfs.session(pid) == procfs.session(agent)]
        return guards[0] if len(children) == 3 and len(guards) == 1 else 0

    return int(until(found, "the guard beside the tasks"))


def in_from_here(uid: int, port: int, strangers: Strangers) -> bool:
    """Whether a user of this host gets into a port within some seconds."""
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 40)"
    done = strangers.run(uid, [sys.executable, "-c", code, port], strangers.folder)
    assert done.code == 0 or "timed out" in done.err or "refused" in done.err, done.err
    return done.code == 0


def test_members_get_in_and_a_stranger_on_the_same_host_does_not(strangers: Strangers) -> None:
    job = Job(strangers)
    assert job.host()["fence"] == "users"
    with job.knocked() as result:
        job.rounds_done()
        # another process of the same user, such as a TensorBoard, is a friend
        assert in_from_here(ALICE, job.ports()[0], strangers)
        bob = result()
    assert bob["tries"] > 50
    assert bob["in"] == 0
    assert job.end()["state"] == "COMPLETED"
    assert "stranger" not in "".join(job.logs())


def test_a_stranger_gets_in_without_a_fence(strangers: Strangers) -> None:
    """Hence the other tests can fail."""
    job = Job(strangers, "--fence", "off", rounds=0)
    with job.knocked() as result:
        until(lambda: "stranger" in "".join(job.logs()), "the stranger")
        assert result()["in"] > 0
    assert job.end()["state"] == "COMPLETED"


def test_hosts_lets_in_all_users_of_the_job_s_hosts_at_once(strangers: Strangers) -> None:
    job = Job(strangers, "--fence", "hosts")
    assert job.host()["fence"] == "hosts"
    job.rounds_done()
    assert in_from_here(BOB, job.ports()[0], strangers)
    assert job.end()["state"] == "COMPLETED"


def test_a_stranger_loses_the_race_for_source_ports_of_members(strangers: Strangers) -> None:
    job = Job(strangers, rounds=1000, crowd=10)
    with job.knocked(RACE) as result:
        until(lambda: (strangers.folder / "bob/raced").exists(), "500 tries of the stranger", seconds=2 * LIMIT)
        Path(f"{job.over}-enough").touch()
        job.rounds_done()
        bob = result()
    assert bob["tries"] >= 500
    assert bob["in"] == 0
    assert job.end()["state"] == "COMPLETED"
    assert "stranger" not in "".join(job.logs())


def test_ports_stay_closed_while_the_guard_is_killed_and_open_to_members_after_it(strangers: Strangers) -> None:
    job = Job(strangers)
    with job.knocked() as result:
        killed: set[int] = set()
        job.rounds_done()
        for _ in range(3):
            os.kill(latest := guard(job), signal.SIGKILL)
            killed.add(latest)
            until(lambda: guard(job) not in killed, "another guard")
        assert in_from_here(ALICE, job.ports()[1], strangers)
        bob = result()
    assert len(killed) == 3
    assert bob["in"] == 0
    assert job.end()["state"] == "COMPLETED"


def test_ports_are_closed_when_the_agent_is_killed(strangers: Strangers) -> None:
    job = Job(strangers)
    with job.knocked() as result:
        job.rounds_done()
        ports = job.ports()
        os.kill(job.host()["pid"], signal.SIGKILL)
        until(lambda: not sockets.listening(ports), "the end of the tasks")
        assert result()["in"] == 0
    assert job.end()["state"] == "FAILED"
    until(lambda: not strangers.jobs(), "the end of all processes of the job")


def test_status_says_once_that_released_ports_have_no_fence(strangers: Strangers) -> None:
    job = Job(strangers, "--ports", "release", rounds=0)
    note = "ports are open to other users (ports are released, for old versions of TensorFlow)"
    until(lambda: note in strangers.gridtf("status", job.run, cwd=job.folder).out, "the note in the status")
    assert job.end()["state"] == "COMPLETED"
    assert (job.run / "job.log").read_text().count(note) == 1


# --- TensorFlow

SERVER = """
import json, os, sys, time
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.distribute.Server(cluster, job_name="worker", task_index=config["task"]["index"])
if config["task"]["index"] == 0:
    with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session, tf.device("/job:worker/task:1"):
        print("member", session.run(tf.compat.v1.constant(20) + 1), flush=True)
print("rounds done", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
os._exit(0)
"""
CLIENT = """
import sys
import tensorflow as tf
tf.compat.v1.disable_eager_execution()
config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=10000)
with tf.compat.v1.Session(f"grpc://127.0.0.1:{sys.argv[1]}", config=config) as session:
    print("client", session.run(tf.constant(41) + 1))
"""


@pytest.mark.tensorflow
def test_a_tensorflow_client_of_another_user_is_kept_out_and_the_owner_s_gets_in(strangers: Strangers) -> None:
    job = Job(strangers, program=SERVER)
    job.rounds_done()
    assert "member 21" in "".join(job.logs())
    port = job.ports()[0]
    done = strangers.run(ALICE, [sys.executable, "-c", CLIENT, port], strangers.folder)
    assert "client 42" in done.out, done.err
    with strangers.start(BOB, [sys.executable, "-c", CLIENT, port], strangers.folder) as bob:
        try:
            out, _ = bob.communicate(timeout=180)
        except subprocess.TimeoutExpired:  # it waits for ever
            bob.kill()
            out, _ = bob.communicate()
    assert "client" not in out
    assert job.end()["state"] == "COMPLETED"
