"""Which starter a job has: by default fork; for an MPI world mpirun, which belongs to its MPI, or Slurm's srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gridtf.errors import SpecError
from gridtf.schedulers.commands import which
from gridtf.starters import GLOO, MPIRUN

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec
    from gridtf.schedulers.api import Scheduler

_BEST = ("pmix", "pmi2")  # types of srun that MPIs of today know, the best first


def choose(spec: JobSpec, scheduler: Scheduler, environ: Mapping[str, str]) -> tuple[str, str]:
    """Choose what starts the ranks of a job.

    Args:
        spec: The job.
        scheduler: Its scheduler.
        environ: The environment of the submission, or of a hand-written script.

    Returns:
        (``mpirun``, ``gloo`` or a type of ``srun --mpi``, why); both empty for fork.

    Raises:
        SpecError: For a type that the scheduler does not have.
    """
    if spec.mpi is False:
        return "", ""
    if isinstance(spec.mpi, str):
        if spec.mpi not in (MPIRUN, GLOO):
            types = scheduler.injob.rank_types()
            if types is None or (types and re.sub(r"_v\d+$", "", spec.mpi) not in types):
                what = f"{scheduler.title} has no srun --mpi={spec.mpi} here"
                others = f"it has {', '.join(types)}; or " if types else ""
                raise SpecError("mpi", what, hint=f"{others}write --mpi, or mpi = true: then mpirun starts the ranks")
        return spec.mpi, "as requested"
    found = which(MPIRUN, environ)
    if spec.setup:
        return MPIRUN, "the first on PATH after the set-up lines"
    if found:
        return MPIRUN, f"the first on PATH in the job; here it is {found}"
    types = scheduler.injob.rank_types() or ()
    if name := next((name for name in _BEST if name in types), ""):
        return name, f"there is no mpirun on PATH, and srun has --mpi={name}"
    return MPIRUN, "the first on PATH in the job; here there is none"
