"""The job in which gridtf tensorboard --in-job runs TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission, tensorboard
from gridtf.login.job import Job
from gridtf.run.rundir import RunDir
from tests.support.configuration import user_file
from tests.support.scheduler import FakeScheduler


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "program", lambda: ["tensorboard"])


def spec(**values: Any) -> JobSpec:
    job = submission.submit(JobSpec(command=("x",), scheduler="slurm", **values))
    return tensorboard.spec_of(job, job.output_dir)


def test_job_for_tensorboard_requests_one_cpu_where_the_other_job_ran(fake: FakeScheduler, rough_path: Path) -> None:
    user_file('native = ["--qos=long"]\ngpus_per_node = 8\n')
    made = spec(
        nodes=4, gpus_per_node=4, partition="gpu", account="ml", native=["--exclusive", "--array=1-3"], restarts=2
    )
    request = schedulers.get("slurm").login.resolve(made)
    assert (request.nodes, request.gpus_per_node, request.training, request.task_cpus) == ((1, 1), 0, 1, 1)
    assert (made.partition, made.account, made.native, made.walltime) == ("gpu", "ml", ("--qos=long",), 8 * 3600)
    assert made.command[-4:] == ("--host", "127.0.0.1", "--port", "{master_port}")
    assert made.name == "tensorboard-x"


@pytest.mark.parametrize(
    ("values", "python"),
    [
        ({}, ["tensorboard"]),
        ({"setup": ["module load tf"]}, ["python", "-m", "tensorboard.main"]),
        ({"container": "tf.sif"}, ["python3", "-m", "tensorboard.main"]),
        ({"python": sys.executable, "setup": ["true"]}, [sys.executable, "-m", "tensorboard.main"]),
    ],
)
def test_tensorboard_is_that_of_the_job_s_python(
    values: dict[str, Any], python: list[str], fake: FakeScheduler, rough_path: Path
) -> None:
    Path("tf.sif").touch()
    made = spec(**values)
    assert list(made.command[: len(python) + 1]) == [*python, "--logdir"]
    assert list(made.setup) == values.get("setup", [])


def test_address_is_not_known_before_the_start(tmp_path: Path) -> None:
    job = Job(RunDir(tmp_path))
    assert tensorboard.address(job) is None
    job.run.new_attempt().rendezvous.write_text('{"cluster": {}, "master_port": 7')  # cut in the middle
    assert tensorboard.address(job) is None
