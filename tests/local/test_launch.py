"""Whole jobs that succeed: the contract of a task, placeholders, ports, and several attempts."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from gridtf.run.rundir import RunDir, read_record, write_record
from tests.support.fixtures import Launch, Program
from tests.support.jobs import until

PRINT_ENV = ("python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))")


def _environment(job: object, task: str) -> dict[str, str]:
    return json.loads((job.attempt.logs / f"{task}.log").read_text())  # type: ignore[attr-defined,no-any-return]


def test_each_task_has_the_contract(launch: Launch) -> None:
    tasks = {
        "chief": {"count": 1},
        "worker": {"count": 2},
        "evaluator": {"count": 1},
        "ps": {"count": 1, "env": {"A": "ps"}},
    }
    job = launch(*PRINT_ENV, tasks=tasks, tasks_per_node=3, env={"RANK": "77"}, name="contract")
    assert job.verdict()["state"] == "COMPLETED"
    cluster = (read_record(job.attempt.rendezvous) or {})["cluster"]
    assert {kind: len(members) for kind, members in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}

    worker = _environment(job, "worker-1")
    assert json.loads(worker["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert (worker["RANK"], worker["WORLD_SIZE"], worker["LOCAL_RANK"], worker["LOCAL_WORLD_SIZE"]) == (
        "2",
        "3",
        "2",
        "3",
    )
    assert worker["GRIDTF_TASK_TYPE"] == "worker"
    assert worker["GRIDTF_RUN_DIR"] == str(job.run.path)
    assert worker["GRIDTF_JOB_NAME"] == "contract"
    assert worker["OUTPUT_DIR"] == str(job.run.output)
    assert Path(worker["OUTPUT_DIR"]).is_dir()
    assert worker["TF_GRPC_REUSE_PORT"] == "1"
    assert "GRIDTF_SPEC" not in worker

    evaluator = json.loads(_environment(job, "evaluator-0")["TF_CONFIG"])
    own = evaluator["cluster"].pop("evaluator")  # a port of its own; the others do not know of it
    assert (len(own), own[0].rpartition(":")[0]) == (1, cluster["chief"][0].rpartition(":")[0])
    assert evaluator == {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    ps = _environment(job, "ps-0")
    assert ps["CUDA_VISIBLE_DEVICES"] == ""
    assert "RANK" not in ps
    assert ps["A"] == "ps"


def test_address_of_the_chosen_interface_is_in_the_contract_and_in_placeholders(launch: Launch) -> None:
    words = ("bash", "-c", 'echo "$TF_CONFIG $MASTER_ADDR $0"', "{worker_hosts}")
    job = launch(*words, hosts=[{"name": "h1", "address": None}], interface="lo")
    assert job.verdict()["state"] == "COMPLETED", job.output
    config, end = json.JSONDecoder().raw_decode(text := (job.attempt.logs / "worker-0.log").read_text())
    (member,) = config["cluster"]["worker"]
    assert member.rpartition(":")[0] == "127.0.0.1"
    assert text[end:].split() == ["127.0.0.1", member]


def test_missing_interface_ends_the_job_with_the_interfaces_of_the_host(launch: Launch) -> None:
    job = launch("true", hosts=[{"name": "h1", "address": None}], interface="none9")
    assert job.verdict()["reason"].startswith("host h1 has no network interface none9 (host h1 has ")
    assert "lo (127.0.0.1)" in job.output


def test_local_job_needs_no_network_that_the_site_chooses(launch: Launch) -> None:
    job = launch("bash", "-c", "echo $MASTER_ADDR", tasks={"worker": {"count": 1}}, interface="none9")
    assert job.verdict()["state"] == "COMPLETED", job.output
    assert (job.attempt.logs / "worker-0.log").read_text() == "127.0.0.1\n"


def test_placeholders_are_filled_in(launch: Launch) -> None:
    job = launch(
        "echo",
        "--ps_hosts={ps_hosts}",
        "--worker_hosts={worker_hosts}",
        "--job_name={task_type}",
        "--task_index={task_index}",
        '{"lr": {nothing}}',
        tasks={"ps": {"count": 1}, "worker": {"count": 2}},
        tasks_per_node=2,
    )
    assert job.verdict()["state"] == "COMPLETED"
    cluster = (read_record(job.attempt.rendezvous) or {})["cluster"]
    expected = (
        f"--ps_hosts={cluster['ps'][0]} --worker_hosts={','.join(cluster['worker'])}"
        ' --job_name=worker --task_index=1 {"lr": {nothing}}\n'
    )
    assert (job.attempt.logs / "worker-1.log").read_text() == expected


def test_reserved_port_cannot_be_taken_before_the_task_binds_it(launch: Launch, program: Program) -> None:
    serve = (
        "import os, socket, time\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "server = socket.socket(socket.AF_INET6)\n"
        "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(os.environ['TF_GRPC_REUSE_PORT']))\n"
        "host, port = os.environ['ADDRESS'].rsplit(':', 1)\n"
        "server.bind(('', int(port))); server.listen()\n"
        "server.accept()[0].send(b'task')\n"
    )
    task = program("task", f'ADDRESS=$1 exec python3 -c "{serve}"')
    job = launch(task, "{worker_hosts}", tasks={"worker": {"count": 1}})
    job.running("worker:0")
    address = (read_record(job.attempt.rendezvous) or {})["cluster"]["worker"][0]
    port = int(address.rsplit(":", 1)[1])

    refused = 0
    for family, wildcard in ((socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "")):
        with socket.socket(family) as rival:
            rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                rival.bind((wildcard, port))
            except OSError:
                refused += 1
    assert refused == 3

    (job.folder / "go").touch()

    def connect() -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                return connection.recv(10)
        except ConnectionRefusedError:
            return b""

    assert until(connect, "the task to serve") == b"task"
    assert job.verdict()["state"] == "COMPLETED"


def test_master_port_is_free_when_the_task_binds_it(launch: Launch, program: Program) -> None:
    bind = "import os, socket; socket.socket().bind(('', int(os.environ['MASTER_PORT'])))"
    job = launch("python3", "-c", bind, tasks={"worker": {"count": 1}})  # only rank 0 may bind it
    assert job.verdict()["state"] == "COMPLETED", job.output


def test_records_of_an_earlier_attempt_are_ignored(launch: Launch) -> None:
    """As after a requeue: the same run directory, with a rendezvous, host records, states and a verdict in it."""
    hosts = [{"name": "h1"}]
    first = launch("bash", "-c", "echo $TF_CONFIG; exit 3", hosts=hosts)
    assert first.verdict()["state"] == "FAILED"
    second = launch("bash", "-c", "echo $TF_CONFIG", hosts=hosts)
    assert second.verdict()["state"] == "COMPLETED"
    assert [attempt.number for attempt in second.run.attempts()] == [1, 2]
    config = json.loads((second.attempt.logs / "worker-0.log").read_text())
    assert config["cluster"] == (read_record(second.attempt.rendezvous) or {})["cluster"]


def test_stale_records_inside_the_attempt_are_ignored(launch: Launch) -> None:
    """A late process of an earlier attempt writes its files among the new ones: no host reads them."""
    never = ["bash", "-c", 'while [ ! -e go ]; do sleep 0.05; done; exec "$@"', "host"]
    train = "echo $TF_CONFIG; until [ -e end ]; do sleep 0.05; done; sleep 0.5"
    job = launch("bash", "-c", train, hosts=[{"name": "h1", "prefix": never}])
    attempt = job.attempt
    until(lambda: attempt.plan.exists(), "the plan")
    stale = {
        "nonce": "0123456789abcdef",
        "host": "h1",
        "beat": 9,
        "tasks": {"worker:0": {"state": "FAILED", "exit": 1}},
    }
    write_record(attempt.summary, {"nonce": "0123456789abcdef", "hosts": {"h1": stale}})
    write_record(
        attempt.rendezvous, {**stale, "cluster": {"worker": ["203.0.113.1:1"]}, "master_addr": "x", "master_port": 1}
    )
    write_record(attempt.stop, {"nonce": "0123456789abcdef", "state": "FAILED"})
    (job.folder / "go").touch()
    job.running("worker:0")
    write_record(attempt.summary, {"nonce": "0123456789abcdef", "hosts": {"h1": stale}})
    (job.folder / "end").touch()
    assert job.verdict()["state"] == "COMPLETED"
    config = json.loads((attempt.logs / "worker-0.log").read_text())
    assert config["cluster"]["worker"][0].startswith("127.0.0.1:")


def test_rendered_script_run_twice_has_two_run_directories(launch: Launch) -> None:
    first, second = launch("sleep", "0.5"), launch("sleep", "0.5")
    assert {first.wait(), second.wait()} == {0}
    runs = [path for path in first.folder.iterdir() if path.name.startswith("run") and path.is_dir()]
    assert len(runs) == 2
    for path in runs:
        verdict = read_record(RunDir(path).attempt(1).verdict)
        assert verdict is not None
        assert verdict["state"] == "COMPLETED"


def test_checkpoint_signal_reaches_the_task_and_ends_no_process(launch: Launch) -> None:
    """With control groups Slurm sends it to what srun has started, which is the supervisor."""
    trap = (
        "trap 'echo asked >>asked' USR1; echo $GRIDTF_LOCAL_DIR >local_dir; echo $$ >pid;"
        "until [ -s asked ] && [ -e $GRIDTF_LOCAL_DIR/checkpoint ]; do sleep 0.05; done"
    )
    job = launch("bash", "-c", trap, hosts=[{"name": "h1"}], tasks={"worker": {"count": 1}})
    job.written("pid")
    agent = job.agent_pid("h1")
    supervisor = int(Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(job.process.pid, signal.SIGUSR1)  # as --signal=B:USR1@120 would
    os.kill(supervisor, signal.SIGUSR1)
    assert job.verdict()["state"] == "COMPLETED", job.output
    assert not Path((job.folder / "local_dir").read_text().strip()).exists()
