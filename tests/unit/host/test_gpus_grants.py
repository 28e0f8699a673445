"""What the scheduler has granted, as the environment spells it, and how a task is shown its share of that."""

from __future__ import annotations

import pytest

from gridtf.host.gpus import granted, visible


def test_the_grant_is_read_from_what_the_site_leaves_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert granted({"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "6,7"}) == (
        "2",
        "3",
    )
    assert granted({"ROCR_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "6,7"}) == ("2", "3")
    monkeypatch.setattr("gridtf.host.gpus._from_driver", dict)
    assert granted({"SLURM_STEP_GPUS": "6,7"}) == ("6", "7")
    assert granted({"SLURM_JOB_GPUS": "6,7"}) == ()  # those of the batch script's node, wrong on every other


def test_where_a_job_sees_no_device_but_its_own_they_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtf.host.gpus._from_driver", lambda: {"0": "GPU-a", "1": "GPU-b"})
    assert granted({"SLURM_STEP_GPUS": "6,7"}) == ("0", "1")
    assert granted({"SLURM_STEP_GPUS": "6"}) == ("6",)


# In PCI order, as we count: in CUDA's own, the fastest first, an index may be a GPU that another job has claimed.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_task_is_shown_its_share_in_every_spelling() -> None:
    slurm = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0,1", "ZE_AFFINITY_MASK": "4,5"}
    shown = {"CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "5"}
    assert visible(slurm, ["3"]) == {**shown, **ORDER}
    assert visible({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]) == {"CUDA_VISIBLE_DEVICES": "2,3", **ORDER}
    assert visible({}, ["1"]) == {"CUDA_VISIBLE_DEVICES": "1", **ORDER}
    hip = {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}
    assert visible(hip, ["1"]) == {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1", **ORDER}


def test_with_rocr_alone_cuda_counts_among_what_is_left() -> None:
    assert visible({"ROCR_VISIBLE_DEVICES": "2,3"}, ["3"]) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "3",
        **ORDER,
    }
    both = {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}
    assert visible(both, ["1"])["HIP_VISIBLE_DEVICES"] == "0"


def test_a_task_without_a_gpu_is_shown_none() -> None:
    none = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert visible({"CUDA_VISIBLE_DEVICES": "2,3"}, []) == none
    assert visible({"CUDA_VISIBLE_DEVICES": "2", "ZE_AFFINITY_MASK": "2"}, []) == {**none, "ZE_AFFINITY_MASK": ""}
