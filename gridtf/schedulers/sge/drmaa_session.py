"""One submission by DRMAA: a program of its own, which handover starts, and which loads nothing else of gridtf.

libdrmaa starts threads, hangs when the qmaster does, and can take its process along; Debian's loads only into a process
that was started with a setting of glibc's. None of that is for the program of somebody who submits a job.

In: one JSON object as the only argument, see Request in handover. Out: JSON objects, one a line, each as soon as it is
known: ``unloadable`` (why there is no DRMAA here) or ``loaded``, ``submitting``, then ``job_id`` or ``failed`` (DRMAA's
words). Ends by SIGALRM when the library does not let itself be loaded, as on a file server that hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# What drmaa_get_DRM_system says, such as SGE 8.1.9, GE 6.2u5 or OCS 9.0.5. Other schedulers have a libdrmaa, too.
_OURS = re.compile(r"GE\b|OCS|GCS|Grid|Univa|Altair", re.IGNORECASE)
_ROOM = 1024  # bytes for a text, as the specification of DRMAA's C binding recommends

Tell = Callable[[dict[str, Any]], None]


class UnloadableError(Exception):
    """There is no DRMAA of Grid Engine here."""


def main(argument: str) -> int:
    request = json.loads(argument)
    # Ours alone: libdrmaa prints what it likes to stdout.
    answers = os.dup(1)
    os.dup2(2, 1)

    def tell(what: dict[str, Any]) -> None:
        os.write(answers, json.dumps(what).encode() + b"\n")

    sys.path[:] = request["path"]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(request["loading"])
    try:
        drmaa = load(request["libraries"])
    except UnloadableError as error:
        tell({"unloadable": str(error)})
        return 1
    signal.alarm(0)
    tell({"loaded": True})
    restore(request["environ"])
    return submit(drmaa, request, tell)


def load(libraries: Iterable[str]) -> Any:
    """The module drmaa with the first of these libraries that is Grid Engine's. Raises UnloadableError."""
    os.environ["DRMAA_LIBRARY_PATH"] = usable(libraries)
    try:
        import drmaa
    except ImportError as error:
        raise UnloadableError(f"the Python package drmaa cannot be imported: {error}") from None
    return drmaa


def usable(libraries: Iterable[str]) -> str:
    """The first of these that can be loaded and is Grid Engine's. Raises UnloadableError, with the first's fault."""
    faults = []
    for library in libraries:
        try:
            system = _system(ctypes.CDLL(library))
        except (OSError, AttributeError) as error:
            faults.append(" ".join(str(error).split()))
            continue
        if _OURS.search(system):
            return library
        faults.append(f"{library} is for {system or 'another scheduler'}")
    raise UnloadableError(faults[0] if faults else "libdrmaa is not there")


def _system(library: ctypes.CDLL) -> str:
    name, fault = (ctypes.create_string_buffer(_ROOM) for _ in range(2))
    size = ctypes.c_size_t(_ROOM)
    library.drmaa_get_DRM_system(name, size, fault, size)
    return name.value.decode(errors="replace")


def restore(environ: Mapping[str, str | None]) -> None:
    """Set these variables back, None: to nothing, so that ``-V`` gives the job what its submitter has."""
    for name, text in environ.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def submit(drmaa: Any, request: Mapping[str, Any], tell: Tell) -> int:
    """Hand the job over in a session of its own."""
    try:
        drmaa.Session.initialize()
        template = drmaa.Session.createJobTemplate()
        # bytes: drmaa would encode a path as the locale says, whatever that is
        template.remoteCommand = os.fsencode(request["script"])
        template.nativeSpecification = os.fsencode(request["native"])
        tell({"submitting": True})
        if request["tasks"]:
            job_id, *_ = drmaa.Session.runBulkJobs(template, *request["tasks"])  # 4711.1, 4711.2, …
        else:
            job_id = drmaa.Session.runJob(template)
        tell({"job_id": job_id.partition(".")[0]})
        drmaa.Session.exit()
    except Exception as error:  # drmaa's have no base class in common with its MemoryError, StopIteration and Exception
        tell({"failed": re.sub(r"^code \d+: *", "", str(error)) or type(error).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
