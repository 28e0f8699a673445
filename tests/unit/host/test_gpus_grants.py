"""GPUs that the scheduler assigned, as the environment lists them, and the variables of a task's share of them."""

from __future__ import annotations

import pytest

from gridtf.host.gpus import granted, visible


def test_granted_reads_cuda_then_rocr_then_slurm_step_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert granted({"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "6,7"}) == (
        "2",
        "3",
    )
    assert granted({"ROCR_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "6,7"}) == ("2", "3")
    monkeypatch.setattr("gridtf.host.gpus._from_driver", dict)
    assert granted({"SLURM_STEP_GPUS": "6,7"}) == ("6", "7")
    assert granted({"SLURM_JOB_GPUS": "6,7"}) == ()  # those of the batch script's node, wrong on all others


def test_slurm_step_gpus_are_renumbered_where_only_own_devices_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtf.host.gpus._from_driver", lambda: {"0": "GPU-a", "1": "GPU-b"})
    assert granted({"SLURM_STEP_GPUS": "6,7"}) == ("0", "1")
    assert granted({"SLURM_STEP_GPUS": "6"}) == ("6",)


# In PCI order, as gridtf counts: in CUDA's default order, the fastest first, an index may be another job's GPU.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_visible_sets_all_variables_that_list_gpus() -> None:
    slurm = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0,1", "ZE_AFFINITY_MASK": "4,5"}
    shown = {"CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "5"}
    assert visible(slurm, ["3"]) == {**shown, **ORDER}
    assert visible({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]) == {"CUDA_VISIBLE_DEVICES": "2,3", **ORDER}
    assert visible({}, ["1"]) == {"CUDA_VISIBLE_DEVICES": "1", **ORDER}
    hip = {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}
    assert visible(hip, ["1"]) == {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1", **ORDER}


def test_visible_with_rocr_numbers_cuda_and_hip_from_zero() -> None:
    assert visible({"ROCR_VISIBLE_DEVICES": "2,3"}, ["3"]) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "3",
        **ORDER,
    }
    both = {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}
    assert visible(both, ["1"])["HIP_VISIBLE_DEVICES"] == "0"


def test_visible_hides_all_gpus_from_a_task_without_one() -> None:
    none = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert visible({"CUDA_VISIBLE_DEVICES": "2,3"}, []) == none
    assert visible({"CUDA_VISIBLE_DEVICES": "2", "ZE_AFFINITY_MASK": "2"}, []) == {**none, "ZE_AFFINITY_MASK": ""}
