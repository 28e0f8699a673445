"""GPUs on the local scheduler: one task per GPU, and never two jobs on the same one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gridtf.host import locks
from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, gone, until

HOLD = ("bash", "-c", 'echo "$CUDA_VISIBLE_DEVICES" >&2; sleep 1000')


@pytest.fixture
def on_gpus(launch: Launch, tmp_path: Path) -> Any:
    """Start a job on this machine's (declared) GPUs, all jobs under the same locks."""

    def start(
        name: str, *command: str, gpus: str = "0,1", order: str = "", visible: str | None = None, **spec: Any
    ) -> LaunchedJob:
        folder = tmp_path / name
        folder.mkdir()
        env = {"GRIDTF_LOCAL_GPUS": gpus, "GRIDTF_LOCKS": str(tmp_path), "CUDA_DEVICE_ORDER": order}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        return launch(*command, folder=folder, env=env, name=name, **spec)

    return start


def _gpus(job: LaunchedJob, task: str = "worker-0") -> str:
    log = job.attempt.logs / f"{task}.log"
    return str(until(lambda: log.exists() and log.read_text(), f"a word in {log}")).strip()


def test_one_task_per_gpu_and_no_gpu_for_ps(on_gpus: Any) -> None:
    job = on_gpus("all", "bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"; exit 0', tasks={"ps": {"count": 1}})
    assert job.verdict()["state"] == "COMPLETED"
    assert [_gpus(job, task) for task in ("worker-0", "worker-1", "ps-0")] == ["gpus=0", "gpus=1", "gpus="]


def test_chief_has_more_gpus_than_a_worker(on_gpus: Any) -> None:
    tasks = {"chief": {"gpus": 2}, "worker": {"count": 1, "gpus": 1}}
    job = on_gpus("uneven", "bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"', gpus="0,1,2", tasks=tasks)
    assert job.verdict()["state"] == "COMPLETED"
    assert [_gpus(job, task) for task in ("chief-0", "worker-0")] == ["gpus=0,1", "gpus=2"]


@pytest.mark.parametrize(
    ("visible", "expected"), [("1 0", ["gpus=1", "gpus=0"]), ("MIG-7/1/0,MIG-8", ["gpus=MIG-7/1/0", "gpus=MIG-8"])]
)
def test_gpus_are_those_that_cuda_visible_devices_lists(on_gpus: Any, visible: str, expected: list[str]) -> None:
    job = on_gpus("listed", "bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"', visible=visible)
    assert job.verdict()["state"] == "COMPLETED"
    assert [_gpus(job, task) for task in ("worker-0", "worker-1")] == expected


def test_jobs_get_different_gpus_and_wait_for_free_ones(on_gpus: Any) -> None:
    first, second = on_gpus("first", *HOLD, gpus_per_node=1), on_gpus("second", *HOLD, gpus_per_node=1)
    assert {_gpus(first), _gpus(second)} == {"0", "1"}
    third = on_gpus("third", *HOLD, gpus_per_node=1)
    detail = until(
        lambda: "free" in str(_launcher(third).get("detail")) and _launcher(third), "the third to say it waits"
    )
    assert detail["phase"] == "allocating"
    assert "waiting for 1 GPU, 0 free" in detail["detail"]
    assert "first, job" in detail["detail"]
    assert "second, job" in detail["detail"]

    pids = first.running("worker:0")
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    gone(*pids.values())
    assert _gpus(third) == _gpus(first)


def _launcher(job: LaunchedJob) -> dict[str, Any]:
    return read_record(job.attempt.launcher) or {}


def test_gpu_stays_claimed_until_the_task_has_ended(on_gpus: Any, tmp_path: Path) -> None:
    from gridtf.host.gpus import GpuGrant, Refusal, claim

    environ = {"GRIDTF_LOCKS": str(tmp_path)}
    job = on_gpus("holds", *HOLD, gpus="0")
    pid = job.running("worker:0")["worker:0"]
    assert isinstance(claim(1, ["0"], "test", environ), Refusal)
    descriptors = Path(f"/proc/{pid}/fd")
    assert any(str(descriptor.readlink()).startswith("socket:") for descriptor in descriptors.iterdir())
    job.process.kill()
    gone(pid)
    mine = until(lambda: isinstance(got := claim(1, ["0"], "test", environ), GpuGrant) and got, "the GPU to be free")
    for descriptor in mine.descriptors:
        os.close(descriptor)


def test_foreign_locks_do_not_block_other_gpus(on_gpus: Any, tmp_path: Path) -> None:
    held = [locks.hold(f"{tmp_path}-{name}", "a stranger") for name in ("gpus", "gpu-0")]
    assert all(held)
    job = on_gpus("job", "bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"', gpus_per_node=1)
    assert job.verdict()["state"] == "COMPLETED"
    assert _gpus(job) == "gpus=1"
    for descriptor in (descriptor for lock in held if lock for descriptor in lock):
        os.close(descriptor)


def test_more_gpus_than_the_host_has_is_an_error(on_gpus: Any) -> None:
    verdict = on_gpus("greedy", "true", gpus_per_node=3).verdict()
    assert verdict["state"] == "FAILED"
    assert f"3 GPUs are requested, but {os.uname().nodename} has 2" in verdict["reason"]


def test_chief_without_gpu_claims_none(on_gpus: Any) -> None:
    tasks = {"chief": {"count": 1, "gpus": 0}, "worker": {"count": 1}}
    job = on_gpus("one", "bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"', gpus="5", tasks=tasks)
    assert job.verdict()["state"] == "COMPLETED"
    assert [_gpus(job, task) for task in ("chief-0", "worker-0")] == ["gpus=", "gpus=5"]


def test_a_cancelled_wait_for_gpus_ends_at_once(on_gpus: Any) -> None:
    first = on_gpus("first", *HOLD)
    first.running("worker:0", "worker:1")
    second = on_gpus("second", *HOLD)
    until(lambda: "free" in str(_launcher(second).get("detail")), "the second to wait")
    assert "gridtf: waiting for 2 GPUs, 0 free; GPU 0: first, job " in second.output
    second.process.terminate()
    assert second.verdict()["state"] == "CANCELLED"


@pytest.mark.parametrize(("hidden", "count"), [("", 0), ("7", 0), ("MIG-abc", 1)])  # a MIG device is a GPU to a task
def test_gpus_hidden_by_cuda_visible_devices_are_not_claimed(launch: Launch, hidden: str, count: int) -> None:
    env = {"GRIDTF_LOCAL_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": hidden}
    reason = launch("true", env=env, gpus_per_node=2).verdict()["reason"]
    assert f"2 GPUs are requested, but {os.uname().nodename} has {count}" in reason
    assert f"CUDA_VISIBLE_DEVICES is {hidden!r}" in reason


def test_cuda_device_order_is_always_pci_bus_id(on_gpus: Any) -> None:
    """An index in CUDA's own order, the fastest first, may be a GPU that another job has claimed."""
    job = on_gpus("job", "bash", "-c", "echo $CUDA_DEVICE_ORDER", order="FASTEST_FIRST")
    job.verdict()
    assert _gpus(job) == "PCI_BUS_ID"


def test_gpu_count_of_the_request_is_used_without_a_driver(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    job = launch("bash", "-c", 'echo "gpus=$CUDA_VISIBLE_DEVICES"', gpus_per_node=2)
    assert job.verdict()["state"] == "COMPLETED"
    assert [_gpus(job, task) for task in ("worker-0", "worker-1")] == ["gpus=0", "gpus=1"]
