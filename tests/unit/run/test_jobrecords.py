"""What is written down of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf.jobspec.spec import JobSpec
from gridtf.run import jobrecords, registry
from gridtf.run.rundir import RunDir, read_record

SPEC = JobSpec(command=("python", "train.py"), nodes=2)


def test_a_job_is_found_again_by_what_was_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    environ: Mapping[str, str] = {"XDG_STATE_HOME": str(tmp_path / "state")}
    jobrecords.write_job(run, SPEC, {"nodes": "--nodes"})
    record = jobrecords.submitted(SPEC, "slurm", ["sbatch", "job.sh"], {"job_id": "4711", "cluster": "c1"})
    jobrecords.index(run, record, environ)
    assert {"scheduler": "slurm", "name": "train", "job_id": "4711", "cluster": "c1"}.items() <= record.items()
    for word in ("4711", "train"):
        assert registry.find(word, environ, tmp_path).path == run.path
    job = read_record(run.job)
    assert job is not None
    assert JobSpec.from_dict(job["spec"]) == SPEC
    assert job["sources"] == {"nodes": "--nodes"}


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, or while the directory service is down, nobody knows the name of a uid."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    assert jobrecords.who() == {"user": str(os.getuid()), "host": os.uname().nodename}
