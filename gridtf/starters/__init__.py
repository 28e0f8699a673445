"""How the tasks of a job are started: one choice a job (choice.py), with one implementation each.

======  ===============================================================================================================
fork    the agent of a host starts its tasks, and nobody else has a part in it: Starter in bootstrap/agent/api and in
        bootstrap/launcher/api, which the others extend
mpi     mpirun, srun or the store of Horovod's Gloo has a place for each rank, with which the agent starts the task
joined  what calls gridtf_join was started by srun or mpirun: it becomes the task, without an agent and a launcher
======  ===============================================================================================================
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MPIRUN = "mpirun"
GLOO = "gloo"  # no MPI at all: what horovodrun does


def named(kind: str) -> str:
    """What starts the ranks, or what they meet at, in a sentence: a type of srun's is ``srun --mpi=TYPE``. Pure."""
    return {"": "", MPIRUN: MPIRUN, GLOO: "the store of Horovod's Gloo"}.get(kind, f"srun --mpi={kind}")


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
