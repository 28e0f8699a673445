"""gridtf.task(): a task's place in the job, from its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gridtf
from gridtf import contract
from gridtf.contract import Task, task
from gridtf.errors import GridtfError
from gridtf.run.rundir import RunDir


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of worker 1 of two, with a ps."""
    cluster = {"ps": ["a:1"], "worker": ["a:2", "b:1"]}
    rendezvous = tmp_path / "attempt-1" / "rendezvous.json"
    rendezvous.parent.mkdir()
    rendezvous.write_text(json.dumps({"job": "42", "attempt": 1, "nonce": "f00d", "cluster": cluster}))
    return {
        "GRIDTF_RUN_DIR": str(tmp_path),
        "GRIDTF_JOB_ID": "42",
        "GRIDTF_JOB_NAME": "digits",
        "GRIDTF_ATTEMPT": "1",
        "GRIDTF_TASK_TYPE": "worker",
        "GRIDTF_TASK_INDEX": "1",
        "GRIDTF_RENDEZVOUS": str(rendezvous),
        "GRIDTF_NONCE": "f00d",
        "OUTPUT_DIR": str(tmp_path / "output"),
        "CUDA_VISIBLE_DEVICES": "2,GPU-3f",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }


def make_task(task_type: str, index: int, **cluster: tuple[str, ...]) -> Task:
    here = Path("/run")
    return Task(task_type, index, cluster, "42", "digits", 1, here, here / "output", (), None, None)


def test_task_knows_its_address_and_the_dispatcher_of_the_data_workers(tmp_path: Path) -> None:
    outside = {"data_dispatcher": ("b:3",), "data_worker": ("a:4", "b:5")}
    made = make_task("data_worker", 1, worker=("a:1",)).replace(outside=outside, run_dir=tmp_path, attempt=2)
    assert (made.address, made.dispatcher) == ("b:5", "b:3")
    assert made.data_dir == tmp_path / "attempt-2" / "data_dispatcher"
    made.data_dir.parent.mkdir()
    made.mark_distributed()  # also while this host does not see the dispatcher's folder yet
    assert RunDir(tmp_path).attempt(2).distributed.exists()
    alone = make_task("worker", 0, worker=("a:1",))
    assert (alone.address, alone.dispatcher) == ("a:1", "")


def test_task_from_a_complete_environment(environ: dict[str, str], tmp_path: Path) -> None:
    assert task(environ) == Task(
        type="worker",
        index=1,
        cluster={"ps": ("a:1",), "worker": ("a:2", "b:1")},
        job_id="42",
        job_name="digits",
        attempt=1,
        run_dir=tmp_path,
        output_dir=tmp_path / "output",
        gpus=("2", "GPU-3f"),
        rank=1,
        world_size=2,
    )
    assert task(environ).name == "worker:1"


def test_task_without_optional_variables(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("GRIDTF_JOB_ID", "GRIDTF_JOB_NAME", "OUTPUT_DIR", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE"):
        del environ[name]
    found = task(environ)
    assert (found.job_id, found.job_name, found.gpus, found.rank, found.world_size) == ("", "", (), None, None)
    assert found.output_dir == tmp_path / "output"


def test_empty_cuda_visible_devices_means_no_gpu(environ: dict[str, str]) -> None:
    assert task({**environ, "CUDA_VISIBLE_DEVICES": ""}).gpus == ()


def test_task_reads_the_process_environment(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert gridtf.task() == task(environ)


@pytest.mark.parametrize(
    "name",
    [
        contract.RUN_DIR,
        contract.ATTEMPT,
        contract.TASK_TYPE,
        contract.TASK_INDEX,
        contract.RENDEZVOUS,
        contract.NONCE,
    ],
)
def test_missing_variable_means_outside_a_task(environ: dict[str, str], name: str) -> None:
    del environ[name]
    with pytest.raises(GridtfError) as caught:
        task(environ)
    assert caught.value.what == "this process is not a gridtf task"
    assert caught.value.why == f"{name} is not set"
    assert "gridtf submit" in caught.value.hint


def test_stale_rendezvous(environ: dict[str, str]) -> None:
    with pytest.raises(GridtfError, match=r"is not the rendezvous file of this attempt"):
        task({**environ, "GRIDTF_NONCE": "beef"})


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_broken_rendezvous(environ: dict[str, str], text: str) -> None:
    Path(environ["GRIDTF_RENDEZVOUS"]).write_text(text)
    with pytest.raises(GridtfError, match=r"is not the rendezvous file of this attempt"):
        task(environ)


def test_missing_rendezvous(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(GridtfError, match=r"gone\.json is not the rendezvous file of this attempt"):
        task({**environ, "GRIDTF_RENDEZVOUS": str(tmp_path / "gone.json")})


@pytest.mark.parametrize(
    ("found", "leads"),
    [
        (make_task("chief", 0, chief=("a:1",), worker=("a:2",)), True),
        (make_task("master", 0, master=("a:1",), worker=("a:2",)), True),
        (make_task("worker", 0, chief=("a:1",), worker=("a:2",)), False),
        (make_task("worker", 0, master=("a:1",), worker=("a:2",)), False),
        (make_task("worker", 0, worker=("a:1", "a:2")), True),
        (make_task("worker", 1, worker=("a:1", "a:2")), False),
        (make_task("worker", 0, chief=(), worker=("a:1", "a:2")), True),
        (make_task("ps", 0, ps=("a:1",), worker=("a:2",)), False),
        (make_task("evaluator", 0, worker=("a:2",)), False),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else "",
)
def test_is_chief(found: Task, leads: bool) -> None:
    assert found.is_chief is leads


def test_first_client_leads_where_all_workers_serve() -> None:
    driver = make_task("driver", 0, worker=("a:1",))
    assert driver.replace(rank=0).is_chief
    assert not driver.replace(rank=1).is_chief
    assert not driver.is_chief


def test_is_chief_of_a_chief_outside_the_cluster() -> None:
    served = {"ps": ("a:1",), "worker": ("a:2",)}
    outside = {"chief": ("a:3",)}
    assert make_task("chief", 0, **served).replace(outside=outside).is_chief
    assert not make_task("worker", 0, **served).replace(outside=outside).is_chief


def asks(body: str, environ: dict[str, str] | None = None) -> str:
    """What a process prints that has gridtf as ``gridtf``."""
    code = f"import gridtf, os, signal\n{body}\n"
    env = {**os.environ, **(environ or {})}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_checkpoint_is_requested_by_the_file_of_the_agent_or_by_a_signal(tmp_path: Path) -> None:
    body = """
print(gridtf.checkpoint_requested())
open(os.environ["GRIDTF_LOCAL_DIR"] + "/checkpoint", "w").close()
print(gridtf.checkpoint_requested())
os.remove(os.environ["GRIDTF_LOCAL_DIR"] + "/checkpoint")
print(gridtf.checkpoint_requested())
os.kill(os.getpid(), signal.SIGUSR1)
print(gridtf.checkpoint_requested())"""
    assert asks(body, {"GRIDTF_LOCAL_DIR": str(tmp_path)}).split() == ["False", "True", "False", "True"]


@pytest.mark.thorough
def test_request_by_a_signal_needs_no_agent_and_leaves_the_program_s_own_handler_alone() -> None:
    signalled = "os.kill(os.getpid(), signal.SIGUSR1); print(gridtf.checkpoint_requested())"
    ignored = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"  # as Grid Engine starts tasks
    assert asks(f"{ignored}; gridtf.checkpoint_requested(); {signalled}") == "True\n"
    own = "signal.signal(signal.SIGUSR1, lambda *_: print('own', end=' '))"
    assert asks(f"{own}; gridtf.checkpoint_requested(); {signalled}") == "own False\n"
    thread = "import threading; t = threading.Thread(target=lambda: print(gridtf.checkpoint_requested()))"
    assert asks(f"{thread}; t.start(); t.join()") == "False\n"
