"""A program that ignores the cluster trains once per task, which gridtf says; one that joins it is not suspected."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Launch
from tests.support.jobs import ROOT, LaunchedJob, until
from tests.support.mpi import MPICH, variables
from tests.support.python import environment
from tests.support.tasks import LIMIT

# worker:0 and worker:1 of each job; a shell starts the program, as in many jobs. An agent knows TensorFlow by its
# library, which is loaded in a tenth of a second; all of TensorFlow is in what joins the cluster.
ALONE = """
import ctypes, importlib.util, os, time

(folder,) = importlib.util.find_spec("tensorflow").submodule_search_locations
library = ctypes.CDLL(f"{folder}/libtensorflow_framework.so.2")
while not os.path.exists("seen"):
    time.sleep(0.05)
"""
TOGETHER = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("sum", float(strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))))
"""
OWN_WAY = f"""{ALONE}
import socket

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        other, _ = server.accept()
        other.sendall(b"1")
        other.recv(1)
else:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            continue
    other.recv(1)
    other.sendall(b"1")
"""

# In step through sockets of their own: each tells its port in a file, and sends the other one a byte.
OWN_PORTS = f"""
import os, socket, time

rank = int(os.environ["RANK"])
server = socket.create_server(("127.0.0.1", 0))
with open(f"new{{rank}}", "w") as file:
    file.write(str(server.getsockname()[1]))
os.rename(f"new{{rank}}", f"port{{rank}}")
{ALONE}
while not os.path.exists(f"port{{1 - rank}}"):
    time.sleep(0.05)
other = socket.create_connection(("127.0.0.1", int(open(f"port{{1 - rank}}").read())))
other.sendall(b"1")
assert server.accept()[0].recv(1) == b"1"
"""

# JAX waits for minutes, at the end of a process, for the others to end: here before it has computed anything.
RAISES_IN_JAX = """
import os, jax

world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
jax.distributed.initialize(os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"], world, rank)
if rank == 1:
    raise ValueError("the loss is not a number")
from jax.experimental import multihost_utils
multihost_utils.sync_global_devices("end")
"""

MPI = """
import os, time
from mpi4py import MPI

print("rank", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size, flush=True)
while not os.path.exists("seen"):
    time.sleep(0.05)
"""


def seen_of(job: LaunchedJob) -> list[str]:
    """What was seen of TensorFlow in each task."""
    return [task.get("tensorflow", "") for task in job.tasks().values()]


def host_of_its_own() -> list[str]:
    """The prefix of a command that runs in a network namespace of its own; empty where none can be made.

    MASTER_PORT is free until the program binds it: on a busy machine, an unrelated process may connect from it.
    """
    prefix = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "host"]
    return [] if subprocess.run([*prefix, "true"], capture_output=True, timeout=60, check=False).returncode else prefix


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("program", "seen"),
    [(ALONE, {"loaded"}), (TOGETHER, {"joined"}), (OWN_WAY, {"elsewhere", "loaded"})],
    ids=["alone", "together", "own way"],
)
def test_tasks_that_trained_separately_are_named_and_no_others(program: str, seen: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    command = ["bash", "-c", f"{shlex.quote(sys.executable)} train.py; exit $?"]
    spec: dict[str, Any] = {"command": command, "tasks": {"worker": {"count": 2}}, "tasks_per_node": 2}
    spec |= {"gpus_per_task": 0, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}}
    job = LaunchedJob(tmp_path, spec, prefix=host_of_its_own())

    def looked() -> bool:
        seen = [task for task in job.tasks().values() if task.get("tensorflow", "")]
        return len(seen) == 2 or job.process.poll() is not None

    until(looked, "both to be seen", LIMIT)
    (tmp_path / "seen").touch()
    verdict = job.verdict(LIMIT)
    assert verdict["state"] == "COMPLETED", job.output
    assert {task.get("tensorflow", "") for task in job.tasks().values()} == seen
    warned = "2 workers trained separately: none joined the cluster"
    assert (warned in verdict["reason"]) == (program == ALONE)
    assert (warned in job.output) == (program == ALONE)
    assert ("MultiWorkerMirroredStrategy for a loop" in verdict["hint"]) == (program == ALONE)


@pytest.mark.tensorflow
def test_ports_that_tasks_have_opened_by_themselves_are_named(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_PORTS)
    command = ["bash", "-c", f"{shlex.quote(sys.executable)} train.py; exit $?"]
    job = launch(*command, tasks={"worker": {"count": 2}}, tasks_per_node=2, gpus_per_task=0)
    until(
        lambda: seen_of(job) == ["loaded"] * 2,
        f"both; {job.output}",
        LIMIT,
    )
    (tmp_path / "seen").touch()
    verdict = job.verdict(LIMIT)
    assert verdict["state"] == "COMPLETED", job.output
    ports = [(tmp_path / f"port{rank}").read_text() for rank in (0, 1)]
    opened = f"worker:0 on {ports[0]}, worker:1 on {ports[1]}"
    assert f"2 workers did not join the cluster, and opened ports of their own: {opened}" in verdict["reason"]
    assert "trained separately" not in verdict["reason"]
    assert "if they trained together by these, say so: --env TF_CONFIG=" in verdict["hint"]


@pytest.mark.skipif(not find_spec("jax"), reason="no jax in this environment: pip install jax")
def test_task_of_jax_that_an_exception_has_ended_does_not_wait_for_the_others(launch: Launch) -> None:
    spec = {"tasks": {"worker": {"count": 2}}, "tasks_per_node": 2, "gpus_per_task": 0, "env": {"JAX_PLATFORMS": "cpu"}}
    job = launch(sys.executable, "-c", RAISES_IN_JAX, **spec)
    reason = job.verdict(LIMIT)["reason"]
    assert reason.startswith("worker:1 on ") and "ValueError: the loss is not a number" in reason, job.output
    assert job.tasks()["worker:1"]["signal"] == "SIGKILL", "it was ended, and did not wait"


@pytest.fixture(scope="module")
def with_mpi() -> dict[str, str]:
    """The variables with which a program finds mpi4py, its MPI and mpiexec."""
    found = variables(MPICH, os.environ["PATH"])
    return {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{ROOT}"}


@pytest.mark.parametrize(
    ("starter", "said", "seen"), [("", "rank 0 of 1", "alone"), ("mpiexec -n 2", "of 2", "elsewhere")]
)
def test_tasks_that_are_each_a_world_of_mpi_are_told(
    starter: str, said: str, seen: str, with_mpi: dict[str, str], launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MPI)
    words = " ".join(shlex.quote(f"{name}={place}") for name, place in with_mpi.items())
    command = f"export {words}; {starter} {shlex.quote(sys.executable)} train.py; exit $?"
    job = launch("bash", "-c", command, tasks={"worker": {"count": 2}}, tasks_per_node=2, gpus_per_task=0)
    until(lambda: seen_of(job) == [seen] * 2, f"both; {job.output}")
    (tmp_path / "seen").touch()
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED", job.output
    assert all(said in job.attempt.task_log("worker", index).read_text() for index in (0, 1))
    warned = "2 workers trained separately: to MPI or Horovod, each was rank 0 of 1"
    assert (warned in verdict["reason"]) == (seen == "alone")


def test_processes_of_mpirun_that_call_gridtf_join_are_one_world_and_one_job(
    with_mpi: dict[str, str], tmp_path: Path
) -> None:
    program = """
from mpi4py import MPI
import json, os
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
os.write(1, f"{index} {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n".encode())  # whole
"""
    script = f'source "{ROOT}/scripts/gridtf-bootstrap.sh"; gridtf_join; exec "$0" -c "$1"'
    done = subprocess.run(
        ["mpiexec", "-n", "2", "bash", "-c", script, sys.executable, program],
        cwd=tmp_path,
        env={**environment(), **with_mpi, "GRIDTF_JOB_ID": "world-1", "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == ["0 0 of 2", "1 1 of 2"], done


# A client of the session of worker:0, which waits for all members of its cluster, also for the client if it is one.
IN_GRAPH = """
import json, os
import tensorflow as tf

worker = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0]
with tf.Graph().as_default(), tf.compat.v1.Session(f"grpc://{worker}") as session:
    print(session.run(tf.constant(1.0)))
"""


SERVER = f"""{ALONE.partition("while")[0]}
import json, socket

port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].rpartition(":")[2]
with socket.create_server(("", int(port)), reuse_port=True):
    time.sleep(600)
"""


@pytest.mark.tensorflow
def test_client_that_is_left_out_of_the_cluster_uses_a_served_worker(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(IN_GRAPH)
    tasks = {"chief": {"command": [sys.executable, "client.py"], "in_cluster": False}, "worker": {"count": 1}}
    spec = {"command": ["true"], "tasks": tasks, "serve": ["worker"], "tasks_per_node": 2, "gpus_per_task": 0}
    job = LaunchedJob(tmp_path, {**spec, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}})
    assert job.verdict(LIMIT)["state"] == "COMPLETED", job.output
    assert job.tasks()["worker:0"].get("tensorflow") == "joined"


def test_client_that_is_typed_as_a_member_is_the_reason_of_a_timeout(launch: Launch, tmp_path: Path) -> None:
    """The client has loaded TensorFlow and opens no port, and the worker has opened its own."""
    (tmp_path / "client.py").write_text(ALONE)
    (tmp_path / "server.py").write_text(SERVER)
    tasks = {"chief": {}, "worker": {"count": 1, "command": [sys.executable, "server.py"]}}
    job = launch(sys.executable, "client.py", tasks=tasks, tasks_per_node=2, gpus_per_task=0)
    until(
        lambda: seen_of(job) == ["loaded", "joined"],
        "the server",
        LIMIT,
    )
    os.kill(job.process.pid, signal.SIGALRM)
    verdict = job.verdict()
    assert verdict["state"] == "TIMEOUT", job.output
    assert "chief:0, a member of the cluster, has not opened its port for TensorFlow" in verdict["reason"]
    assert "in_cluster = false in [tasks.chief]" in verdict["hint"]
