"""The GPUs of a Grid Engine job on one host: granted by the site, else claimed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gridtf.errors import PlacementError, SchedulerError
from gridtf.host import gpus
from gridtf.host.gpus import GpuGrant
from gridtf.schedulers.api import GpuNeed
from gridtf.schedulers.sge import gpu_grant, query
from gridtf.schedulers.sge.query import PER_HOST, PER_JOB, PER_SLOT, ResourceRequest


class Host:
    """A host with some GPUs, and the claims there."""

    def __init__(self, folder: Path, count: int) -> None:
        self.environ = {
            "JOB_ID": "7",
            "GRIDTF_LOCKS": str(folder),
            "GRIDTF_LOCAL_GPUS": ",".join(map(str, range(count))),
        }
        self.claims: list[GpuGrant] = []
        self.waits: list[str] = []

    def claim(self, *names: str) -> None:
        """Another job claims them."""
        grant = gpus.claim(len(names), names, "another job", self.environ)
        assert isinstance(grant, GpuGrant)
        self.claims.append(grant)

    def let_go(self) -> None:
        for descriptor in (descriptor for claim in self.claims for descriptor in claim.descriptors):
            os.close(descriptor)
        self.claims.clear()

    def grant(self, count: int | None, variable: str | None = None, **more: str) -> tuple[str, ...]:
        """The GPUs that are granted; self.environ is then the environment of tasks."""
        self.environ.update(more)
        found = gpu_grant.gpu_grant(self.environ, "gpu", GpuNeed(count, "ours, job 7", 1.0), self._wait, variable)
        self.environ = found.environment(self.environ)
        self.claims.append(found)
        return found.gpus

    def free(self) -> tuple[str, ...]:
        """The GPUs that another job could claim."""
        found = []
        for gpu in self.environ["GRIDTF_LOCAL_GPUS"].split(","):
            claim = gpus.claim(1, [gpu], "", self.environ)
            if isinstance(claim, GpuGrant):
                found.append(gpu)
                for descriptor in claim.descriptors:
                    os.close(descriptor)
        return tuple(found)

    def _wait(self, why: str, seconds: float) -> None:
        self.waits.append(why)
        if len(self.waits) == 2:
            self.let_go()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host with four GPUs; the job was submitted without variables."""
    monkeypatch.setattr(query, "submitted_variables", lambda job_id: {})
    made = Host(tmp_path, 4)
    yield made
    made.let_go()


def requests(monkeypatch: pytest.MonkeyPatch, resources: Mapping[str, ResourceRequest]) -> None:
    monkeypatch.setattr(query, "job_requests", lambda job_id: resources)


# --- grants of the site


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("0 2", ("0", "2")),
        ("0,2", ("0", "2")),
        ("gpu1 gpu3", ("1", "3")),
        (" gpu10\n", ("10",)),
        ("/dev/nvidia1", ("1",)),
        ("GPU-5ebe9f43-ac33 MIG-11c29e81", ("GPU-5ebe9f43-ac33", "MIG-11c29e81")),
        ("NONE", ()),
        ("<NULL>", ()),
        ("", ()),
    ],
)
def test_granted_by_a_variable(words: str, devices: tuple[str, ...]) -> None:
    assert gpu_grant.granted_by({"SGE_HGR_gpu": words}, "SGE_HGR_gpu") == devices


def test_resource_map_is_named_after_the_resource(host: Host) -> None:
    environ = {"JOB_ID": "7", "GRIDTF_LOCAL_GPUS": "0,1", "SGE_HGR_gpu": "0", "SGE_HGR_cuda": "1"}
    found = gpu_grant.gpu_grant(environ, "cuda", GpuNeed(1, "ours", 1.0), lambda why, seconds: None)
    host.claims.append(found)
    assert found.gpus == ("1",)


def test_resource_map_grants_gpus(host: Host) -> None:
    assert host.grant(2, SGE_HGR_gpu="gpu1 gpu3") == ("1", "3")
    assert host.environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert host.free() == ("0", "2")


def test_cuda_visible_devices_overrides_the_resource_map(host: Host) -> None:
    assert host.grant(1, CUDA_VISIBLE_DEVICES="2", SGE_HGR_gpu="gpu1") == ("2",)
    assert host.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_grant_of_the_site_holds_without_the_lock(host: Host) -> None:
    host.claim("2")
    assert host.grant(1, CUDA_VISIBLE_DEVICES="2") == ("2",)
    assert host.waits == []


def test_grant_of_the_site_holds_without_a_driver(host: Host) -> None:
    del host.environ["GRIDTF_LOCAL_GPUS"]
    assert host.grant(1, CUDA_VISIBLE_DEVICES="2") == ("2",)
    assert isinstance(gpus.claim(1, ["2"], "another job", host.environ), gpus.Refusal)


@pytest.mark.parametrize("text", ["1.000000", "2.000000"])
def test_amount_in_the_resource_variable_is_not_a_map(host: Host, text: str) -> None:
    """Open Cluster Scheduler sets it for any consumable (its source; not seen live)."""
    assert host.grant(1, SGE_HGR_gpu=text) == ("0",)
    assert host.free() == ("1", "2", "3")


@pytest.mark.parametrize("text", ["2,0", "2 0", " 2, 0 "])
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "SGE_GPU"])
def test_lists_of_gpus_with_blanks_and_commas(host: Host, name: str, text: str) -> None:
    assert host.grant(2, **{name: text}) == ("2", "0")
    assert host.environ["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert host.free() == ("1", "3")


def test_granted_gpus_that_the_host_lacks_are_refused(host: Host) -> None:
    with pytest.raises(PlacementError, match="has no GPU 4, 7, which CUDA_VISIBLE_DEVICES there grants") as caught:
        host.grant(3, CUDA_VISIBLE_DEVICES="1,4,7")
    assert caught.value.why == "granted: 1,4,7; its GPUs: 0,1,2,3"
    assert host.free() == ("0", "1", "2", "3")


def test_refused_grant_names_its_variable(host: Host) -> None:
    with pytest.raises(PlacementError, match="has no GPU 9, which ROCR_VISIBLE_DEVICES there grants"):
        host.grant(1, ROCR_VISIBLE_DEVICES="9")


@pytest.mark.parametrize("text", ["2,0", "2 0", "gpu2 gpu0"])
def test_variable_that_the_site_names_grants_gpus(host: Host, text: str) -> None:
    assert host.grant(2, "MY_GPUS", MY_GPUS=text, CUDA_VISIBLE_DEVICES="0,1,2,3", SGE_GPU="1") == ("2", "0")
    assert host.environ["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert host.free() == ("1", "3")


def test_variable_that_the_site_names_may_be_cuda_s_own(host: Host) -> None:
    assert host.grant(1, "CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="2", SGE_GPU="1") == ("2",)


def test_variable_that_the_site_names_may_be_empty_or_copied(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.grant(1, "MY_GPUS", MY_GPUS="", SGE_GPU="3") == ("3",)
    carries(monkeypatch, MY_GPUS="9")
    del host.environ["CUDA_VISIBLE_DEVICES"], host.environ["SGE_GPU"]
    assert host.grant(1, "MY_GPUS", MY_GPUS="9") == ("0",)
    assert host.environ["MY_GPUS"] == "0"


@pytest.mark.parametrize("name", ["MY_GPUS", "SGE_GPU"])
def test_refused_grant_names_the_site_s_variable(host: Host, name: str) -> None:
    with pytest.raises(PlacementError, match=f"has no GPU 9, which {name} there grants"):
        host.grant(1, "MY_GPUS", **{name: "9"})


@pytest.mark.parametrize("name", ["GPU-5ebe9f43", "MIG-11c29e81"])
def test_granted_uuids_are_accepted_unchecked(host: Host, name: str) -> None:
    assert host.grant(1, CUDA_VISIBLE_DEVICES=name) == (name,)


# --- variables of the submitting shell


def carries(monkeypatch: pytest.MonkeyPatch, **sent: str) -> None:
    monkeypatch.setattr(query, "submitted_variables", lambda job_id: sent)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SGE_GPU", "SGE_HGR_gpu"])
def test_variables_copied_by_qsub_are_no_grant(host: Host, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    carries(monkeypatch, **{name: "9"})
    assert host.grant(1, **{name: "9"}) == ("0",)
    assert host.environ.get(name, "0") == "0"
    assert host.free() == ("1", "2", "3")


def test_variables_copied_by_qsub_hide_no_gpus(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    carries(monkeypatch, CUDA_VISIBLE_DEVICES="")
    assert host.grant(1, CUDA_VISIBLE_DEVICES="") == ("0",)


def test_grant_of_the_site_counts_among_copied_variables(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    carries(monkeypatch, CUDA_VISIBLE_DEVICES="3", SGE_GPU="3")
    assert host.grant(1, CUDA_VISIBLE_DEVICES="2", SGE_GPU="3") == ("2",)
    assert host.environ["SGE_GPU"] == "2"


def test_gpu_grant_does_not_change_its_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    carries(monkeypatch, CUDA_VISIBLE_DEVICES="3")
    before = {**host.environ, "CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "1"}
    environ = dict(before)
    found = gpu_grant.gpu_grant(environ, "gpu", GpuNeed(1, "ours", 1.0), lambda why, seconds: None)
    host.claims.append(found)
    assert environ == before
    assert found.variables == {"ROCR_VISIBLE_DEVICES": "1"}
    assert "CUDA_VISIBLE_DEVICES" not in found.environment(environ)


def test_gpus_of_copied_variables_are_claimed_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    carries(monkeypatch, CUDA_VISIBLE_DEVICES="3,1")
    assert set(host.grant(2, CUDA_VISIBLE_DEVICES="3,1")) == {"1", "3"}


# --- claims


def test_free_gpus_are_claimed(host: Host) -> None:
    host.claim("0", "2")
    assert host.grant(2) == ("1", "3")
    assert host.environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert host.free() == ()


def test_empty_cuda_visible_devices_hides_all_gpus(host: Host) -> None:
    with pytest.raises(PlacementError) as caught:
        host.grant(1, CUDA_VISIBLE_DEVICES="")
    assert "which shows 0" in caught.value.what
    assert caught.value.why == "CUDA_VISIBLE_DEVICES= is set there"


def test_claim_waits_for_a_job_that_is_about_to_end(host: Host) -> None:
    host.claim("0", "1", "2")
    assert host.grant(2) == ("0", "1")
    assert host.waits[0].startswith("waiting for 2 GPUs, 1 free; GPU 0: another job; GPU 1: another job")


def test_claim_gives_up_after_its_patience(host: Host) -> None:
    host.claim("0", "1", "2", "3")
    with pytest.raises(PlacementError) as caught:
        gpu_grant.gpu_grant(host.environ, "gpu", GpuNeed(1, "ours", 0.0001), lambda why, seconds: None)
    assert "0 of its 4 are free" in caught.value.what
    assert "GPU 3: another job" in caught.value.why


def test_too_few_gpus_are_reported(host: Host) -> None:
    with pytest.raises(PlacementError) as caught:
        host.grant(5)
    assert "5 GPUs are needed" in caught.value.what
    assert "which shows 4" in caught.value.what
    assert caught.value.why == ""
    assert host.free() == ("0", "1", "2", "3")


def test_need_of_no_gpus_gets_none(host: Host) -> None:
    assert host.grant(0, CUDA_VISIBLE_DEVICES="1", SGE_HGR_gpu="1") == ()
    assert host.free() == ("0", "1", "2", "3")


# --- processes that join, without a count


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"gpu": ResourceRequest(2, PER_SLOT)}, ("0", "1")),
        ({"gpu": ResourceRequest(0.25, PER_SLOT)}, ("0",)),
        ({"gpu": ResourceRequest(2, PER_HOST)}, ()),  # GPUs of a host are not one process's
        ({"gpu": ResourceRequest(2, PER_JOB)}, ()),
        ({"mem_free": ResourceRequest(2, PER_SLOT)}, ()),
        ({}, ()),
    ],
)
def test_need_without_a_count_gets_the_gpus_of_a_slot(
    host: Host, monkeypatch: pytest.MonkeyPatch, resources: dict[str, ResourceRequest], expected: tuple[str, ...]
) -> None:
    requests(monkeypatch, resources)
    assert host.grant(None) == expected


def test_grant_of_the_site_takes_no_qstat(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(query, "job_requests")
    assert host.grant(None, CUDA_VISIBLE_DEVICES="0,1") == ("0", "1")
    assert host.grant(None) == ("0", "1")  # another process there, which shares them


def test_need_without_a_count_fails_without_the_qmaster(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(job_id: str) -> Mapping[str, ResourceRequest]:
        raise SchedulerError("no answer")

    monkeypatch.setattr(query, "job_requests", ask)
    with pytest.raises(SchedulerError):
        host.grant(None)
