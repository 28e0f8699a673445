"""How gridtf starts a Python: the only place that does.

Others may write in the current folder, such as /tmp, where a Python looks for modules first when it is started with -c
or -m, or when PYTHONPATH has an empty entry (as from /opt/lib:$PYTHONPATH): a socket.py there would run.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ROOT = "/"  # where nobody but root makes files
_PATH = "PYTHONPATH"


def isolated(python: str, *words: str) -> list[str]:
    """The command that runs a program of gridtf's own, which is told by value where its modules are.

    Args:
        python: Its interpreter.
        words: Its options and arguments.
    """
    return [python, "-I", "-S", *words]


def asked(
    python: str, words: Sequence[str], environ: Mapping[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """How the Python of a job is asked what it has: in its environment, but without modules of its working folder.

    Args:
        python: Its interpreter.
        words: Its options and arguments.
        environ: Its environment.
        folder: The working folder of the job; relative: to that of this process, which may be gone.

    Returns:
        The command and the environment of a process whose working folder must be ROOT.
    """
    own = dict(environ)
    path = [entry for entry in own.pop(_PATH, "").split(os.pathsep) if entry.startswith("/")]
    own.update({_PATH: os.pathsep.join(path)} if path else {})
    return [str((folder / python).absolute()) if "/" in python else python, *words], own
