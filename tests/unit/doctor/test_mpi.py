"""Which MPI a host has, and whether it fits the program's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.doctor import mpi
from gridtf.findings import collect
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.slurm.injob import SlurmInJob

# What the versions of mpirun, and MPI.Get_library_version(), print.
OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/"
PRTE = "mpirun (Open MPI) 5.0.11"
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260401"
# What needs an MPI in a program, and which.
OF_OPEN_MPI = "mpi4py Open MPI v5.0.11, package: Open MPI, ident: 5.0.11, repo rev: v5.0.11"
OF_MPICH = "mpi4py MPICH Version:      5.0.2"
OF_INTEL = "mpi4py Intel(R) MPI Library 2021.18 for Linux* OS"
HOROVOD = "Horovod libmpi.so.40"


def host(folder: Path, **programs: str) -> dict[str, str]:
    """The environment of a host that has these programs; each prints a text."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(text)}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/bin"}


@pytest.mark.parametrize(
    ("starter", "program", "level", "check", "message"),
    [
        (OPEN_MPI, "", "ok", "mpi", "{bin}/mpirun is of Open MPI 4.1.4: gridtf submit --mpi starts tasks with it"),
        (PRTE, OF_OPEN_MPI, "ok", "mpi", "{bin}/mpirun is of Open MPI 5.0.11, like mpi4py's Open MPI 5.0.11: gridtf …"),
        (HYDRA, OF_MPICH, "ok", "mpi", "{bin}/mpirun is of MPICH 5.0.2, like mpi4py's MPICH 5.0.2: gridtf …"),
        (INTEL, OF_MPICH, "ok", "mpi", "{bin}/mpirun is of Intel MPI 2021.18, like mpi4py's MPICH 5.0.2: gridtf …"),
        (HYDRA, OF_INTEL, "ok", "mpi", "{bin}/mpirun is of MPICH 5.0.2, like mpi4py's Intel MPI 2021.18: gridtf …"),
        (
            OPEN_MPI,
            OF_MPICH,
            "warning",
            "mpi.program",
            "mpi4py has MPICH 5.0.2, but {bin}/mpirun, which comes first on the PATH, is of Open MPI 4.1.4",
        ),
        (OPEN_MPI, HOROVOD, "ok", "mpi", "{bin}/mpirun is of Open MPI 4.1.4, like Horovod's Open MPI: gridtf …"),
        (
            PRTE,
            f"{OF_OPEN_MPI}\n{HOROVOD}",
            "ok",
            "mpi",
            "{bin}/mpirun is of Open MPI 5.0.11, like mpi4py's Open MPI 5.0.11 and Horovod's Open MPI: gridtf …",
        ),
        (HYDRA, HOROVOD, "warning", "mpi.program", "Horovod has Open MPI, but {bin}/mpirun, which comes first …"),
        (None, "Horovod Gloo", "ok", "mpi.horovod", "Horovod is built without MPI: gridtf submit --mpi=gloo starts it"),
        (
            OPEN_MPI,
            "error cannot load MPI library libmpi.so.40",
            "warning",
            "mpi.program",
            "mpi4py of {bin}/python finds no MPI: cannot load MPI library libmpi.so.40",
        ),
        (None, OF_MPICH, "warning", "mpi.program", "mpi4py has MPICH 5.0.2, and there is no mpirun on the PATH"),
    ],
)
def test_mpirun_and_the_program_are_compared(
    starter: str | None, program: str, level: str, check: str, message: str, tmp_path: Path
) -> None:
    environ = host(tmp_path, python=program, **({"mpirun": starter} if starter else {}))
    (finding,) = collect(mpi.mpi(JobSpec(command=("true",)), None, {**environ, "PATH": str(tmp_path)})).findings
    begin = message.replace("{bin}", str(tmp_path)).rstrip("…")
    assert (finding.level, finding.check) == (level, check)
    assert finding.message.startswith(begin)


@pytest.mark.parametrize("programs", [{}, {"python": ""}])
def test_without_mpi_there_is_nothing_to_say(programs: dict[str, str], tmp_path: Path) -> None:
    environ = {**host(tmp_path, **programs), "PATH": str(tmp_path)}
    assert collect(mpi.mpi(JobSpec(command=("true",)), None, environ)).findings == ()


@pytest.mark.parametrize(("types", "said"), [(("none", "pmix"), ["srun --mpi offers none, pmix"]), ((), [])])
def test_types_of_srun_are_listed(
    types: Sequence[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmInJob, "rank_types", lambda self: types)
    spec = JobSpec(command=("true",), setup=("module load openmpi",))  # which decides about the rest
    found = collect(mpi.mpi(spec, schedulers.get("slurm"), {"PATH": str(tmp_path)})).findings
    assert [finding.message for finding in found] == said
