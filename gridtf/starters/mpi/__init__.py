"""An MPI world of the tasks: the key `mpi`, docs/mpi.md, the folder mpi/ of an attempt. What both halves know.

In the record of a task, `abandoned` is a rank that has ended after what had started it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gridtf.run.logparts import refresh
from gridtf.text import plain

# Messages of the launcher's half, and their forms: the hosts of all ranks, the first of which starts them; and of both:
# commands of mpirun for other hosts, and how such commands have ended, all so far.
WORLD, HOSTS = "world", {"hosts": [str]}
REMOTE, COMMANDS = "remote", {"commands": {str: [str]}, "codes": {str: int}}  # number -> (host, command); -> exit code

# What says most of what mpirun prints: Open MPI's, MPICH's and Intel's.
_TELLING = re.compile(
    "MPI_ABORT was invoked|exiting improperly|exited on signal|error occurred|[Uu]nable to|[Ii]nvalid"
    "|EXIT (CODE|STRING)"
)
_MOST = 1 << 16  # characters of it that are read
_MOST_SHOWN = 300


def said_by_mpirun(log: Path, *, first: bool = True) -> str:
    """The line of the output of an mpirun that says most; empty where there is none.

    Args:
        log: Its output.
        first: Whether the first line will do.
    """
    refresh(log)
    try:
        text = log.read_text(errors="replace")[:_MOST]
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip("-=*| \t")]
    found = next((line for line in lines if _TELLING.search(line)), lines[0] if lines and first else "")
    return plain(found)[:_MOST_SHOWN]
