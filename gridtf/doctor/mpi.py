"""Examines MPI: which mpirun comes first on the PATH, what srun offers, and whether mpirun fits the program's MPI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError
from gridtf.findings import Finding, Items, Level
from gridtf.host.interpreter import ROOT, asked
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers import commands
from gridtf.starters import MPIRUN

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_COMMAND_LIMIT = 6.0  # seconds for a command of this host
# What needs an MPI in a program, and which: a line each. mpi4py tells it before MPI is initialized. To import Horovod
# would be to import TensorFlow; its extension names the library that it needs.
_OF_PROGRAM = """\
from importlib.util import find_spec
from pathlib import Path
import re
if find_spec("mpi4py"):
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
        print("mpi4py", MPI.Get_library_version().split("\\n")[0])
    except (ImportError, RuntimeError) as error:
        print("error", *str(error).split())
horovod = find_spec("horovod")
for path in sorted(Path(horovod.origin).parent.glob("*/mpi_lib*.so")) if horovod else ():
    found = re.search(rb"libmpi\\.so\\.[0-9]+", path.read_bytes())
    print("Horovod", found[0].decode() if found else "Gloo")
    break
"""
_GLOO, _ERROR = "Gloo", "error"
# What tells an MPI -> its name.
_MPIS = {r"Open MPI|libmpi\.so\.40": "Open MPI", "Intel": "Intel MPI", r"MPICH|HYDRA|libmpi\.so\.12": "MPICH"}


def mpi(spec: JobSpec, scheduler: Scheduler | None, environ: Mapping[str, str]) -> Items:
    """Examine the MPI of this host, and that of the Python that a job's command runs.

    Args:
        spec: What files and variables set.
        scheduler: The scheduler that jobs go to; None where there is none to use.
        environ: The environment of this process.
    """
    if types := scheduler.injob.rank_types() if scheduler else None:
        yield Finding(Level.OK, "mpi.srun", f"srun --mpi offers {', '.join(types)}")
    if spec.setup or spec.contained:
        return  # which choose both
    starter, python = (commands.which(name, environ) for name in (MPIRUN, spec.python or "python"))
    named, family = _known(_said([str(Path(starter).absolute()), "--version"], environ)) if starter else ("", "")
    load = f"load the MPI of the program, so that its {MPIRUN} comes first"
    also, wrong = [], []
    asking, own = asked(python, ["-c", _OF_PROGRAM], environ, Path()) if python else ([], {})
    for library, said in re.findall(r"(?m)^(\w+) (.+)", _said(asking, own)) if python else ():
        mine, same = _known(said)
        if said == _GLOO:
            yield Finding(Level.OK, "mpi.horovod", "Horovod is built without MPI: gridtf submit --mpi=gloo starts it")
        elif library == _ERROR:
            wrong.append(f"mpi4py of {python} finds no MPI: {said}")
        elif not starter:
            wrong.append(f"{library} has {mine}, and there is no {MPIRUN} on the PATH")
        elif same != family:
            wrong.append(f"{library} has {mine}, but {starter}, which comes first on the PATH, is of {named}")
        else:
            also.append(f"{library}'s {mine}")
    yield from (Finding(Level.WARNING, "mpi.program", what, load) for what in wrong)
    if starter and not wrong:
        like = f", like {' and '.join(also)}" if also else ""
        yield Finding(Level.OK, "mpi", f"{starter} is of {named}{like}: gridtf submit --mpi starts tasks with it")


def _said(argv: list[str], environ: Mapping[str, str]) -> str:
    try:
        return commands.run_command(argv, limit=_COMMAND_LIMIT, environ={**environ, "LC_ALL": "C"}, cwd=ROOT).out
    except SchedulerError:
        return ""


def _known(said: str) -> tuple[str, str]:
    """Which MPI says this, such as ``Open MPI 4.1.4``, and whose programs its mpirun starts."""
    name = next((name for words, name in _MPIS.items() if re.search(words, said)), "an MPI that gridtf does not know")
    version = re.search(r"[0-9]+(\.[0-9]+)+", said)
    # Intel's is an MPICH
    return f"{name} {version[0]}" if version else name, name.replace("Intel MPI", "MPICH")
