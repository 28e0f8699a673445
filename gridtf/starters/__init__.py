"""How the tasks of a job are started: one choice a job, with one implementation each.

======  ===============================================================================================================
fork    the agent of a host starts its tasks, and nobody else has a part in it: Starter in bootstrap/agent/api and in
        bootstrap/launcher/api, which the others extend
mpi     mpirun, srun or the store of Horovod's Gloo has a place for each rank, with which the agent starts the task
joined  what calls gridtf_join was started by srun or mpirun: it becomes the task, without an agent and a launcher
======  ===============================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from gridtf.errors import SpecError

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec
    from gridtf.schedulers.api import Scheduler

MPIRUN = "mpirun"
GLOO = "gloo"  # no MPI at all: what horovodrun does
_BEST = ("pmix", "pmi2")  # types of srun that MPIs of today know, the best first


def named(kind: str) -> str:
    """What starts the ranks, or what they meet at, in a sentence: a type of srun's is ``srun --mpi=TYPE``. Pure."""
    return {"": "", MPIRUN: MPIRUN, GLOO: "the store of Horovod's Gloo"}.get(kind, f"srun --mpi={kind}")


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
    from gridtf.schedulers.commands import which

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


def of_agent(kind: str) -> ModuleType | None:
    """Import what starts tasks in an agent.

    Args:
        kind: As in Request.mpi.

    Returns:
        A module with a class Starter; None: it is fork.
    """
    return import_module(f"gridtf.starters.mpi.{kind if kind in (MPIRUN, GLOO) else 'srun'}") if kind else None


def of_launcher(kind: str) -> ModuleType | None:
    """The same for a launcher."""
    return import_module("gridtf.starters.mpi.launcher") if kind else None
