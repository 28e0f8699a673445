"""What starts the ranks of an MPI world, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.errors import SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.slurm.injob import SlurmInJob, parse_rank_types
from gridtf.starters import choose

# Slurm 22.05.8 of Debian, on standard error
LIST = """\
MPI plugin types are...
\tnone
\tpmi2
\tcray_shasta
specific pmix plugin versions available: pmix_v4
"""


def test_types_of_srun() -> None:
    assert parse_rank_types(LIST) == ["pmi2", "cray_shasta"]
    assert parse_rank_types("srun: MPI types are...\nsrun: \tpmix\nsrun: \tnone\n") == ["pmix"]  # 20.11
    assert parse_rank_types("srun: error: nothing") == []


@pytest.mark.parametrize(
    ("given", "scheduler", "present", "setup", "types", "expected"),
    [
        (False, "slurm", True, (), ("pmix",), ("", "")),
        (True, "slurm", True, (), ("pmix",), ("mpirun", "the first on PATH in the job; here it is {bin}/mpirun")),
        (
            True,
            "slurm",
            False,
            (),
            ("none", "pmi2", "pmix"),
            ("pmix", "there is no mpirun on PATH, and srun has --mpi=pmix"),
        ),
        (True, "slurm", False, (), ("none", "pmi2"), ("pmi2", "there is no mpirun on PATH, and srun has --mpi=pmi2")),
        (True, "slurm", False, (), ("none",), ("mpirun", "the first on PATH in the job; here there is none")),
        (
            True,
            "slurm",
            False,
            ("module load openmpi",),
            ("pmix",),
            ("mpirun", "the first on PATH after the set-up lines"),
        ),
        (True, "sge", False, (), (), ("mpirun", "the first on PATH in the job; here there is none")),
        ("pmix", "slurm", True, (), ("none", "pmix"), ("pmix", "as requested")),
        ("pmix_v5", "slurm", True, (), ("none", "pmix"), ("pmix_v5", "as requested")),
        ("pmix", "slurm", True, (), (), ("pmix", "as requested")),  # srun has not said
        ("mpirun", "local", False, (), (), ("mpirun", "as requested")),
        ("gloo", "sge", True, (), (), ("gloo", "as requested")),
    ],
)
def test_what_starts_the_ranks(
    given: bool | str,
    scheduler: str,
    present: bool,
    setup: Sequence[str],
    types: Sequence[str],
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SlurmInJob, "rank_types", lambda self: types)
    if present:
        (tmp_path / "mpirun").write_text("")
        (tmp_path / "mpirun").chmod(0o755)
    spec = JobSpec(command=("true",), mpi=given, setup=tuple(setup))
    name, why = choose(spec, schedulers.get(scheduler), {"PATH": str(tmp_path)})
    assert (name, why.replace(str(tmp_path), "{bin}")) == expected


def test_type_that_srun_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlurmInJob, "rank_types", lambda self: ["cray_shasta", "pmi2"])
    with pytest.raises(SpecError, match="Slurm has no srun --mpi=pmix here") as error:
        choose(JobSpec(command=("true",), mpi="pmix"), schedulers.get("slurm"), {})
    assert error.value.hint == "it has cray_shasta, pmi2; or write --mpi, or mpi = true: then mpirun starts the ranks"


def test_type_of_srun_needs_slurm() -> None:
    spec = JobSpec(command=("true",), mpi="pmix")
    with pytest.raises(SpecError, match="Grid Engine has no srun --mpi=pmix here"):
        choose(spec, schedulers.get("sge"), {})
