"""MPIs for programs of tests: Debian's Open MPI, and MPICH as PyPI has it; each with mpi4py."""

from __future__ import annotations

import sysconfig

from tests.support.packages import need_program
from tests.support.unpacked import need_unpacked

OPEN_MPI, MPICH = "openmpi", "mpich"
# MPICH 5.0 exchanges UCX's addresses, of 4 KiB, through the scheduler in nine parts, and goes on where one is missing
# (MPIDIU_bc_exchange_node_roots). That may be why ranks on Slurm 20.11 and 22.05 have once failed in MPI_Init, with
# "UCX ERROR failed to unpack address, invalid bandwidth 0.00". The addresses of libfabric fit in one part. Of its
# providers MPICH takes "sockets", with which ranks that connect to each other at the same moment on a busy machine may
# wait for ever in MPI_Init (twice in some 25 starts; with "tcp" never in 290).
LIBFABRIC = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


def need_open_mpi() -> None:
    need_program("mpirun.openmpi", "openmpi-bin")


def variables(kind: str, path: str) -> dict[str, str]:
    """The variables with which a program finds mpi4py, its MPI and mpirun.

    Args:
        kind: OPEN_MPI or MPICH.
        path: The PATH without it.
    """
    if kind == OPEN_MPI:
        need_open_mpi()
        prefix, places = need_unpacked("mpi4py-alone", "mpi4py==4.1.*", how="--prefix"), {"PATH": path}
    else:
        prefix = need_unpacked("mpi4py", "mpi4py==4.1.*", "mpich==5.0.*", how="--prefix")
        places = {"PATH": f"{prefix / 'bin'}:{path}", "LD_LIBRARY_PATH": str(prefix / "lib"), **LIBFABRIC}
    return {**places, "PYTHONPATH": sysconfig.get_path("platlib", vars={"platbase": str(prefix)})}
