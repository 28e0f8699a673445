"""`gridtf doctor --conformance` where something lacks: hosts, an account, GPUs. Where all is there: test_walk.py."""

from __future__ import annotations

import re

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterjobs import gridtf
from tests.support.pilots import levels, result


@on_every_scheduler
def test_one_host_is_one_error(bed: Bed) -> None:
    words = {"slurm": ("--partition", "cpu"), "sge": ("--pe", "smp")}[bed.kind]
    done = gridtf(bed, "doctor", "--conformance", *words, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert re.match(r"gridtf: .*\b(hosts?|nodes)\b", done.stderr)
    assert len(done.stderr.splitlines()) <= 3, done.stderr


@pytest.mark.tensorflow
def test_parallel_environment_that_fills_hosts_is_one_failure(sge: Bed) -> None:
    done = gridtf(sge, "doctor", "--conformance", "--pe", "fill", check=False, timeout=900)
    seen = levels(done.stdout)
    assert (seen.pop("hosts"), seen.pop("restart"), {*seen.values()}) == ("failure", "warning", {"ok"}), done.stdout
    assert "request as many as come: --nodes 1, or a parallel environment that spreads" in done.stdout


def test_user_without_an_account_is_one_failure(accounting_slurm: Bed) -> None:
    done = gridtf(accounting_slurm, "doctor", "--conformance", user="bob", check=False)
    assert [row for row, level in levels(done.stdout).items() if level == "failure"] == ["account"]
    assert (done.returncode, done.stderr) == (1, "gridtf: no job is submitted until the failures are fixed\n")


@pytest.mark.tensorflow
def test_gpus_that_tensorflow_does_not_see_are_a_failure(slurm: Bed) -> None:
    done = gridtf(slurm, "doctor", "--conformance", "--gpus-per-node", "2", check=False, timeout=900)
    seen = levels(done.stdout)
    assert (seen.pop("gpus"), seen.pop("nccl"), {*seen.values()}) == ("failure", "warning", {"ok"}), done.stdout
    assert "each task has one GPU, but worker:0 sees 0" in done.stdout
    assert result(slurm.home())["tasks"] == 4
