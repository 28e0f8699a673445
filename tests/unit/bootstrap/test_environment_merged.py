"""The environment of a job on hosts to which its scheduler does not forward it."""

from __future__ import annotations

from gridtf import schedulers
from gridtf.bootstrap.plan import environment
from gridtf.jobspec.spec import JobSpec


def test_variable_by_which_the_site_grants_gpus_is_each_host_s_own() -> None:
    sge = schedulers.get("sge")
    request = sge.login.resolve(JobSpec(command=("x",), gpu_variable="SITE_GPUS"), in_job=True)
    job = {"SITE_GPUS": "0,1", "SITE": "a"}
    merged = environment.merge_environment({"SITE_GPUS": "3"}, job, sge.injob.variables_of_host(request))
    assert merged == {"SITE_GPUS": "3", "SITE": "a"}
    assert environment.merge_environment({}, {"SGE_GPU": "0"}, sge.injob.variables_of_host(request)) == {}
    slurm = schedulers.get("slurm")
    assert slurm.injob.variables_of_host(slurm.login.resolve(JobSpec(command=("x",)), in_job=True)) is None


def test_merge_environment_keeps_host_variables() -> None:
    own = {
        "HOSTNAME": "n2",
        "TMPDIR": "/tmp/n2",
        "CUDA_VISIBLE_DEVICES": "1",
        "PATH": "/bin",
        "NSLOTS": "1",
        "SITE": "told by a starter_method",
        "GRIDTF_LOCAL_GPUS": "0,1",
    }
    job = {
        "HOSTNAME": "n1",
        "TMPDIR": "/tmp/n1",
        "PATH": "/opt/venv/bin:/bin",
        "NSLOTS": "8",
        "MINE": "a b,c\nd",
        "SGE_HGR_gpu": "0",
        "PE_HOSTFILE": "/spool/n1/pe_hostfile",
        "GRIDTF_LOCAL_GPUS": "7",
        "GRIDTF_LOCKS": "/locks",
    }
    merged = environment.merge_environment(own, job, schedulers.get("sge").injob.host_variables)
    assert merged == {
        "HOSTNAME": "n2",
        "TMPDIR": "/tmp/n2",
        "CUDA_VISIBLE_DEVICES": "1",
        "PATH": "/opt/venv/bin:/bin",
        "NSLOTS": "8",
        "MINE": "a b,c\nd",
        "SITE": "told by a starter_method",
        "GRIDTF_LOCAL_GPUS": "0,1",
        "GRIDTF_LOCKS": "/locks",
    }


def test_merge_environment_drops_gpu_variables_of_the_first_host() -> None:
    assert environment.merge_environment({}, {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}) == {}
