"""The environment of a job on hosts that the scheduler takes none along to."""

from __future__ import annotations

import stat
from pathlib import Path

from gridtf import schedulers
from gridtf.bootstrap import environment
from gridtf.run.rundir import RunDir


def test_the_jobs_variables_count_but_for_what_is_the_hosts_own() -> None:
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
    merged = environment.merge_environment(own, job, schedulers.get("sge").host_variables)
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


def test_gpus_of_the_first_host_are_not_those_of_others() -> None:
    assert environment.merge_environment({}, {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}) == {}


def test_it_goes_through_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).new_attempt()
    environ = {"TMPDIR": "/tmp/n2"}
    assert not environment.read_environment(attempt, "nonce", environ)
    environment.write_environment(attempt, "nonce", {"TOKEN": "secret", "TMPDIR": "/tmp/n1"})
    assert stat.S_IMODE(attempt.environment.stat().st_mode) == 0o600
    assert not environment.read_environment(attempt, "of another attempt", environ)
    assert environ == {"TMPDIR": "/tmp/n2"}
    assert environment.read_environment(attempt, "nonce", environ)
    assert environ == {"TMPDIR": "/tmp/n2", "TOKEN": "secret"}
