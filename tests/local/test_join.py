"""gridtf_join: processes that srun, mpirun or a user has started become the tasks of one job."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridtf import contract
from gridtf.cli import main
from gridtf.host import procfs
from gridtf.host.procfs import alive
from gridtf.login.job import find
from gridtf.run.rundir import RunDir, read_record
from tests.support.jobs import gone, until
from tests.support.joining import Rank
from tests.support.python import KERNEL_REPORTS_EXITS, environment

Join = Callable[..., Rank]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """join(rank, size, options): start one process of a run; processes that are left after the test are killed."""
    ranks: list[Rank] = []

    def start(
        rank: int,
        size: int,
        options: str = "",
        *,
        word: str = "run-1",
        script: str | None = None,
        folder: Path = tmp_path,
        descriptors: tuple[int, ...] = (),
        **env: str,
    ) -> Rank:
        who = {"RANK": str(rank), "WORLD_SIZE": str(size), "GRIDTF_JOB_ID": word, **env}
        ranks.append(Rank(folder, options, who, script, descriptors))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.kill()


def run_of(rank: Rank) -> RunDir:
    return RunDir(rank.environment["GRIDTF_RUN_DIR"])


def holder_of(rank: Rank, number: int) -> int:
    attempt = run_of(rank).attempt(1)
    record = until(lambda: read_record(attempt.rank_state(f"rank-{number}")), "the port holder's sign of life")
    return int(record["pid"])


def bound(port: int) -> bool:
    """Whether a process holds this port."""
    with socket.socket() as rival:
        try:
            rival.bind(("", port))
        except OSError:
            return True
        return False


# --- the contract


def test_each_process_becomes_one_task_with_the_contract(join: Join, tmp_path: Path) -> None:
    options = "--chief --ps 1 --evaluator --name digits --env 'A=it'\\''s $(x)' --set lr=1e-3 --set 'tag=it'\\''s'"
    ranks = [join(rank, 5, options) for rank in range(5)]
    found = [rank.environment for rank in ranks]
    names = [f"{env['GRIDTF_TASK_TYPE']}:{env['GRIDTF_TASK_INDEX']}" for env in found]
    assert names == ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]

    run = tmp_path / "gridtf-runs" / "digits-run-1"
    record = read_record(run / "attempt-1" / "rendezvous.json") or {}
    cluster, outside = record["cluster"], record["outside"]
    assert {kind: len(members) for kind, members in outside.items()} == {"evaluator": 1}
    assert {kind: len(members) for kind, members in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    for env, name in zip(found, names, strict=True):
        kind, index = name.split(":")
        seen = {**cluster, **outside} if kind in outside else cluster
        assert json.loads(env["TF_CONFIG"]) == {"cluster": seen, "task": {"type": kind, "index": int(index)}}
        assert env["TF_GRPC_REUSE_PORT"] == "1"
        assert env["GRIDTF_RUN_DIR"] == str(run)
        assert env["OUTPUT_DIR"] == str(run / "output")
        assert env["GRIDTF_JOB_ID"] == "run-1"
        assert env["GRIDTF_JOB_NAME"] == "digits"
        assert env["A"] == "it's $(x)"
        assert env["MASTER_ADDR"] == socket.gethostname()
        place = contract.task(env)
        assert (place.name, place.params) == (name, {"lr": 0.001, "tag": "it's"})
        assert place.cluster == {kind: tuple(members) for kind, members in cluster.items()}
    assert Path(found[0]["OUTPUT_DIR"]).is_dir()
    ranked = [tuple(env.get(key) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")) for env in found]
    assert ranked == [("0", "3", "0", "3"), ("1", "3", "1", "3"), ("2", "3", "2", "3"), (None,) * 4, (None,) * 4]
    assert len({env["MASTER_PORT"] for env in found}) == 1
    for rank in ranks:
        assert rank.end() == (0, "")


def test_joined_job_is_listed_and_found_by_its_name_and_id(join: Join, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [join(rank, 2, "--name digits") for rank in range(2)]
    (run,) = {run_of(rank).path for rank in ranks}
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["job_id"], listed["run_dir"]) == ("digits", "run-1", str(run))
    for job in ("digits", "run-1"):
        assert find(job).run_dir == run


def test_processes_publish_the_address_of_the_chosen_interface(join: Join) -> None:
    ranks = [join(rank, 2, "--interface lo") for rank in range(2)]
    members = json.loads(ranks[0].environment["TF_CONFIG"])["cluster"]["worker"]
    assert [member.partition(":")[0] for member in members] == ["127.0.0.1"] * 2
    assert ranks[1].environment["MASTER_ADDR"] == "127.0.0.1"


def test_missing_interface_is_an_error_of_gridtf_join(join: Join) -> None:
    code, errors = join(0, 1, "--interface none9").end()
    assert code == 1
    assert f"host {socket.gethostname()} has no network interface none9" in errors


def test_port_holder_ends_with_its_task(join: Join) -> None:
    ranks = [join(rank, 2) for rank in range(2)]
    workers = json.loads(ranks[0].environment["TF_CONFIG"])["cluster"]["worker"]
    assert [rank.environment["GRIDTF_TASK_INDEX"] for rank in ranks] == ["0", "1"]
    keepers = [holder_of(rank, number) for number, rank in enumerate(ranks)]
    ports = [int(worker.rsplit(":", 1)[1]) for worker in workers]
    assert all(map(bound, ports))
    # programs that do not share ports bind this one themselves
    assert not bound(int(ranks[0].environment["MASTER_PORT"]))
    assert ranks[0].end() == (0, "")
    gone(keepers[0])
    assert [bound(port) for port in ports] == [False, True]
    ranks[1].process.kill()  # no goodbye
    gone(keepers[1])
    assert not bound(ports[1])


def test_ports_are_let_go_for_programs_that_cannot_share_them(join: Join) -> None:
    ranks = [join(rank, 2, "--ports release") for rank in range(2)]
    workers = json.loads(ranks[0].environment["TF_CONFIG"])["cluster"]["worker"]
    assert ranks[1].environment["TF_CONFIG"]  # both have joined
    assert not any(bound(int(worker.rsplit(":", 1)[1])) for worker in workers)


def test_ports_are_behind_a_fence_for_the_hosts_of_the_processes_if_asked(join: Join) -> None:
    ranks = [join(rank, 2, "--fence hosts --interface lo") for rank in range(2)]
    members = json.loads(ranks[0].environment["TF_CONFIG"])["cluster"]["worker"]
    port = int(members[1].rpartition(":")[2])
    assert ranks[1].environment["TF_CONFIG"]
    meeting = read_record(run_of(ranks[1]).attempt(1).rendezvous) or {}
    assert meeting["doors"].keys() == {"rank-0", "rank-1"}
    with pytest.raises(TimeoutError):  # the gate drops it, where nobody listens behind it
        socket.create_connection(("127.0.0.1", port), 0.1)
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("", port))
        server.listen()
        socket.create_connection(("127.0.0.1", port), 10).close()


def test_records_in_the_run_directory(join: Join) -> None:
    ranks = [join(rank, 2) for rank in range(2)]
    attempt = run_of(ranks[1]).attempt(1)
    plan = read_record(attempt.plan) or {}
    assert [(task["type"], task["index"], task["host"]) for task in plan["tasks"]] == [
        ("worker", 0, socket.gethostname()),
        ("worker", 1, socket.gethostname()),
    ]
    holder = holder_of(ranks[1], 1)
    running = (read_record(attempt.rank_state("rank-1")) or {})["tasks"]["worker:1"]
    assert (running["state"], running["pid"]) == ("RUNNING", ranks[1].pid)
    ranks[1].end()
    gone(holder)
    assert (read_record(attempt.rank_state("rank-1")) or {})["tasks"]["worker:1"]["state"] != "RUNNING"


def test_gridtf_wait_reports_how_joined_tasks_ended(join: Join, tmp_path: Path) -> None:
    """With exit code or signal where the kernel reports it to the port holder (pidfd), else without."""
    ranks = [join(rank, 2) for rank in range(2)]
    keepers = [holder_of(rank, number) for number, rank in enumerate(ranks)]
    run = run_of(ranks[0])
    assert ranks[0].end() == (0, "")
    ranks[1].process.kill()
    ranks[1].process.wait(30)
    gone(*keepers)
    wait = [sys.executable, "-m", "gridtf", "wait", str(run.path)]
    done = subprocess.run(wait, env=environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert (
        "worker:1: killed by SIGKILL" if KERNEL_REPORTS_EXITS else "only the program that started them"
    ) in done.stdout
    (well,) = [join(0, 1, word="well")]
    holder, run = holder_of(well, 0), run_of(well)
    assert well.end() == (0, "")
    gone(holder)
    wait[-1] = str(run.path)
    assert subprocess.run(wait, env=environment(), capture_output=True, timeout=180).returncode == (
        0 if KERNEL_REPORTS_EXITS else 1
    )


def test_port_holder_ignores_signals_to_the_task(join: Join) -> None:
    rank = join(0, 1)
    holder = holder_of(rank, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(holder, number)
    port = int(json.loads(rank.environment["TF_CONFIG"])["cluster"]["worker"][0].rsplit(":", 1)[1])
    assert bound(port)
    assert alive(holder)
    assert Path(f"/proc/{holder}/status").read_text().count("ShdPnd:\t0000000000000000") == 1  # none is to come
    rank.end()
    gone(holder)


def test_port_holder_closes_descriptors_of_the_shell(join: Join) -> None:
    """Otherwise a process that waits for the end of a pipe or a lock of the shell would wait for the port holder."""
    reader, writer = os.pipe()
    try:
        rank = join(0, 1, descriptors=(writer,), WRITER=str(writer))
        holder = holder_of(rank, 0)
        links = [link.readlink() for link in Path(f"/proc/{holder}/fd").iterdir()]
        kinds = sorted({re.sub(r"\W.*", "", str(link)) or str(link) for link in links})
        assert kinds in (["/dev/null", "anon_inode", "socket"], ["/dev/null", "socket"])
    finally:
        os.close(writer)
        os.close(reader)


def test_gridtf_join_in_a_longer_shell_script(join: Join, tmp_path: Path) -> None:
    """Several processes of one script, each in its own subshell: a port holder ends with its subshell."""
    script = (
        'set -euo pipefail\nsource "$GRIDTF_BOOTSTRAP"\n'
        'task() { export RANK=$1; gridtf_join; echo "$GRIDTF_TASK_INDEX $TF_CONFIG" >task-$1; }\n'
        "task 0 & task 1 & wait\n"
        "echo both; read -r _\n"
    )
    whole = join(0, 2, script=script)
    assert whole.process.stdout is not None
    assert whole.process.stdout.readline() == "both\n"
    assert [(tmp_path / f"task-{rank}").read_text()[0] for rank in (0, 1)] == ["0", "1"]
    attempt = RunDir(tmp_path / "gridtf-runs" / "gridtf_join-run-1").attempt(1)
    keepers = [int((read_record(attempt.rank_state(f"rank-{rank}")) or {})["pid"]) for rank in (0, 1)]
    gone(*keepers, seconds=10)
    whole.end()


# --- GPUs and CPUs


def visible(ranks: list[Rank]) -> list[str]:
    return [rank.environment["CUDA_VISIBLE_DEVICES"] for rank in ranks]


def test_processes_that_see_the_same_gpus_divide_them(join: Join) -> None:
    ranks = [join(rank, 3, "--ps 1", CUDA_VISIBLE_DEVICES="4,6") for rank in range(3)]
    assert visible(ranks) == ["4", "6", ""]


def test_process_that_sees_only_its_own_gpu_keeps_it(join: Join) -> None:
    """Under cgroups every task's own GPU is called 0."""
    assert visible([join(rank, 2, CUDA_VISIBLE_DEVICES="0") for rank in range(2)]) == ["0", "0"]


def test_all_gpus_of_the_host_are_used_without_a_scheduler_s_grant(join: Join) -> None:
    assert visible([join(rank, 2, GRIDTF_LOCAL_GPUS="0,1") for rank in range(2)]) == ["0", "1"]


def test_more_processes_than_gpus_is_an_error_in_all_processes(join: Join) -> None:
    ranks = [join(rank, 3, CUDA_VISIBLE_DEVICES="0,1") for rank in range(3)]
    ended = [rank.end() for rank in ranks]
    assert [code for code, _ in ended] == [1, 1, 1]
    for _, errors in ended:
        assert f"{socket.gethostname()}: its processes all see the same GPUs 0,1, too few for its tasks" in errors


def test_thread_variables_match_the_shared_cpus(join: Join) -> None:
    cpus = len(os.sched_getaffinity(0))
    alone = join(0, 1, word="alone")
    both = [join(rank, 2, word="both") for rank in range(2)]
    chosen = [join(0, 1, f"--cpus-per-task {count}", word=f"chosen{count}") for count in (1, cpus + 1)]
    mine = join(0, 1, word="mine", OMP_NUM_THREADS="5")
    assert alone.environment["OMP_NUM_THREADS"] == str(cpus)
    assert [rank.environment["OMP_NUM_THREADS"] for rank in both] == [str(max(1, cpus // 2))] * 2
    assert [rank.environment["OMP_NUM_THREADS"] for rank in chosen] == ["1", str(cpus)]
    assert mine.environment["OMP_NUM_THREADS"] == "5"


# --- errors


def test_missing_rank_is_reported_after_start_timeout(join: Join) -> None:
    ranks = [join(rank, 4, "--ps 1 --start-timeout 15") for rank in (0, 1, 3)]
    for rank in ranks:  # the error of rank 0 ends the other ranks
        code, errors = rank.end()
        assert code == 1
        assert "1 of 4 processes did not join within 15 s" in errors
        assert "missing: rank-2 (worker:2)" in errors


def test_missing_rank_0_is_reported(join: Join) -> None:
    code, errors = join(1, 2, "--start-timeout 1").end()
    assert code == 1
    assert "rank 1 has waited 1 s for rank 0, which has not opened" in errors


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ("--workers 3", 2, "3 tasks requested (3 worker), but the number of processes that join is 2"),
        ("--chief --workers 1 --ps 1", 4, "3 tasks requested (1 chief + 1 worker + 1 ps), but the number of"),
        ("--ps 2", 2, "3 tasks requested (1 worker + 2 ps), but the number of processes that join is 2"),
        ("--ps 1 --ps-builtin", 2, "gridtf_join cannot serve ps tasks: the process that joins is the task"),
        ("--workres 2", 2, "--workers"),
    ],
)
def test_wrong_task_counts_are_an_error_in_all_processes(join: Join, options: str, size: int, message: str) -> None:
    for rank in [join(rank, size, options) for rank in range(size)]:
        code, errors = rank.end()
        assert code in (1, 2)
        assert message in errors


def test_reused_gridtf_job_id_is_refused_by_all_processes(join: Join) -> None:
    first = [join(rank, 2) for rank in range(2)]
    assert all(rank.environment for rank in first)
    for number, rank in enumerate([join(rank, 2) for rank in range(2)]):
        code, errors = rank.end()
        assert code == 1
        assert f"rank {number} of run-1 has already joined" in errors
        assert "set GRIDTF_JOB_ID to a new value for every run" in errors
    second = [join(rank, 2, word="run-2") for rank in range(2)]
    assert second[0].environment["TF_CONFIG"] != first[0].environment["TF_CONFIG"]


def test_only_one_of_two_rank_0_leads(join: Join) -> None:
    rivals = [join(0, 1) for _ in range(6)]
    ended = [rival.end() for rival in rivals]
    assert sorted(code for code, _ in ended) == [0, 1, 1, 1, 1, 1]


def test_failed_join_ends_a_strict_script_and_keeps_the_environment(join: Join) -> None:
    code, errors = join(0, 1, "--workers 2").end()
    assert code == 1
    assert "Traceback" not in errors
    script = (
        'source "$GRIDTF_BOOTSTRAP"\n'
        'gridtf_join --workers 2 2>/dev/null || echo "code $? ${TF_CONFIG-none} ${GRIDTF_TASK_TYPE-none}"\n'
    )
    rank = join(0, 1, script=script)
    assert rank.process.communicate(timeout=180)[0] == "code 1 none none\n"


def test_process_without_a_rank_is_an_error(join: Join) -> None:
    script = 'unset RANK; source "$GRIDTF_BOOTSTRAP"; gridtf_join'
    code, errors = join(0, 1, script=script).end()
    assert code == 2
    assert "gridtf_join cannot determine this process's rank" in errors
    code, errors = join(0, 1, script='unset GRIDTF_JOB_ID; source "$GRIDTF_BOOTSTRAP"; gridtf_join').end()
    assert code == 2
    assert "set GRIDTF_JOB_ID to the same value in all of them" in errors


def test_waiting_join_ends_when_its_shell_is_killed(join: Join, tmp_path: Path) -> None:
    rank = join(0, 2, "--start-timeout 600")
    attempts = RunDir(tmp_path / "gridtf-runs" / "gridtf_join-run-1")
    until(lambda: (latest := attempts.latest()) and latest.listener.exists(), "rank 0 to listen")
    waiting = procfs.descendants(rank.pid)
    assert waiting
    rank.process.kill()
    gone(*waiting)
