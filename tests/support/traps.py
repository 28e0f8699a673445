"""A folder in which other users have put a module of their own for each one that gridtf, or a helper, may import."""

from __future__ import annotations

import sys
from pathlib import Path

# Each notes that it ran, by what Python has built in: it may be `encodings`, before there is open(). 1025: to append.
_MODULE = """
import posix, sys
posix.write(posix.open({!r}, 1025), f"{{__name__}}: {{sys.orig_argv}}\\n".encode())
raise ImportError("a trap")
"""
# gridtf as its command starts it: `python -c` would look into the current folder itself
ISOLATED = ("python", "-I", "-c", "import sys; from gridtf.cli import main; sys.exit(main())")
_PACKAGES = (
    *("argcomplete", "cryptography", "drmaa", "filelock", "gridtf", "horovod", "jinja2", "keras", "markupsafe"),
    *("mpi4py", "numpy", "pynvml", "rich", "sitecustomize", "tensorboard", "tensorflow", "textual", "tomli"),
    *("usercustomize", "yaml"),
)


class Traps:
    """The folder.

    Args:
        folder: Where it is made; all users can write in it.
        record: A file outside of it, where each module that runs is noted.
        seen: The path of that file where commands run; None: the same.
    """

    def __init__(self, folder: Path, record: Path, seen: str | None = None) -> None:
        self.folder, self._record = folder, record
        folder.mkdir()
        for name in {*sys.stdlib_module_names, *_PACKAGES}:
            (folder / f"{name}.py").write_text(_MODULE.format(seen or str(record)))
        record.touch()
        for path in (folder, record):
            path.chmod(0o777)

    @property
    def ran(self) -> list[str]:
        """The modules that have run, and in which command."""
        return self._record.read_text().splitlines()
